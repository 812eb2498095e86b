package cli

import (
	"fmt"
	"strings"

	"github.com/agenthandoff/handoff/internal/brief"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// How "handoff show" reads to people: at 80 columns, in sections, the shortest
// answer first.

func (a *app) whole(v dossier.Handoff, full bool) error {
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

func (s *sheet) overview(v dossier.Handoff) {
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
	s.line("used", explain.Usage(state.Usage.Total()))
}

// handedOver is the package, with its context counted.
func (s *sheet) handedOver(v dossier.Handoff) {
	state := v.State.State
	s.section("Handed off")
	s.line("submitted", explain.Instant(state.SubmittedAt))
	s.line("type", string(state.Type))
	s.line("priority", string(state.Priority))
	s.line("deadline", explain.Instant(state.Deadline))
	s.line("workflow", state.WorkflowID)
	s.line("conversation", state.ConversationID)
	s.line("variant", state.Variant)
	s.line("complexity", explain.Complexity(state))
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

func (s *sheet) agents(v dossier.Handoff) {
	s.section("Agents")
	for _, way := range v.Hops {
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

func (s *sheet) attempts(v dossier.Handoff) {
	s.section("Attempts")
	for _, t := range v.Attempts {
		how := fmt.Sprintf("%s after %s%s", t.How, explain.Millis(t.TookMS), explain.After(": ", t.Words))
		if t.Ended.IsZero() {
			how = fmt.Sprintf("goes on, for %s so far", explain.Millis(t.TookMS))
		}
		s.item(fmt.Sprintf("%s %d. at %s, %s: %s", clockUTC(t.Began), t.N, t.Agent, explain.By(t.Holder), how))
	}
}
