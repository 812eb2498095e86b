package cli

import (
	"cmp"
	"fmt"

	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

func (s *sheet) questions(v dossier.Handoff) {
	s.section("Questions")
	for _, q := range v.Questions {
		if q.Agent != "" {
			s.item(fmt.Sprintf("%s %s asked: %s", clockUTC(q.At), q.Agent, q.Asks))
		}
		switch {
		case q.Answer != nil:
			s.item(fmt.Sprintf("%s %s answered: %s", clockUTC(q.Answered), explain.Person(cmp.Or(q.Answer.By, "an authority")), explain.Answer(*q.Answer)))
		case !v.State.Closed:
			s.item("not answered yet")
		default:
			s.item("never answered")
		}
	}
}

// resultShown is how much of a result's text is shown without --full.
const resultShown = 400

func (s *sheet) results(v dossier.Handoff) {
	s.section("Result")
	if r := v.Result; r != nil {
		s.line("status", string(cmp.Or(r.Status, protocol.Success)))
		text, ok := jsonString(r.Body)
		if !ok {
			text = string(r.Body)
		}
		s.line("body", protocol.CutText(text, resultShown))
		s.line("summary", r.Summary)
		s.line("made", explain.Join(countOf(len(r.Artifacts.All()), "artifact"), countOf(len(r.Variables), "changed variable")))
		s.line("iterations", countOf(r.Iterations, "iteration"))
		s.line("notes", r.Notes)
		s.line("malformed", r.Malformed)
		s.line("warning", r.SetAside)
	}
	for _, late := range v.LateResults {
		s.line("late", fmt.Sprintf("%s of attempt %d, at %s: handoff result %s --late", cmp.Or(late.Result.Status, protocol.Success), late.Attempt, explain.Instant(late.At), v.Ticket))
	}
}
