package explain

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// closed explains the end of a handoff, and whether its return, its children and its inbox entry
// still need attention.
func (x *explainer) closed() {
	s := x.State
	x.say("%s.", x.ended())
	if s.CancelReason != "" && s.CancelReason != s.Message {
		x.say("%s had asked for its end: %s.", sentence(Person(cmp.Or(s.CancelBy, unknownCaller))), quoted(s.CancelReason))
	}
	x.handedOn()
	x.limits()
	if s.SetAside != "" {
		x.say("Not all of its output is its result: %s.", s.SetAside)
	}
	if tickets := undelivered(s); len(tickets) > 0 {
		x.say("%s.", undeliveredWords(s))
		x.suggest("see where that is", OpWhy, "ticket", tickets[0])
	}
	if malformed(s) {
		x.say("Its result is malformed, and is kept.")
		x.suggest("read the malformed result", OpResult, "ticket", s.Ticket)
	}
	switch {
	case s.ReturnOf != "":
	case s.ReturnExpected && lifecycle.AwaitsChain(s):
		x.say("%s gets the end of that chain.", sentence(Person(s.Source)))
	case lifecycle.ComesBack(s):
		x.say("The next worker of %s, which handed it off, gets its end.", s.Parent)
	case s.ReturnTicket == "" && s.ReturnedAt.IsZero():
		if s.ReturnExpected || s.Outcome == protocol.OutcomeRolledBack {
			x.suggest("see the return for "+Person(s.Source), OpReturn, "ticket", s.Ticket)
		}
	case s.Phase == protocol.PhaseReturned && !s.ReturnedAt.IsZero() && s.ReturnTicket == "" && s.N > 0:
		x.say("The worker of %s, which handed it off, got its end %s.", s.Parent, x.at(s.ReturnedAt))
	case s.Phase == protocol.PhaseReturned && !s.ReturnedAt.IsZero():
		x.say("%s has received its return, %s.", sentence(Person(s.Source)), x.at(s.ReturnedAt))
	case !s.ReturnedAt.IsZero():
		x.say("%s could not receive its return.", sentence(Person(s.Source)))
		x.suggest("see that return", OpReturn, "ticket", s.Ticket)
	default:
		x.say("%s has not received its return yet: it waits as handoff %s.", sentence(Person(s.Source)), s.ReturnTicket)
		x.suggest("see why it has not", OpWhy, "ticket", s.ReturnTicket)
	}
	if lifecycle.DutiesOf(s).CancelChildren {
		open := s.Children.Made.Without(s.Children.Closed).Len()
		x.say("Its children are being cancelled; %s still open.", Is(Count(open, "handoff"), open))
	}
	if s.RedrivenAs != "" {
		x.say("It was submitted again, as %s.", s.RedrivenAs)
		x.suggest("see how that is", OpWhy, "ticket", s.RedrivenAs)
	}
	if s.Inbox != "" {
		until := "redriven or dismissed"
		if lifecycle.CheckRedrive(s) != nil {
			until = "dismissed"
		}
		x.say("It stays in the inbox of %s until it is %s.", Person(s.Inbox), until)
		x.suggest("see that inbox", OpInbox, "agent", s.Inbox)
		x.addActions(reviewActions(s)...)
	}
	if s.Reason != lifecycle.ReasonCancelled && lifecycle.DeadLetter(s) {
		x.say("It is among the dead letters.")
		x.suggest("see its end, its trail and its package", OpDead, "ticket", s.Ticket)
	}
}

// ended returns how, when and why a closed handoff ended, as one sentence.
func (x *explainer) ended() string {
	s := x.State
	how := map[protocol.Outcome]string{
		protocol.OutcomeSuccess: "It succeeded", protocol.OutcomePartial: "It succeeded in part", protocol.OutcomeFailed: "It failed",
		protocol.OutcomeTimeout: "It ran out of time", protocol.OutcomeRejected: "No agent took it",
		protocol.OutcomeCancelled: "It was cancelled", protocol.OutcomeRolledBack: "It went back to " + Person(s.Source) + " undone",
	}[s.Outcome]
	if s.Reason == lifecycle.ReasonDenied {
		how = "It was denied"
	}
	text := fmt.Sprintf("%s %s, %s after it was submitted", how, x.at(s.ClosedAt), Spoken(Took(s.SubmittedAt, s.ClosedAt)))
	switch message := plain(s.Message); {
	case s.Reason == "late_result":
		return text + ": the result of " + Person(s.Agent) + " came late and was used"
	case (s.Outcome == protocol.OutcomeSuccess || s.Outcome == protocol.OutcomePartial) && s.Aggregate == nil:
		return text + ": " + Person(s.Agent) + " completed it"
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
