package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// How a state reads to people. Everything here is made of the state alone.

// phaseWord is the phase with its dimensions: closed or not, escalated, asked to stop.
func phaseWord(s protocol.State) string {
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

// waitingFor says in words what has to happen next.
func waitingFor(s protocol.State) string {
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
		return fmt.Sprintf("the next attempt, at %s", when(s.RetryAt))
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
		return fmt.Sprintf("%s, who has claimed it, to acknowledge it by %s", s.Agent, when(lifecycle.ClaimDue(s)))
	case s.Agent == protocol.Human && len(s.Chain) > 0:
		return fmt.Sprintf("a person: handoff answer, take, reroute or return %s", s.Ticket)
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
		return fmt.Sprintf("what %s has handed off to come back: %s", s.Agent, someOf(awaited))
	case s.Conditions == nil:
		return fmt.Sprintf("%s, who takes it at %s", s.Agent, when(s.RetryAt))
	}
	return fmt.Sprintf("an answer to %s, who needs %s: handoff answer %s", s.Agent, needsText(*s.Conditions), s.Ticket)
}

// awaitedTickets are the children that a suspended handoff waits for.
func awaitedTickets(s protocol.State) []string {
	if s.Children == nil {
		return nil
	}
	return childTickets(s.Ticket, s.Children.Awaited.Without(s.Children.Closed))
}

func childTickets(ticket string, ordinals protocol.Bits) []string {
	var tickets []string
	for _, n := range ordinals.Numbers() {
		tickets = append(tickets, protocol.ChildTicketN(ticket, n))
	}
	return tickets
}

// someOf lists a few, and counts the rest.
func someOf(words []string) string {
	const few = 3
	if len(words) <= few {
		return strings.Join(words, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(words[:few], ", "), len(words)-few)
}

func needsText(c protocol.Conditions) string {
	var needs []string
	if len(c.NeedsContext) > 0 {
		needs = append(needs, "context ("+strings.Join(c.NeedsContext, "; ")+")")
	}
	if len(c.NeedsPermission) > 0 {
		needs = append(needs, "permission ("+strings.Join(c.NeedsPermission, "; ")+")")
	}
	return strings.Join(needs, " and ")
}

// ending says how a closed handoff ended, in a few words.
func ending(s protocol.State) string {
	if !s.Closed {
		return waitingFor(s)
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

func endedText(s protocol.State) string {
	if !s.Closed {
		return ""
	}
	return fmt.Sprintf("%s, %s after it was submitted", ending(s), shortDuration(s.ClosedAt.Sub(s.SubmittedAt)))
}

// toText names the agent, and the way to it where that is not what was asked for.
func toText(s protocol.State) string {
	switch asked := s.TargetWords(); {
	case s.Agent == "":
		return asked
	case s.Agent == asked:
		return s.Agent
	default:
		return fmt.Sprintf("%s (submitted to %s)", s.Agent, asked)
	}
}

// typeText names the type where it is not the plain one.
func typeText(s protocol.State) string {
	if s.Type == protocol.Sequential {
		return ""
	}
	return string(s.Type)
}

func attemptText(s protocol.State) string {
	if s.AttemptsTotal == 0 {
		return ""
	}
	text := fmt.Sprintf("%d of %d", s.Attempt, s.Policy.MaxAttempts)
	if s.AttemptsTotal > s.Attempt {
		text += fmt.Sprintf(" at %s, %d in all", s.Agent, s.AttemptsTotal)
	}
	return text
}

func progressText(s protocol.State) string {
	if s.Progress == nil || s.Closed {
		return ""
	}
	return strings.TrimSpace(fmt.Sprintf("%s%% %s", trimFloat(s.Progress.Percent), s.Progress.Message))
}

// estimateText is what the agent said of how long the work takes.
func estimateText(s protocol.State) string {
	switch {
	case s.Closed:
		return ""
	case s.Held() && !s.EstimatedCompletion.IsZero():
		return "done by " + when(s.EstimatedCompletion)
	case s.EstimatedCompletionMS > 0:
		return millis(s.EstimatedCompletionMS) + " from the acceptance"
	}
	return ""
}

func lastError(s protocol.State) string {
	if s.Closed || s.Message == "" || s.Reason == "escalated" {
		return ""
	}
	return s.Message
}

// endRequestText says who asked for the end, and why.
func endRequestText(s protocol.State) string {
	if s.CancelBy == "" && s.CancelReason == "" {
		return ""
	}
	return "by " + cmp.Or(s.CancelBy, "somebody") + after(": ", s.CancelReason)
}

// escalationText is the way up the chain of authority, and why it was taken.
func escalationText(s protocol.State) string {
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

// groupText says how far a group is: group of 5: 3 closed (2 succeeded, 1 failed).
func groupText(s protocol.State) string {
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

// aggregationText says when a group has succeeded.
func aggregationText(s protocol.State) string {
	if s.Aggregate == nil {
		return ""
	}
	text := map[protocol.Aggregation]string{
		protocol.AggregateAll: "when all have succeeded", protocol.AggregateAny: "when one has succeeded",
		protocol.AggregateMajority: "when more than half have succeeded",
	}[s.Aggregate.Mode]
	if n := s.Aggregate.Counted.Len(); n > 0 {
		text += fmt.Sprintf(", of the %d that count", n)
	}
	if s.Aggregate.CancelRest {
		text += "; the rest is cancelled then"
	}
	return text
}

func memberText(s protocol.State) string {
	if s.Group == "" {
		return ""
	}
	return fmt.Sprintf("%s, as number %d", s.Group, s.N)
}

// handedOffText names what the handoff has handed off; the members of a group
// are listed for themselves.
func handedOffText(s protocol.State) string {
	if s.Children == nil || s.Aggregate != nil {
		return ""
	}
	return someOf(childTickets(s.Ticket, s.Children.Made))
}

// returnText says where the return of a handoff is.
func returnText(s protocol.State) string {
	switch {
	case s.ReturnOf != "":
		return ""
	case s.ReturnExpected && !s.Closed && s.Policy.ReturnTimeoutMS > 0:
		return fmt.Sprintf("%s expects one by %s", s.Source, when(s.ReturnSince.Add(time.Duration(s.Policy.ReturnTimeoutMS)*time.Millisecond)))
	case s.ReturnExpected && !s.Closed:
		return s.Source + " expects one"
	case s.Phase == protocol.PhaseReturned && !s.ReturnedAt.IsZero():
		return fmt.Sprintf("%s has it since %s", s.Source, when(s.ReturnedAt))
	case !s.ReturnedAt.IsZero():
		return "could not be delivered; handoff result " + s.Ticket + " --return prints it"
	case s.ReturnTicket != "":
		return fmt.Sprintf("waits for %s to take it in, as %s", s.Source, s.ReturnTicket)
	case s.ReturnExpected || s.Outcome == protocol.OutcomeRolledBack:
		return "handoff result " + s.Ticket + " --return prints it"
	}
	return ""
}

func lateText(s protocol.State) string {
	if len(s.LateFences) == 0 {
		return ""
	}
	return fmt.Sprintf("%d kept: handoff result %s --late", len(s.LateFences), s.Ticket)
}

func inboxText(s protocol.State) string {
	if s.Inbox == "" {
		return ""
	}
	return fmt.Sprintf("of %s: handoff dead redrive %s, or handoff dismiss %s", s.Inbox, s.Ticket, s.Ticket)
}

func openOnly(s protocol.State, text string) string {
	if s.Closed {
		return ""
	}
	return text
}

// when writes an instant as people compare it with logs and with the ledger: in UTC.
func when(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format("2006-01-02 15:04:05Z")
}

// ago writes how long something has been so, as coarse as a table needs it.
func ago(since, now time.Time) string {
	switch d := max(now.Sub(since), 0); {
	case since.IsZero():
		return ""
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	default:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
}
