package lifecycle

import (
	"fmt"

	p "github.com/agenthandoff/handoff/protocol"
)

// stepGroup closes a group as soon as its outcome is certain (document 1 §2.3).
func stepGroup(s p.State, meta p.Meta) []p.Event {
	outcome, message := groupOutcome(s)
	switch outcome {
	case "":
		return nil
	case p.OutcomeSuccess:
		return []p.Event{closed(meta, outcome, "aggregated", message)}
	}
	return []p.Event{closed(meta, outcome, "aggregation", message)}
}

// groupOutcome is the outcome of a group once it is certain; nothing before.
func groupOutcome(s p.State) (outcome p.Outcome, message string) {
	counted := s.Aggregate.Counted
	if counted == "" {
		counted = s.Children.Made
	}
	size := counted.Len()
	succeeded := counted.And(s.Children.Succeeded).Len()
	failed := counted.And(s.Children.Closed).Len() - succeeded
	needed := size
	switch s.Aggregate.Mode {
	case p.AggregateAny:
		needed = min(1, size)
	case p.AggregateMajority:
		needed = size/2 + 1
	}
	switch {
	case succeeded >= needed:
		outcome = p.OutcomeSuccess
	case size-failed < needed:
		outcome = p.OutcomeFailed
	}
	return outcome, fmt.Sprintf("%d of %d succeeded, %d did not; %s was asked for", succeeded, size, failed, s.Aggregate.Mode)
}

// awaits tells whether a handoff was suspended for children.
func awaits(s p.State) bool {
	return s.Phase == p.Conditional && s.Children != nil && s.Children.Awaited != ""
}

// marksChildren tells whether the ends of children are recorded: in an open
// group, in a handoff that was suspended for them, and until all have ended
// where they are cancelled.
func marksChildren(s p.State) bool {
	return !s.Closed && s.Aggregate != nil && s.Children != nil || awaits(s) || cancelsChildren(s)
}

// cancelsChildren tells whether children that are open shall be cancelled.
func cancelsChildren(s p.State) bool {
	return s.Children != nil && s.Children.Made.Without(s.Children.Closed) != "" &&
		(s.CancelChildren || s.Closed && s.Aggregate != nil && s.Aggregate.CancelRest)
}
