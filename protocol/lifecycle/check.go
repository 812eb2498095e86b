package lifecycle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Check tells whether the state after an append is one that can be, and can follow the one
// before. That is the zero State before a first append. Its error is a bug of a writer.
// Verification uses it; nothing is decided by it. Which events led from one to the other
// Apply knows.
func Check(before, after p.State, now time.Time) error {
	if err := checkShape(before, after); err != nil {
		return err
	}
	if err := checkGate(after); err != nil {
		return err
	}
	if err := checkQuestions(after); err != nil {
		return err
	}
	if err := checkBids(before, after); err != nil {
		return err
	}
	if err := checkOffer(before, after); err != nil {
		return err
	}
	if err := checkAccount(before, after); err != nil {
		return err
	}
	if before.Closed {
		if err := checkAfterEnd(before, after); err != nil {
			return err
		}
	}
	if after.Closed {
		return checkClosed(after, now)
	}
	return checkOpen(after, now)
}

// checkShape: the parts of a state agree.
func checkShape(before, s p.State) error {
	held := s.Phase == p.PhaseAccepted || s.Phase == p.Working
	switch {
	case s.Closed && (s.Outcome == "" || s.ClosedAt.IsZero() || s.Held() || s.Reason == "" && !s.ReturnedAt.After(s.ClosedAt) && s.Phase != p.Complete && s.Phase != p.PhaseReturned):
		return fmt.Errorf("closed without an outcome, an instant or a reason, or with a holder")
	case s.Closed && closedPhase[s.Outcome] != s.Phase && (s.Phase != p.PhaseReturned || s.ReturnedAt.IsZero()):
		return fmt.Errorf("closed as %s in %s", s.Outcome, s.Phase)
	case !s.Closed && (s.Outcome != "" || s.Phase == p.Complete || s.Phase == p.Cancelled || s.Phase == p.PhaseReturned):
		return fmt.Errorf("open in %s with outcome %q", s.Phase, s.Outcome)
	case !s.Closed && (s.ReturnTicket != "" || s.ChainEnd != nil || !s.ReturnedAt.IsZero() || s.RedrivenAs != "" || s.Inbox != ""):
		return fmt.Errorf("open, and its end is spoken of")
	case held != (s.Fence != 0), held && !s.Held(), s.Held() && !held && s.Phase != p.Pending:
		return fmt.Errorf("held by %q with fence %d in %s", s.Holder, s.Fence, s.Phase)
	case isClaimed(s) && s.ClaimedAt.IsZero(), !isClaimed(s) && s.AckWithinMS != 0:
		return fmt.Errorf("claimed by %q at %s, to be acknowledged within %d ms, in %s", s.Holder, s.ClaimedAt, s.AckWithinMS, s.Phase)
	case !before.Usage.Total().Beyond(s.Usage.Total()).IsZero():
		return fmt.Errorf("used %+v, and before that %+v", s.Usage, before.Usage)
	case s.Usage != nil && len(s.Usage.Attempts) > p.AttemptsUsageMax:
		return fmt.Errorf("remembers the usage of %d attempts", len(s.Usage.Attempts))
	case s.UpdatedAt.Before(before.UpdatedAt):
		return fmt.Errorf("went back in time")
	case s.Attempt < 0 || s.AttemptsTotal < s.Attempt || held && s.Attempt < 1:
		return fmt.Errorf("attempt %d of %d in all", s.Attempt, s.AttemptsTotal)
	case s.EscalationLevel != authorityLevel(&s):
		return fmt.Errorf("level %d, chain %s", s.EscalationLevel, s.Chain)
	case s.Aggregate != nil && (s.Held() || s.Agent != "" || s.Offer != 0 || s.AttemptsTotal != 0):
		return fmt.Errorf("a group with agent %q, holder %q, offer %d", s.Agent, s.Holder, s.Offer)
	case s.Children != nil && (s.Children.Closed.Without(s.Children.Made) != "" || s.Children.Succeeded.Without(s.Children.Closed) != "" ||
		s.Children.Cancelled.Without(s.Children.Closed) != "" || s.Children.Cancelled.And(s.Children.Succeeded) != "" ||
		s.Children.Awaited.Without(s.Children.Made) != "" || s.Children.Returning.Without(s.Children.Made) != "" || s.Children.Received.Without(s.Children.Closed) != "" || s.Children.After.Without(s.Children.Made) != "" || s.Children.After.And(s.Children.Awaited) != "" || s.Children.Undelivered.Without(s.Children.Made) != "" || s.Children.Made.Len() > s.Children.Count):
		return fmt.Errorf("children %+v", *s.Children)
	case s.Children != nil && s.Children.After != "" && s.Closed && s.Outcome != p.OutcomeSuccess && s.Outcome != p.OutcomePartial:
		return fmt.Errorf("closed as %s, and children begin with its result", s.Outcome)
	case GoesOn(s) && (s.Outcome != p.OutcomeSuccess && s.Outcome != p.OutcomePartial || !s.Children.Made.Has(s.Children.Next-1)):
		return fmt.Errorf("closed as %s, and its chain goes on with child %d", s.Outcome, s.Children.Next-1)
	case AwaitsChain(s) && (s.ReturnTicket != "" || !s.ReturnedAt.IsZero()):
		return fmt.Errorf("its return is spoken of, and its chain has not ended")
	case IsProbing(s) && s.Phase != p.Pending && !held:
		return fmt.Errorf("a probe in %s", s.Phase)
	case s.Phase == p.AwaitingSource && (!s.AwaitsSource || s.Held() || s.Offer != 0):
		return fmt.Errorf("awaits its source, with holder %q and offer %d", s.Holder, s.Offer)
	case s.Children != nil && s.Children.Awaited != "" && s.Phase != p.Conditional:
		return fmt.Errorf("waits for children in %s", s.Phase)
	case len(s.LateFences) > p.LateResultsMax || slices.Contains(s.LateFences, s.Fence) && s.Fence != 0:
		return fmt.Errorf("late results of %d, fence %d", s.LateFences, s.Fence)
	}
	return nil
}

// checkOffer: an offer that has ended is never offered again. A queue may drop it.
func checkOffer(before, after p.State) error {
	if OfferStands(after) && !OfferStands(before) && before.Offer != 0 && after.Offer == before.Offer {
		return fmt.Errorf("offer %d stands again, which had ended", after.Offer)
	}
	return nil
}

// checkAfterEnd: once closed, nothing changes but what is told of the end.
func checkAfterEnd(before, after p.State) error {
	if after.Phase != before.Phase && after.Phase != p.PhaseReturned {
		return fmt.Errorf("went from %s to %s after it closed", before.Phase, after.Phase)
	}
	if b, a := before.Children, after.Children; b != nil && a != nil &&
		(a.Made != b.Made || a.Count != b.Count || a.Awaited != b.Awaited || a.Returning != b.Returning || a.Received != b.Received || a.Dropped != b.Dropped || a.Asked != b.Asked || a.Keys != b.Keys || a.After != b.After || a.Next != b.Next || a.Undelivered != b.Undelivered || b.Closed.Without(a.Closed) != "" || b.Succeeded.Without(a.Succeeded) != "" || b.Cancelled.Without(a.Cancelled) != "") {
		return fmt.Errorf("children %+v became %+v after it closed", *b, *a)
	}
	if before.ChainEnd != nil && (after.ChainEnd == nil || *after.ChainEnd != *before.ChainEnd) {
		return fmt.Errorf("its chain ended as %+v, and then as %+v", *before.ChainEnd, after.ChainEnd)
	}
	for _, s := range []*p.State{&before, &after} {
		s.Phase, s.Children, s.UpdatedAt, s.Inbox, s.RedrivenAs = "", nil, p.Time{}, "", ""
		s.ReturnTicket, s.ReturnedAt, s.PrevHash, s.ChainEnd, s.BidAnswer = "", p.Time{}, "", nil, ""
		s.LateFences, s.LateSeq, s.LateStatus, s.LateVote, s.LateSetAside, s.Usage = nil, 0, "", "", "", nil
	}
	if reflect.DeepEqual(before, after) {
		return nil
	}
	was, err := json.Marshal(before) // what was read and what was made differ in what is empty
	if err != nil {
		return err
	}
	is, err := json.Marshal(after)
	if err != nil {
		return err
	}
	if !bytes.Equal(was, is) {
		return fmt.Errorf("changed after it closed:\n%s\n%s", was, is)
	}
	return nil
}

// checkClosed: a closed handoff has no wake-up and stands in no queue, and owes
// what it can pay.
func checkClosed(s p.State, now time.Time) error {
	duties := DutiesOf(s)
	switch {
	case duties.Offer || duties.WakeUp || !Wake(s).IsZero() || !NextReconcile(s, now).IsZero():
		return fmt.Errorf("closed, with duties %+v", duties)
	case duties.Return && !s.ReturnedAt.IsZero(), (duties.Return || duties.CancelChildren) && !HasPendingDuties(s):
		return fmt.Errorf("closed, owes %t, with duties %+v", HasPendingDuties(s), duties)
	case duties.Chain && !HasPendingDuties(s), duties.Chain && duties.Return:
		return fmt.Errorf("waits for its chain, with duties %+v", duties)
	case duties.Bids, duties.BidAnswer && !HasPendingDuties(s):
		return fmt.Errorf("closed, and waits for bids or for the answer to one, with duties %+v", duties)
	case duties.CancelChildren && !duties.Mark:
		return fmt.Errorf("children are cancelled, and their ends not recorded")
	}
	return nil
}

// checkOpen: every open handoff has what brings it on, and in time.
func checkOpen(s p.State, now time.Time) error {
	next, clock := NextReconcile(s, now), wakeAfter(s, now)
	duties, lapses := DutiesOf(s), ClaimDue(s)
	switch {
	case lapses.After(now) && next.After(lapses) && !s.CancelRequested:
		return fmt.Errorf("claimed, and next looked at %s after the time to acknowledge", next.Sub(lapses))
	case !duties.WakeUp || !next.After(now):
		return fmt.Errorf("open, and never looked at again")
	case !clock.IsZero() && next.After(clock):
		return fmt.Errorf("next looked at %s after a clock runs out", next.Sub(clock))
	case duties.Offer != (s.Phase == p.Pending && !s.Held() && s.Offer != 0), duties.Return:
		return fmt.Errorf("duties %+v in %s", duties, s.Phase)
	case (s.Aggregate != nil || isSuspended(s)) && !duties.Mark:
		return fmt.Errorf("waits for children, and no supervisor records their ends")
	case Deadline(s).After(now) && next.After(Deadline(s)):
		return fmt.Errorf("next looked at %s after the deadline", next.Sub(Deadline(s)))
	case Wake(s).IsZero():
		return fmt.Errorf("open, and never wakes")
	}
	return nil
}
