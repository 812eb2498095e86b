package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// The functions of this file write a state for people, from the state alone.

// Phase writes the phase with its dimensions: closed or not, escalated, asked to stop.
func Phase(s protocol.State) string {
	word := string(s.Phase)
	if s.Closed {
		return fmt.Sprintf("%s (%s)", word, s.Outcome)
	}
	if s.EscalationLevel > 0 {
		word += fmt.Sprintf(", escalated to level %d", s.EscalationLevel)
	}
	switch {
	case s.CancelRequested && s.CancelReturn:
		word += ", return requested"
	case s.CancelRequested:
		word += ", cancel requested"
	}
	return word
}

// WaitingFor says in words what has to happen next.
func WaitingFor(s protocol.State) string {
	switch {
	case s.Closed:
		return "nothing: it is closed"
	case s.CancelRequested && s.Held():
		return fmt.Sprintf("the worker of %s to stop", s.Agent)
	case s.Aggregate != nil && s.Children != nil && s.Phase == protocol.Pending:
		return fmt.Sprintf("%d of its %d members to end", s.Aggregate.Size-s.Children.Closed.Len(), s.Aggregate.Size)
	}
	switch s.Phase {
	case protocol.AwaitingApproval:
		return "an approval"
	case protocol.AwaitingSource:
		return fmt.Sprintf("%s to complete %s, from which it follows", s.Source, s.Parent)
	case protocol.Pending:
		return waitingForTaker(s)
	case protocol.PhaseAccepted:
		return fmt.Sprintf("%s to begin", s.Agent)
	case protocol.Working:
		return fmt.Sprintf("%s to finish", s.Agent)
	case protocol.Conditional:
		return waitingForCondition(s)
	case protocol.Retrying:
		return fmt.Sprintf("the next attempt, at %s", Instant(s.RetryAt))
	case protocol.PhaseRejected:
		if s.Policy.OnNoTaker == protocol.NoTakerQueue {
			return "an agent that is fit and has not refused it: handoff reroute " + s.Ticket + " --to AGENT"
		}
	}
	return "a supervisor to decide (handoff supervise; handoff dev has one)"
}

func waitingForTaker(s protocol.State) string {
	switch {
	case s.Held():
		return fmt.Sprintf("%s, who has claimed it, to acknowledge it by %s", s.Agent, Instant(lifecycle.ClaimDue(s)))
	case s.Agent == protocol.Human && len(s.Chain) > 0:
		return fmt.Sprintf("a person: handoff answer, take, reroute or rollback %s", s.Ticket)
	case s.Agent == protocol.Human:
		return fmt.Sprintf("a person: handoff take %s", s.Ticket)
	case s.Agent == "":
		return "an agent that is fit to take it"
	}
	return fmt.Sprintf("%s to take it", s.Agent)
}

func waitingForCondition(s protocol.State) string {
	switch awaited := awaitedTickets(s); {
	case len(awaited) > 0:
		return fmt.Sprintf("what %s has handed off to come back: %s", s.Agent, Some(awaited))
	case s.Conditions == nil:
		return fmt.Sprintf("%s, who takes it at %s", s.Agent, Instant(s.RetryAt))
	}
	return fmt.Sprintf("an answer to %s, who needs %s: handoff answer %s", s.Agent, Needs(*s.Conditions), s.Ticket)
}

// awaitedTickets are the children that a suspended handoff waits for.
func awaitedTickets(s protocol.State) []string {
	if s.Children == nil {
		return nil
	}
	return ChildTickets(s.Ticket, s.Children.Awaited.Without(s.Children.Closed))
}

// ChildTickets returns the tickets of a handoff's children with these ordinals.
func ChildTickets(ticket string, ordinals protocol.Bits) []string {
	var tickets []string
	for _, n := range ordinals.Numbers() {
		tickets = append(tickets, protocol.ChildTicketN(ticket, n))
	}
	return tickets
}

// Ending says how a closed handoff ended, in a few words.
func Ending(s protocol.State) string {
	if !s.Closed {
		return WaitingFor(s)
	}
	text := string(s.Outcome)
	if s.Reason != "" && s.Reason != string(s.Outcome) {
		text += " (" + s.Reason + ")"
	}
	if s.Message != "" {
		text += ": " + s.Message
	}
	return text
}

// Ended says how and when a closed handoff ended.
func Ended(s protocol.State) string {
	if !s.Closed {
		return ""
	}
	return fmt.Sprintf("%s, %s after it was submitted", Ending(s), Duration(s.ClosedAt.Sub(s.SubmittedAt)))
}

// To names the agent, and the way to it where that is not what was asked for.
func To(s protocol.State) string {
	switch asked := s.TargetWords(); {
	case s.Agent == "":
		return asked
	case s.Agent == asked:
		return s.Agent
	default:
		return fmt.Sprintf("%s (submitted to %s)", s.Agent, asked)
	}
}

// Type names the type where it is not the plain one.
func Type(s protocol.State) string {
	if s.Type == protocol.Sequential {
		return ""
	}
	return string(s.Type)
}

// Attempt says which attempt it is, of how many.
func Attempt(s protocol.State) string {
	if s.AttemptsTotal == 0 {
		return ""
	}
	text := fmt.Sprintf("%d of %d", s.Attempt, s.Policy.MaxAttempts)
	if s.AttemptsTotal > s.Attempt {
		text += fmt.Sprintf(" at %s, %d in all", s.Agent, s.AttemptsTotal)
	}
	return text
}

// Progress writes the last progress of an open handoff.
func Progress(s protocol.State) string {
	if s.Progress == nil || s.Closed {
		return ""
	}
	return strings.TrimSpace(fmt.Sprintf("%s%% %s", Number(s.Progress.Percent), s.Progress.Message))
}

// Estimate writes when the agent expects to be done.
func Estimate(s protocol.State) string {
	switch {
	case s.Closed:
		return ""
	case s.Held() && !s.EstimatedCompletion.IsZero():
		return "done by " + Instant(s.EstimatedCompletion)
	case s.EstimatedCompletionMS > 0:
		return Millis(s.EstimatedCompletionMS) + " from the acceptance"
	}
	return ""
}

// LastError returns the message of the last failure of an open handoff.
func LastError(s protocol.State) string {
	if s.Closed || s.Message == "" || s.Reason == "escalated" {
		return ""
	}
	return s.Message
}

// EndRequest says who asked for the end, and why.
func EndRequest(s protocol.State) string {
	if s.CancelBy == "" && s.CancelReason == "" {
		return ""
	}
	return "by " + cmp.Or(s.CancelBy, "an unknown caller") + After(": ", s.CancelReason)
}

// Escalation writes the way up the chain of authority, and why it was taken.
func Escalation(s protocol.State) string {
	if len(s.Chain) == 0 {
		return ""
	}
	way := slices.Compact(append(slices.Clone(s.Chain), s.Agent)) // an authority that never took it has the name of the one below
	text := fmt.Sprintf("level %d, %s", s.EscalationLevel, strings.Join(way, " -> "))
	if s.Reason == "escalated" && !s.Closed {
		text += ": " + s.Message
	}
	return text
}

// Group says how far a group is: group of 5: 3 closed (2 succeeded, 1 failed).
func Group(s protocol.State) string {
	if s.Aggregate == nil {
		return ""
	}
	closed, succeeded, cancelled := 0, 0, 0
	if s.Children != nil {
		closed, succeeded, cancelled = s.Children.Closed.Len(), s.Children.Succeeded.Len(), s.Children.Cancelled.Len()
	}
	text := fmt.Sprintf("group of %d: %d closed", s.Aggregate.Size, closed)
	var ends []string
	if succeeded > 0 {
		ends = append(ends, fmt.Sprintf("%d succeeded", succeeded))
	}
	if failed := closed - succeeded - cancelled; failed > 0 {
		ends = append(ends, fmt.Sprintf("%d failed", failed))
	}
	if cancelled > 0 {
		ends = append(ends, fmt.Sprintf("%d cancelled", cancelled))
	}
	if len(ends) > 0 {
		text += " (" + strings.Join(ends, ", ") + ")"
	}
	return text
}

// Member names the group of a member, and its place in it.
func Member(s protocol.State) string {
	if s.Group == "" {
		return ""
	}
	return fmt.Sprintf("%s, as number %d", s.Group, s.N)
}

// HandedOff names the children of a handoff. Members of a group are listed elsewhere.
func HandedOff(s protocol.State) string {
	if s.Children == nil || s.Aggregate != nil {
		return ""
	}
	return Some(ChildTickets(s.Ticket, s.Children.Made))
}

// Return says where the return of a handoff is.
func Return(s protocol.State) string {
	switch {
	case s.ReturnOf != "":
		return ""
	case s.ReturnExpected && !s.Closed && s.Policy.ReturnTimeoutMS > 0:
		return fmt.Sprintf("%s expects one by %s", s.Source, Instant(s.ReturnSince.Add(time.Duration(s.Policy.ReturnTimeoutMS)*time.Millisecond)))
	case s.ReturnExpected && !s.Closed:
		return s.Source + " expects one"
	case s.Phase == protocol.PhaseReturned && !s.ReturnedAt.IsZero():
		return fmt.Sprintf("%s has it since %s", s.Source, Instant(s.ReturnedAt))
	case !s.ReturnedAt.IsZero():
		return "could not be delivered; handoff result " + s.Ticket + " --return prints it"
	case s.ReturnTicket != "":
		return fmt.Sprintf("waits for %s to take it in, as %s", s.Source, s.ReturnTicket)
	case s.ReturnExpected || s.Outcome == protocol.OutcomeRolledBack:
		return "handoff result " + s.Ticket + " --return prints it"
	}
	return ""
}

// LateResults says how many results came late, and how to read them.
func LateResults(s protocol.State) string {
	if len(s.LateFences) == 0 {
		return ""
	}
	return fmt.Sprintf("%d kept: handoff result %s --late", len(s.LateFences), s.Ticket)
}

// Inbox names the inbox that lists a closed handoff, and what to do about it.
func Inbox(s protocol.State) string {
	if s.Inbox == "" {
		return ""
	}
	return fmt.Sprintf("of %s: handoff dead redrive %s, or handoff dismiss %s", s.Inbox, s.Ticket, s.Ticket)
}
