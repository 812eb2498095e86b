package lifecycle

import (
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// What the attempts of a handoff use, as their holders report it.

// Spend records what an attempt has used so far. The step is empty where it has said so already.
func Spend(s p.State, holder string, usage p.Usage, source p.UsageSource, now time.Time) (Step, error) {
	if _, more := s.Usage.Add(s.Fence, usage); more.IsZero() {
		return Step{}, nil
	}
	return reported(s, &p.Spent{Meta: p.Meta{At: now, By: holder}, Fence: s.Fence, Usage: usage, Source: source})
}

// reported is a report from within the work. Where the budget has run out with it the holder is
// asked to stop, in the same append.
func reported(s p.State, report p.Event) (Step, error) {
	t, err := StepOf(s, report)
	if err == nil && t.State.Account != nil {
		err = t.add(stopAtBudget(&t.State, report.When())...)
	}
	return t, err
}

// chargeFirst begins the append of a result with what its attempt has used, so that what it hands
// off is granted from what is left then. A handoff without limits, or that hands nothing off, is
// charged with the result itself.
func chargeFirst(s p.State, usage *p.Usage, handOffs []Next, meta p.Meta) (Step, error) {
	if s.Account == nil || usage == nil || len(handOffs) == 0 {
		return Step{State: s}, nil
	}
	if _, more := s.Usage.Add(s.Fence, *usage); more.IsZero() {
		return Step{State: s}, nil
	}
	return StepOf(s, &p.Spent{Meta: meta, Fence: s.Fence, Usage: *usage, Source: p.UsageResult})
}

// use counts what an attempt says that it has used, beyond what it had said.
func use(s *p.State, fence uint64, usage *p.Usage) {
	if usage == nil || fence == 0 {
		return
	}
	var more p.Usage
	s.Usage, more = s.Usage.Add(fence, *usage)
	charge(s, more)
}

// useLast is use for the last that an attempt says: it has ended by itself, and no late result of it
// follows.
func useLast(s *p.State, fence uint64, usage *p.Usage) {
	use(s, fence, usage)
	s.Usage = s.Usage.Forget(fence)
}

func applySpent(s *p.State, e *p.Spent) error {
	use(s, e.Fence, &e.Usage)
	return nil
}

func staleSpent(s *p.State, e *p.Spent) string {
	if why := staleFence(s, e.Fence); why != "" {
		return why
	}
	if _, more := s.Usage.Add(e.Fence, e.Usage); more.IsZero() {
		return "the attempt has said that already"
	}
	return ""
}
