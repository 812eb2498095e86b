package brief

import (
	"cmp"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// instant is the format of times in a brief.
const instant = "2006-01-02 15:04:05 UTC"

// bounded are the limits in a brief, with the words for the remaining amount.
var bounded = []struct{ dimension, words string }{
	{"max_tokens", "%d tokens are left"}, {"max_handoffs", "%d further handoffs are left"},
}

// Iterations returns the iterations that a package allows, or iterationsDefault.
func Iterations(p *protocol.Package) int {
	return cmp.Or(p.Expectations.MaxIterations, iterationsDefault)
}

func (w *writer) constraints(p *protocol.Package, s protocol.State) {
	w.section("Constraints")
	if !s.Deadline.IsZero() {
		w.printf("- Be done by %s.\n", s.Deadline.UTC().Format(instant))
	}
	left := lifecycle.Available(s)
	for _, of := range bounded {
		if _, is := s.Limits.Of(of.dimension); is && s.Account != nil {
			w.printf("- "+of.words+" for it, and for all that you hand off.\n", max(0, left.Of(of.dimension)))
		}
	}
	if _, is := s.Limits.Of("max_cost_micros"); is && s.Account != nil {
		w.printf("- %.2f of the budget is left for it, and for all that you hand off.\n", float64(max(0, left.CostMicros))/1e6)
	}
	w.printf("- At most %d iterations.\n", Iterations(p))
	if b := p.AutonomyBudget; b != nil && b.MaxRisk != "" {
		w.printf("- Decide alone up to a risk of %s; ask about higher risks.\n", b.MaxRisk)
	}
	w.list(p.Context.Constraints)
	for _, f := range p.Context.FilesInProgress {
		if f.Owner != s.Agent {
			w.item("Do not change, "+cmp.Or(oneLine(f.Owner), "another")+" works on it", f.Path)
		}
	}
}

func (w *writer) expected(p *protocol.Package) {
	w.section("Expected Output")
	if len(p.Expectations.OutputSchema) == 0 {
		w.write("Your answer as text, or as JSON where the task asks for it.\n")
		return
	}
	w.write("JSON that meets this schema, and nothing around it:\n\n" + fenced(p.Expectations.OutputSchema))
}

func (w *writer) stuck(p *protocol.Package) {
	w.section("If You Get Stuck")
	w.list(p.Context.WhenStuck)
	w.write("- Answer with what you have, as a partial result, and name the missing parts.\n" +
		"- If the task is not for you, refuse it with the reason: another agent gets it.\n" +
		"- If you need something that only the source knows, ask for it.\n" +
		"- If it is beyond your authority, escalate it.\n")
}
