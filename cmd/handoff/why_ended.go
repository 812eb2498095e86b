package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// closed: how it ended, and what became of that.
func (t *teller) closed() {
	s := t.state
	t.waits(waitsNothing)
	t.say("%s.", t.ended())
	if s.CancelReason != "" && s.CancelReason != s.Message {
		t.say("%s had asked for its end: %s.", sentence(person(cmp.Or(s.CancelBy, "somebody"))), quoted(s.CancelReason))
	}
	switch {
	case s.ReturnOf != "":
	case s.ReturnTicket == "" && s.ReturnedAt.IsZero():
		if s.ReturnExpected || s.Outcome == protocol.OutcomeRolledBack {
			t.command("handoff result "+s.Ticket+" --return", "see what "+person(s.Source)+" is to know of it")
		}
	case s.Phase == protocol.PhaseReturned && !s.ReturnedAt.IsZero():
		t.say("%s has taken in how it ended, %s.", sentence(person(s.Source)), t.at(s.ReturnedAt))
	case !s.ReturnedAt.IsZero():
		t.say("%s could not be told how it ended.", sentence(person(s.Source)))
		t.command("handoff result "+s.Ticket+" --return", "see what it would have been told")
	default:
		t.say("%s has still to take in how it ended: that waits for it as handoff %s.", sentence(person(s.Source)), s.ReturnTicket)
		t.command("handoff why "+s.ReturnTicket, "see why it has not")
	}
	if lifecycle.DutiesOf(s).CancelChildren {
		t.say("What it had handed on is being cancelled: %s to go.", count(s.Children.Made.Without(s.Children.Closed).Len(), "handoff"))
	}
	if s.RedrivenAs != "" {
		t.say("It was submitted again, as %s.", s.RedrivenAs)
		t.command("handoff why "+s.RedrivenAs, "see what became of that")
	}
	if s.Inbox != "" {
		t.say("It stays in the inbox of %s (handoff inbox) until somebody deals with it.", person(s.Inbox))
		t.command("handoff dead redrive "+s.Ticket, "submit it again")
		t.command("handoff dismiss "+s.Ticket, "leave it at that")
	}
	if s.Reason != lifecycle.ReasonCancelled && lifecycle.DeadLetter(s) {
		t.say("It is among the dead letters.")
		t.command("handoff dead show "+s.Ticket, "see its end, its trail and its package")
	}
}

// ended is a closed handoff in a sentence.
func (t *teller) ended() string {
	s := t.state
	how := map[protocol.Outcome]string{
		protocol.OutcomeSuccess: "It succeeded", protocol.OutcomePartial: "It succeeded in part", protocol.OutcomeFailed: "It failed",
		protocol.OutcomeTimeout: "It ran out of time", protocol.OutcomeRejected: "Nobody took it",
		protocol.OutcomeCancelled: "It was cancelled", protocol.OutcomeRolledBack: "It went back to " + person(s.Source) + " undone",
	}[s.Outcome]
	text := fmt.Sprintf("%s %s, %s after it was submitted", how, t.at(s.ClosedAt), spoken(s.ClosedAt.Sub(s.SubmittedAt)))
	switch message := plain(s.Message); {
	case s.Reason == "late_result":
		return text + ": the result of " + person(s.Agent) + " came late and was used"
	case (s.Outcome == protocol.OutcomeSuccess || s.Outcome == protocol.OutcomePartial) && s.Aggregate == nil:
		return text + ": " + person(s.Agent) + " completed it"
	case s.Reason == "cancelled":
		_, more, found := strings.Cut(message, "; ")
		if !found {
			return text
		}
		return text + ": " + more
	case message != "":
		return text + ": " + strings.TrimSuffix(message, ".")
	}
	return text
}
