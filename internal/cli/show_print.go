package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/brief"
	"github.com/agenthandoff/handoff/dossier"
	"github.com/agenthandoff/handoff/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// How "handoff show" reads to people: at 80 columns, in sections, the shortest
// answer first.

// sheetWidth is how wide show writes where it does not know the terminal.
const sheetWidth = 80

// sheet writes sections of lines that are wrapped, never cut.
type sheet struct {
	a     *app
	width int
	title string // of the section, until its first line
}

func (s *sheet) section(title string) { s.title = title }

func (s *sheet) begin() {
	if s.title != "" {
		s.a.printf("\n%s\n", s.title)
		s.title = ""
	}
}

// line writes text under a hanging indent. label stands before its first line.
func (s *sheet) line(label, text string) {
	if text == "" {
		return
	}
	s.begin()
	const column = 12 // of the labels
	room := max(s.width-column-3, 20)
	for i, part := range wrapWords(protocol.Printable(text), room) {
		if i > 0 {
			label = ""
		}
		s.a.printf("  %-*s %s\n", column, label, part)
	}
}

// item writes a paragraph of its own, its further lines indented.
func (s *sheet) item(text string) {
	s.begin()
	for i, part := range wrapWords(protocol.Printable(text), max(s.width-4, 20)) {
		indent := "  "
		if i > 0 {
			indent = "    "
		}
		s.a.printf("%s%s\n", indent, part)
	}
}

// wrapWords breaks text between words; a word longer than a line stays whole.
func wrapWords(text string, width int) []string {
	lines := []string{""}
	for _, word := range strings.Fields(text) {
		switch last := &lines[len(lines)-1]; {
		case *last == "":
			*last = word
		case utf8.RuneCountInString(*last)+1+utf8.RuneCountInString(word) > width:
			lines = append(lines, word)
		default:
			*last += " " + word
		}
	}
	return lines
}

func (a *app) whole(v dossier.Whole, full bool) error {
	s := v.State.State
	sheet := &sheet{a: a, width: sheetWidth}
	if a.width > 0 {
		sheet.width = max(a.width, 40)
	}
	a.printf("%s  %s\n", s.Ticket, a.phase(s))
	sheet.overview(v)
	sheet.handedOver(v)
	sheet.agents(v)
	sheet.attempts(v)
	sheet.questions(v)
	sheet.results(v)
	sheet.kin(v)
	sheet.stages(v.Stages, s.Closed)
	sheet.events(v.Changes)
	if !full {
		return nil
	}
	return a.bodies(v)
}

func (s *sheet) overview(v dossier.Whole) {
	state := v.State.State
	if v.Decoded != nil {
		s.line("task", v.Decoded.Task.Description)
	}
	if !state.Closed {
		s.line("waits for", phrase(explain.WaitingFor(state)))
	}
	s.line("ended", explain.Ended(state))
	s.line("stuck", state.StuckReason)
	s.line("from", state.Source)
	s.line("to", explain.To(state))
	s.line("group", explain.Join(explain.Group(state), explain.Aggregation(state)))
	s.line("attempt", explain.Attempt(state))
	s.line("progress", explain.Progress(state))
	s.line("escalated", explain.Escalation(state))
	s.line("inbox", phrase(explain.Inbox(state)))
	if state.Tokens > 0 {
		s.line("tokens", fmt.Sprint(state.Tokens))
	}
}

// handedOver is the package, with its context counted.
func (s *sheet) handedOver(v dossier.Whole) {
	state := v.State.State
	s.section("Handed off")
	s.line("submitted", explain.Instant(state.SubmittedAt))
	s.line("type", string(state.Type))
	s.line("priority", string(state.Priority))
	s.line("deadline", explain.Instant(state.Deadline))
	s.line("workflow", state.WorkflowID)
	s.line("conversation", state.ConversationID)
	if v.Decoded == nil {
		s.line("package", "the ledger has it no more")
		return
	}
	for _, fact := range brief.Facts(v.Decoded) {
		s.line(fact.Label, fact.Text)
	}
	var counts []string
	for _, part := range brief.Parts(v.Decoded.Context) {
		counts = append(counts, explain.Count(part.N, part.Thing))
	}
	s.line("context", strings.Join(counts, ", "))
	s.line("size", explain.Count(len(v.Package), "byte"))
}

func (s *sheet) agents(v dossier.Whole) {
	s.section("Agents")
	for _, way := range v.Way {
		s.item(fmt.Sprintf("%s %s (%s)", clockUTC(way.At), way.Agent, strings.ReplaceAll(way.Reason, "_", " ")))
	}
	for _, r := range v.Routings {
		s.item(fmt.Sprintf("%s %s was chosen%s", clockUTC(r.At), r.Choice.Choice, explain.After(": ", routingWords(r.Choice))))
	}
}

// routingWords say between whom was chosen.
func routingWords(r protocol.Routing) string {
	var parts []string
	for _, c := range r.Candidates {
		parts = append(parts, fmt.Sprintf("%s %.2f (%s, %d busy)", c.Agent, c.Score, explain.Count(c.Live, "worker"), c.Busy))
	}
	words := strings.Join(parts, ", ")
	if len(r.Excluded) > 0 {
		words = explain.Join(words, "without "+strings.Join(r.Excluded, " and "))
	}
	return explain.Join(append([]string{words}, r.Warnings...)...)
}

func (s *sheet) attempts(v dossier.Whole) {
	s.section("Attempts")
	for _, t := range v.Attempts {
		how := fmt.Sprintf("%s after %s%s", t.How, explain.Millis(t.TookMS), explain.After(": ", t.Words))
		if t.Ended.IsZero() {
			how = fmt.Sprintf("goes on, for %s so far", explain.Millis(t.TookMS))
		}
		s.item(fmt.Sprintf("%s %d. at %s, %s: %s", clockUTC(t.Began), t.N, t.Agent, explain.By(t.Holder), how))
	}
}

func (s *sheet) questions(v dossier.Whole) {
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

func (s *sheet) results(v dossier.Whole) {
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
	}
	for _, late := range v.LateResults {
		s.line("late", fmt.Sprintf("%s of attempt %d, at %s: handoff result %s --late", cmp.Or(late.Result.Status, protocol.Success), late.Attempt, explain.Instant(late.At), v.Ticket))
	}
}

// countOf is count, and nothing of none.
func countOf(n int, thing string) string {
	if n == 0 {
		return ""
	}
	return explain.Count(n, thing)
}

func (s *sheet) kin(v dossier.Whole) {
	s.section("Belongs to it")
	one := func(label string, k *dossier.Kin) {
		if k != nil {
			s.line(label, k.String())
		}
	}
	one("parent", v.Parent)
	if v.Group != nil && (v.Parent == nil || v.Group.Ticket != v.Parent.Ticket) {
		one("group", v.Group)
	}
	one("return of", v.ReturnOf)
	one("redrive of", v.RedriveOf)
	label := "handed off"
	if v.State.Aggregate != nil {
		label = "member"
	}
	for _, child := range v.Children[:min(len(v.Children), membersShown)] {
		s.line(fmt.Sprintf("%s %d", label, child.N), child.String())
	}
	if more := len(v.Children) - membersShown; more > 0 {
		s.line("", fmt.Sprintf("and %d more: handoff tree %s, or -o json", more, v.Ticket))
	}
	one("return", v.Return)
	if v.Return == nil {
		s.line("return", phrase(explain.Return(v.State.State)))
	}
	one("redriven as", v.RedrivenAs)
}

// stages is how long it has been where.
func (s *sheet) stages(v dossier.Stages, closed bool) {
	s.section("Time")
	whole := "in all"
	if !closed {
		whole = "so far"
	}
	for _, stage := range []struct {
		label string
		ms    int64
	}{
		{"in a queue", v.Queue}, {"claimed", v.Acknowledge}, {"at work", v.Work}, {"for answers", v.Answers}, {"put off", v.Deferred},
		{"for others", v.Children}, {"backing off", v.Backoff}, {"deciding", v.Deciding},
	} {
		if stage.ms > 0 {
			s.line(stage.label, explain.Millis(stage.ms))
		}
	}
	s.line(whole, explain.Millis(v.Whole))
}

// events is the history, with the details under their event where they are long.
func (s *sheet) events(changes []protocol.Change) {
	s.section("Events (UTC)")
	day := ""
	for _, c := range changes {
		for _, e := range c.Record.Events {
			at := e.When().UTC()
			stamp := at.Format("15:04:05.000")
			if today := at.Format(time.DateOnly); today != day {
				s.item(today)
				day = today
			}
			by, detail := explain.Event(e)
			s.item(fmt.Sprintf("%s %s%s%s", stamp, e.EventType(), explain.After(" by ", explain.By(by)), explain.After(": ", detail)))
		}
	}
}

// bodies are the package and the result as they are.
func (a *app) bodies(v dossier.Whole) error {
	if len(v.Package) > 0 {
		a.printf("\nPackage\n")
		if err := a.document(v.Package); err != nil {
			return err
		}
	}
	if v.Result == nil {
		return nil
	}
	body, err := json.Marshal(v.Result)
	if err != nil {
		return err
	}
	a.printf("\nWhole result\n")
	return a.document(body)
}

func clockUTC(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05Z") }
