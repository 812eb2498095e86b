package lifecycle

import (
	"errors"
	"fmt"

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

// closeUnfinished closes a group whose time is over with the results received so far. A person's
// inbox names the unfinished members.
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

// groupOutcome returns the outcome of a group once it is certain, and an empty one before.
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

// ChildEnd returns the end of a child as its parent records it: the end of its chain.
func ChildEnd(child p.State) p.ChildClosed {
	end := endOf(child)
	closed := p.ChildClosed{N: child.N - 1, Outcome: end.Outcome, Vote: end.Vote}
	closed.Grant, closed.Commit = accountOfChild(child)
	return closed
}

// votesAgainst reports whether a member of a majority group has finished and votes no. It counts as
// a member that did not succeed.
func votesAgainst(s *p.State, child p.ChildClosed) bool {
	return s.Aggregate != nil && s.Aggregate.Mode == p.AggregateMajority && child.Vote == p.VoteNo
}

// isSuspended reports whether a handoff was suspended for children.
func isSuspended(s p.State) bool {
	return s.Phase == p.Conditional && s.Children != nil && s.Children.Awaited != ""
}

// marksChildren reports whether the ends of children are recorded: in an open group, in an open
// handoff to which they return, that was suspended for them or has an account, and until all have
// ended if they are cancelled.
func marksChildren(s p.State) bool {
	if s.Children == nil || s.Closed {
		return cancelsChildren(s)
	}
	open := s.Children.Made.Without(s.Children.Closed)
	return s.Aggregate != nil || isSuspended(s) || open != "" && (s.Account != nil || s.CancelChildren || open.And(s.Children.Returning) != "")
}

// cancelsChildren reports whether open children are to be cancelled.
func cancelsChildren(s p.State) bool {
	return s.Children != nil && s.Children.Made.Without(s.Children.Closed) != "" &&
		(s.CancelChildren || s.Closed && s.Aggregate != nil && s.Aggregate.CancelRest)
}

// FollowSource returns the next step of a handoff that awaits its source, by the state of its
// parent. It begins with the parent's completing append, and is dropped when the attempt that
// handed it off ends in another way.
func FollowSource(s, parent p.State, q Query) (Step, error) {
	meta := p.Meta{At: q.Now, By: By}
	switch {
	case s.Closed || s.Phase != p.AwaitingSource:
		return Step{}, nil
	case parent.Children == nil || !parent.Children.After.Has(s.N-1):
		return StepOf(s, closed(meta, p.OutcomeCancelled, reason{code: ReasonSourceEnded}, ""))
	case !parent.Closed:
		return Step{}, nil
	}
	t, err := StepOf(s, &p.SourceCompleted{Meta: meta})
	if err != nil {
		return t, err
	}
	if s.StartAt.After(q.Now) {
		err = t.add(firstOffer(t.State, q, meta)...)
		return t, err
	}
	q = q.withBreakers()
	routing, unrouted := routeTarget(s.Summary, q)
	mark, _, _ := q.lets(routing.Choice, s.Ticket)
	switch {
	case errors.Is(unrouted, errBreakerOpen) || mark == p.BreakerProbe: // a supervisor finds that the breaker lets it through
	case unrouted != nil:
		err = t.add(undelivered(t.State, q, meta, unrouted.Error())...)
	default:
		err = t.add(offerOrGate(&s, q, meta, offerTo{agent: routing.Choice, reason: OfferSubmitted, routing: &routing})...)
	}
	return t, err
}

// A chain is the handoffs that follow from one by goto. Its end is the end of the last one. The
// first one keeps its duties to its source or parent until the chain has ended, and then reports
// that end once. The others have no such duties.

// GoesOn reports whether a handoff has closed and continues as another handoff of its chain.
func GoesOn(s p.State) bool { return s.Closed && s.Children != nil && s.Children.Next != 0 }

// NextInChain returns the ticket of the handoff as which s continues.
func NextInChain(s p.State) (ticket string, ok bool) {
	if !GoesOn(s) {
		return "", false
	}
	return s.ChildTicket(s.Children.Next - 1), true
}

// owesEnd reports whether a source or a parent receives the end of a handoff.
func owesEnd(s p.State) bool {
	return s.ReturnOf == "" && (s.ReturnExpected || s.Parent != "" && s.N > 0 && (s.Group != "" || s.Wait != ""))
}

// beginsChain reports whether a source or a parent receives the end of the chain that begins with a
// handoff.
func beginsChain(s p.State) bool { return owesEnd(s) && s.EndOf != p.ReturnOfHandoff }

// AwaitsChain reports whether a closed handoff has yet to learn and report the end of its chain.
func AwaitsChain(s p.State) bool { return GoesOn(s) && s.ChainEnd == nil && beginsChain(s) }

// HasEnded reports whether the end of a handoff is known, as its source or its parent receives it.
func HasEnded(s p.State) bool { return s.Closed && !AwaitsChain(s) }

// endOf returns the end of a handoff as its source or its parent receives it: the end of its chain
// if known, else its own.
func endOf(s p.State) p.ChainEnd {
	if s.ChainEnd != nil {
		return *s.ChainEnd
	}
	end := p.ChainEnd{Ticket: s.Ticket, Agent: s.Agent, Outcome: s.Outcome, Vote: s.Vote}
	if s.Account != nil && s.ChainOf != "" {
		end.Left = Available(s)
		if keepsRest(&s) { // except for overruns
			end.Left = end.Left.Minus(end.Left.Max(p.Amounts{}))
		}
	}
	return end
}

// NotifiesChain reports whether a handoff ends a chain that another one began, which must learn of
// it.
func NotifiesChain(s p.State) bool { return s.Closed && s.ChainOf != "" && !GoesOn(s) }

// continueChain makes the summary of a child part of the chain of parent: its end is the chain's
// end, and the return's clock continues.
func continueChain(child *p.Summary, parent p.State) {
	switch {
	case parent.ChainOf != "":
		child.ChainOf = parent.ChainOf
	case beginsChain(parent):
		child.ChainOf = parent.Ticket
	default:
		return
	}
	child.ReturnFrom = parent.ReturnSince
	child.Overrides.ReturnTimeoutMS, child.Overrides.OnReturnTimeout = parent.Overrides.ReturnTimeoutMS, parent.Overrides.OnReturnTimeout
}

// EndChain records the end of the chain that a handoff began, and sends its return. last is the
// last handoff of the chain. The step is empty if last has not closed, or the end is already known.
func EndChain(s p.State, q Query, last p.State) (Step, error) {
	if !AwaitsChain(s) || !last.Closed || GoesOn(last) {
		return Step{}, nil
	}
	return decideAfter(s, q, &p.ChainEnded{Meta: p.Meta{At: q.Now, By: By}, End: endOf(last)})
}

func applyChainEnded(s *p.State, e *p.ChainEnded) error {
	if !AwaitsChain(*s) || e.End.Ticket == "" || e.End.Outcome == "" {
		return fmt.Errorf("%w: its chain ended as %+v, and it awaits none", ErrIllegal, e.End)
	}
	end := e.End
	s.ChainEnd = &end
	return nil
}

// stepClosed sends the return of a closed handoff if its source is an agent of the directory; any
// other source reads it by ticket.
func stepClosed(s p.State, d *Directory, meta p.Meta) []p.Event {
	if !hasReturnDue(s) || s.ReturnTicket != "" || wakesParent(s) || !servesQueue(s.Source, d) {
		return nil
	}
	return []p.Event{&p.ReturnSent{Meta: meta, Ticket: p.ReturnTicket(s.Ticket), To: s.Source}}
}

// hasReturnDue reports whether the source or the parent of a closed handoff has yet to receive its
// end. A return expects none; a rollback does.
func hasReturnDue(s p.State) bool {
	return HasEnded(s) && s.ReturnedAt.IsZero() && s.ReturnOf == "" && (s.ReturnExpected || s.Outcome == p.OutcomeRolledBack || wakesParent(s))
}

// isChild reports whether another handoff has handed this one off.
func isChild(s p.State) bool { return s.Parent != "" && s.N > 0 }

// wakesParent reports whether the end of a child returns to its parent, with the parent's next
// claim, while the parent is open.
func wakesParent(s p.State) bool { return s.Wait == p.WaitBlock && isChild(s) }

// ComesBack reports whether the end of a closed child waits for the next worker of its parent.
func ComesBack(s p.State) bool { return wakesParent(s) && endsUnsent(s) }

// endsUnsent reports whether the end of a child is due and has not been sent to its source.
func endsUnsent(s p.State) bool { return hasReturnDue(s) && s.ReturnTicket == "" && isChild(s) }

// SettleChild decides where the end of a child is delivered. It stays with its parent while the
// parent is open, or once a worker of the parent has received it. Otherwise it goes to the queue of
// its source, or to the inbox of a person if the source has no queue. A zero parent no longer
// exists. The step is empty if nothing is to be recorded.
func SettleChild(s, parent p.State, q Query) (Step, error) {
	meta := p.Meta{At: q.Now, By: By}
	switch {
	case !endsUnsent(s):
		return Step{}, nil
	case wakesParent(s) && parent.Children != nil && parent.Children.Received.Has(s.N-1):
		return StepOf(s, &p.Returned{Meta: meta, Delivered: true})
	case wakesParent(s) && parent.Ticket != "" && !parent.Closed:
		return Step{}, nil
	case servesQueue(s.Source, q.Directory):
		return StepOf(s, &p.ReturnSent{Meta: meta, Ticket: p.ReturnTicket(s.Ticket), To: s.Source})
	}
	return StepOf(s, &p.Returned{Meta: meta, Reason: "its source serves no queue", Inbox: p.Human})
}

// servesQueue reports whether a return can be delivered to a source: it is an agent of the
// directory that takes handoffs.
func servesQueue(source string, d *Directory) bool {
	profile, known := d.Agent(source)
	return known && source != p.Human && profile.Accepts()
}

// ReturnSettled reports whether the return of a closed handoff is final, with the source as in d:
// it has arrived, was given up, is not expected, or waits to be read by its ticket because the
// source has no queue.
func ReturnSettled(s p.State, d *Directory) bool {
	if !hasReturnDue(s) {
		return HasEnded(s) || s.Closed && !s.ReturnExpected
	}
	return s.ReturnTicket == "" && !isChild(s) && !servesQueue(s.Source, d)
}

// sourceInbox returns the inbox that lists a return: a person's, if the source has no queue.
func sourceInbox(s p.State, d *Directory) string {
	return personIf(!servesQueue(s.Source, d))
}
