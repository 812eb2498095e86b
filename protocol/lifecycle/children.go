package lifecycle

import (
	"errors"
	"fmt"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// stepGroup closes a group as soon as its outcome is certain.
func stepGroup(s p.State, meta p.Meta) []p.Event {
	outcome, facts := groupOutcome(s)
	switch {
	case outcome == "", outcome == p.OutcomeFailed && hasPassed(meta.At, Deadline(s)): // the deadline lists its members
		return nil
	case outcome == p.OutcomeSuccess:
		return []p.Event{closed(meta, outcome, reason{ReasonAggregated, facts}, "")}
	}
	return []p.Event{closed(meta, outcome, reason{ReasonAggregation, facts}, "")}
}

// unfinishedNamed is how many unfinished members the message of a group names; its facts have all.
const unfinishedNamed = 50

// closeUnfinished closes a group whose time is over with the results that it has. A person's inbox
// names the members that were not finished.
func closeUnfinished(s p.State, meta p.Meta, why reason) p.Event {
	_, facts := groupOutcome(s)
	facts.LimitMS, facts.Unfinished = why.facts.LimitMS, s.Children.Made.Without(s.Children.Closed).Numbers()
	end := closed(meta, p.OutcomeTimeout, reason{why.code, facts}, p.Human)
	for i, n := range facts.Unfinished {
		switch {
		case i == 0:
			end.Message += "; not finished: "
		case i == unfinishedNamed:
			end.Message += fmt.Sprintf(" and %d more", len(facts.Unfinished)-i)
			return end
		default:
			end.Message += ", "
		}
		end.Message += fmt.Sprintf("member %d (%.8s)", n+1, p.ChildTicketN(s.Ticket, n))
	}
	return end
}

// groupOutcome is the outcome of a group once it is certain; nothing before.
func groupOutcome(s p.State) (outcome p.Outcome, facts p.Facts) {
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
	return outcome, p.Facts{Count: succeeded, Limit: size, Failed: failed,
		Cancelled: counted.And(s.Children.Cancelled).Len(), Mode: s.Aggregate.Mode}
}

// ChildEnd is the end of a child as its parent records it: that of its chain.
func ChildEnd(child p.State) p.ChildClosed {
	end := endOf(child)
	closed := p.ChildClosed{N: child.N - 1, Outcome: end.Outcome, Vote: end.Vote}
	closed.Grant, closed.Commit = accountOfChild(child)
	return closed
}

// votesAgainst tells whether a member that has done its work says no to what a majority is
// asked for. It counts as one that did not succeed.
func votesAgainst(s *p.State, child p.ChildClosed) bool {
	return s.Aggregate != nil && s.Aggregate.Mode == p.AggregateMajority && child.Vote == p.VoteNo
}

// isSuspended tells whether a handoff was suspended for children.
func isSuspended(s p.State) bool {
	return s.Phase == p.Conditional && s.Children != nil && s.Children.Awaited != ""
}

// marksChildren reports whether the ends of children are recorded: in an open group, in an open
// handoff to which they come back, that was suspended for them or has an account, and until all have
// ended where they are cancelled.
func marksChildren(s p.State) bool {
	if s.Children == nil || s.Closed {
		return cancelsChildren(s)
	}
	open := s.Children.Made.Without(s.Children.Closed)
	return s.Aggregate != nil || isSuspended(s) || open != "" && (s.Account != nil || s.CancelChildren || open.And(s.Children.Returning) != "")
}

// cancelsChildren tells whether children that are open shall be cancelled.
func cancelsChildren(s p.State) bool {
	return s.Children != nil && s.Children.Made.Without(s.Children.Closed) != "" &&
		(s.CancelChildren || s.Closed && s.Aggregate != nil && s.Aggregate.CancelRest)
}

// FollowSource returns what happens to a handoff that awaits its source, as its parent
// stands: it begins with the parent's completing append, and is dropped when the
// attempt that handed it off ended in another way.
func FollowSource(s, parent p.State, d *Directory, now time.Time) (Step, error) {
	meta := p.Meta{At: now, By: By}
	switch {
	case s.Closed || s.Phase != p.AwaitingSource:
		return Step{}, nil
	case parent.Children == nil || !parent.Children.After.Has(s.N-1):
		return StepOf(s, closed(meta, p.OutcomeCancelled, reason{code: ReasonSourceEnded}, ""))
	case !parent.Closed:
		return Step{}, nil
	}
	begun := &p.SourceCompleted{Meta: meta}
	d = d.At(now)
	routing, err := routeTarget(s.Summary, d)
	if mark, _, _ := d.lets(routing.Choice, s.Ticket); errors.Is(err, errBreakerOpen) || mark == p.BreakerProbe {
		return StepOf(s, begun) // a supervisor finds that the breaker lets it through
	}
	if err != nil {
		t, illegal := StepOf(s, begun)
		if illegal == nil {
			illegal = t.add(undelivered(t.State, d, meta, err.Error())...)
		}
		return t, illegal
	}
	return StepOf(s, append([]p.Event{begun}, offerOrGate(&s, d, meta, offerTo{agent: routing.Choice, reason: OfferSubmitted, routing: &routing})...)...)
}
