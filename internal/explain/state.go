package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// The functions of this file describe a state without further reads.

// Phrase describes a part of a state, with the actions that the reader may take.
type Phrase struct {
	Words   string // empty if only the actions are shown
	Actions []Action
}

func phrase(words string, actions ...Action) Phrase { return Phrase{Words: words, Actions: actions} }

// onTicket returns an action on a handoff, with empty arguments that the reader fills in.
func onTicket(s protocol.State, to, op string, open ...string) Action {
	a := NewAction(to, op, "ticket", s.Ticket)
	for _, name := range open {
		a.Args[name] = ""
	}
	if op == OpAnswer {
		a.Args["question"] = questionNumber(s)
	}
	return a
}

// Phase returns the phase in words. A closed handoff has its outcome; an open one the gate that it
// waits at (unless that is an approval), its escalation level, and a request to cancel it.
func Phase(s protocol.State) string {
	word := string(s.Phase)
	if s.Closed {
		return ClosedPhase(s.Phase, s.Outcome)
	}
	if gate := s.Gate.First(); gate != "" && gate != protocol.GateApproval {
		word += fmt.Sprintf(" (%s)", gate)
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

// ClosedPhase returns the phase of a closed handoff, and its outcome if that is another word.
func ClosedPhase(phase protocol.Phase, outcome protocol.Outcome) string {
	if string(phase) == string(outcome) {
		return string(phase)
	}
	return fmt.Sprintf("%s (%s)", phase, outcome)
}

// WaitingFor returns the event that a handoff waits for.
func WaitingFor(s protocol.State) Phrase {
	switch {
	case s.Closed:
		return phrase("nothing: it is closed")
	case s.CancelRequested && s.Held():
		return phrase(fmt.Sprintf("the worker of %s to stop", s.Agent))
	case s.Aggregate != nil && s.Children != nil && s.Phase == protocol.Pending:
		return phrase(fmt.Sprintf("%d of its %d members to end", s.Aggregate.Size-s.Children.Closed.Len(), s.Aggregate.Size))
	}
	switch s.Phase {
	case protocol.AwaitingApproval:
		return phrase(gateWords(s), gateActions(s)...)
	case protocol.AwaitingSource:
		return phrase(fmt.Sprintf("%s to complete %s, from which it follows", s.Source, s.Parent))
	case protocol.Pending:
		return waitingForTaker(s)
	case protocol.PhaseAccepted:
		return phrase(fmt.Sprintf("%s to begin", s.Agent))
	case protocol.Working:
		return phrase(fmt.Sprintf("%s to finish", s.Agent))
	case protocol.Conditional:
		return waitingForCondition(s)
	case protocol.Retrying:
		return phrase(fmt.Sprintf("the next attempt, at %s", Instant(s.RetryAt)))
	case protocol.PhaseRejected:
		if s.Policy.OnNoTaker == protocol.NoTakerQueue {
			return phrase("an agent that is fit and has not refused it", onTicket(s, toAnother, OpReroute, "to"))
		}
	}
	return phrase("a supervisor to decide", NewAction("start a supervisor", OpSupervise))
}

// override returns a sentence about the rules that a person overrode to choose the agent. It is
// empty if no rule was overridden.
func override(s protocol.State) string {
	if !s.Overridden(s.Agent) {
		return ""
	}
	return sentence(Person(s.Override.By)) + fmt.Sprintf(" overrode %s to give it to %s", strings.Join(s.Override.Rules, " and "), s.Agent)
}

func waitingForTaker(s protocol.State) Phrase {
	switch {
	case s.Held():
		return phrase(fmt.Sprintf("%s, who has claimed it, to acknowledge it by %s", s.Agent, Instant(lifecycle.ClaimDue(s))))
	case s.Agent == protocol.Human && len(s.Absent) > 0:
		return phrase(fmt.Sprintf("a worker of %s to come, or a person", cmp.Or(s.Absent[0].Agent, s.TargetWords())), personActions(s)...)
	case s.Agent == protocol.Human && len(s.Chain) > 0:
		return phrase("a person", personActions(s)...)
	case s.Agent == protocol.Human:
		return phrase("a person", onTicket(s, toTake, OpTake))
	case s.Agent == "" && s.Target.Agent != "":
		return phrase(fmt.Sprintf("a worker of %s to come", s.Target.Agent))
	case s.Agent == "":
		return phrase("an agent that is fit to take it")
	}
	return phrase(fmt.Sprintf("%s to take it", s.Agent))
}

// Words of actions on a handoff that waits for a person or an agent.
const (
	toTake    = "do it yourself"
	toAnother = "give it to another agent"
)

// personActions returns the actions on a handoff that waits for a person.
func personActions(s protocol.State) []Action {
	actions := []Action{onTicket(s, toTake, OpTake), onTicket(s, toAnother, OpReroute, "to"), onTicket(s, "roll it back", OpRollback, "reason")}
	if s.Denied != "" {
		return append([]Action{onTicket(s, "permit it, and send it back down", OpAnswer, "permit"), onTicket(s, "deny it, too", OpAnswer, "deny", "reason")}, actions...)
	}
	if lifecycle.AsksInWords(s) {
		answer := onTicket(s, "answer it, and send it back down", OpAnswer, "text")
		actions = append([]Action{answer}, actions...)
	}
	return actions
}

func waitingForCondition(s protocol.State) Phrase {
	if s.Children != nil {
		if awaited := ChildTickets(s, s.Children.Awaited.Without(s.Children.Closed)); len(awaited) > 0 {
			return phrase(fmt.Sprintf("the children of %s to end: %s", s.Agent, Some(awaited)))
		}
	}
	if s.Conditions == nil {
		return phrase(fmt.Sprintf("%s, who takes it at %s", s.Agent, Instant(s.RetryAt)))
	}
	return phrase(fmt.Sprintf("an answer to %s, who needs %s", s.Agent, Needs(*s.Conditions)), NewAction("answer", OpAnswer, answerArgs(s)...))
}

// ChildTickets returns the tickets of the children with these ordinals.
func ChildTickets(s protocol.State, ordinals protocol.Bits) []string {
	var tickets []string
	for _, n := range ordinals.Numbers() {
		tickets = append(tickets, s.ChildTicket(n))
	}
	return tickets
}

// Ending returns the outcome, the reason and the message of a closed handoff.
func Ending(s protocol.State) string {
	if !s.Closed {
		return ""
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

// Ended returns Ending and the time from submission to end.
func Ended(s protocol.State) string {
	if !s.Closed {
		return ""
	}
	return fmt.Sprintf("%s, %s after it was submitted", Ending(s), Duration(Took(s.SubmittedAt, s.ClosedAt)))
}

// Sentence is the phase of a handoff and the event that it waits for, or its end.
func Sentence(s protocol.State) string {
	if s.Closed {
		return Ended(s)
	}
	return Phase(s) + ": waits for " + WaitingFor(s).Words
}

// To names the agent, and the requested target if that is different.
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

// Type returns the type; it is empty for the default type.
func Type(s protocol.State) string {
	if s.Type == protocol.Sequential {
		return ""
	}
	return string(s.Type)
}

// Attempt returns the number of the attempt, the number allowed, and the total at all agents.
func Attempt(s protocol.State) string {
	if s.AttemptsTotal == 0 {
		return ""
	}
	if s.Attempt == 0 {
		return fmt.Sprintf("none yet at %s, %d in all", cmp.Or(s.Agent, "another agent"), s.AttemptsTotal)
	}
	text := fmt.Sprintf("%d of %d", s.Attempt, s.Policy.MaxAttempts)
	if s.AttemptsTotal > s.Attempt {
		text += fmt.Sprintf(" at %s, %d in all", s.Agent, s.AttemptsTotal)
	}
	return text
}

// Progress returns the last progress of an open handoff.
func Progress(s protocol.State) string {
	if s.Progress == nil || s.Closed {
		return ""
	}
	return strings.TrimSpace(fmt.Sprintf("%s%% %s", Number(s.Progress.Percent), s.Progress.Message))
}

// Estimate returns when the agent expects to be done.
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

// EndRequest names the caller that requested the end, and its reason.
func EndRequest(s protocol.State) string {
	if s.CancelBy == "" && s.CancelReason == "" {
		return ""
	}
	return "by " + cmp.Or(s.CancelBy, unknownCaller) + After(": ", s.CancelReason)
}

// unknownCaller replaces an empty name of a caller.
const unknownCaller = "an unknown caller"

// Escalation returns the agents of the escalation chain, and the reason for it.
func Escalation(s protocol.State) string {
	if len(s.Chain) == 0 {
		return ""
	}
	agents := slices.Compact(append(slices.Clone(s.Chain), s.Agent)) // an authority that never had it appears under the name of the agent below
	text := fmt.Sprintf("level %d, %s", s.EscalationLevel, way(agents...))
	if s.Reason == "escalated" && !s.Closed {
		text += ": " + s.Message
	}
	return text
}

// Group counts the members of a group by their ends: group of 5: 3 closed (2 succeeded, 1 failed).
// Members of a majority are in favour or against.
func Group(s protocol.State) string {
	if s.Aggregate == nil {
		return ""
	}
	closed, succeeded, cancelled := 0, 0, 0
	if s.Children != nil {
		closed, succeeded, cancelled = s.Children.Closed.Len(), s.Children.Succeeded.Len(), s.Children.Cancelled.Len()
	}
	text := fmt.Sprintf("group of %d: %d closed", s.Aggregate.Size, closed)
	well, not := "succeeded", "failed"
	if s.Aggregate.Mode == protocol.AggregateMajority { // votes decide, not only outcomes
		well, not = "in favour", "against"
	}
	var ends []string
	if succeeded > 0 {
		ends = append(ends, fmt.Sprintf("%d %s", succeeded, well))
	}
	if failed := closed - succeeded - cancelled; failed > 0 {
		ends = append(ends, fmt.Sprintf("%d %s", failed, not))
	}
	if cancelled > 0 {
		ends = append(ends, fmt.Sprintf("%d cancelled", cancelled))
	}
	if len(ends) > 0 {
		text += " (" + strings.Join(ends, ", ") + ")"
	}
	return text
}

// Member names the group of a member, and its number in it.
func Member(s protocol.State) string {
	if s.Group == "" {
		return ""
	}
	return fmt.Sprintf("%s, as number %d", s.Group, s.N)
}

// HandedOff names the children of a handoff. It excludes members of a group and the next handoff of
// a chain, which are listed separately.
func HandedOff(s protocol.State) string {
	if s.Children == nil || s.Aggregate != nil {
		return ""
	}
	tickets := ChildTickets(s, s.Children.Made)
	if next, goesOn := lifecycle.NextInChain(s); goesOn {
		tickets = slices.DeleteFunc(tickets, func(t string) bool { return t == next })
	}
	return Some(tickets)
}

// Return describes the return of a handoff: expected, waiting, received or failed.
func Return(s protocol.State) Phrase {
	read := onTicket(s, "read it", OpReturn)
	switch {
	case s.ReturnOf != "":
		return Phrase{}
	case s.ReturnExpected && lifecycle.AwaitsChain(s):
		return phrase("still open: its chain has not ended")
	case s.ReturnExpected && !s.Closed && s.Policy.ReturnTimeoutMS > 0:
		return phrase(fmt.Sprintf("%s expects one by %s", s.Source, Instant(s.ReturnSince.Add(time.Duration(s.Policy.ReturnTimeoutMS)*time.Millisecond))))
	case s.ReturnExpected && !s.Closed:
		return phrase(s.Source + " expects one")
	case lifecycle.ComesBack(s):
		return phrase(fmt.Sprintf("waits for the next worker of %s", s.Parent), read)
	case s.Phase == protocol.PhaseReturned && !s.ReturnedAt.IsZero() && s.ReturnTicket == "" && s.N > 0:
		return phrase(fmt.Sprintf("the worker of %s has it since %s", s.Parent, Instant(s.ReturnedAt)))
	case s.Phase == protocol.PhaseReturned && !s.ReturnedAt.IsZero():
		return phrase(fmt.Sprintf("%s has it since %s", s.Source, Instant(s.ReturnedAt)))
	case !s.ReturnedAt.IsZero():
		return phrase("could not be delivered", read)
	case s.ReturnTicket != "":
		return phrase(fmt.Sprintf("waits for %s to take it in, as %s", s.Source, s.ReturnTicket))
	case s.ReturnExpected || s.Outcome == protocol.OutcomeRolledBack:
		return phrase("", read)
	}
	return Phrase{}
}

// Warning describes output that did not become part of the result, a malformed result included.
func Warning(s protocol.State) Phrase {
	switch {
	case malformed(s):
		return phrase("the last output was a malformed result, and is kept", onTicket(s, "read it", OpResult))
	case s.SetAside != "":
		return phrase(s.SetAside+After("; ", undeliveredWords(s)), undeliveredAction(s)...)
	}
	return phrase(undeliveredWords(s), undeliveredAction(s)...)
}

// undeliveredAction returns the action that explains the first undelivered child.
func undeliveredAction(s protocol.State) []Action {
	for _, ticket := range undelivered(s) {
		return []Action{NewAction("see where it is", OpWhy, "ticket", ticket)}
	}
	return nil
}

// undelivered returns the tickets of the children that had no agent when they were handed off.
func undelivered(s protocol.State) []string {
	if s.Children == nil {
		return nil
	}
	return ChildTickets(s, s.Children.Undelivered)
}

// undeliveredWords names children that had no agent when they were handed off. They may have one by
// now.
func undeliveredWords(s protocol.State) string {
	tickets := undelivered(s)
	if len(tickets) == 0 {
		return ""
	}
	return Some(tickets) + " could not be delivered at once"
}

// malformed reports whether the result that is kept for a handoff is malformed.
func malformed(s protocol.State) bool {
	well := s.Outcome == protocol.OutcomeSuccess || s.Outcome == protocol.OutcomePartial || s.Outcome == protocol.OutcomeRolledBack
	return s.ResultSeq != 0 && !well
}

// LateResults counts the late results.
func LateResults(s protocol.State) Phrase {
	if len(s.LateFences) == 0 {
		return Phrase{}
	}
	return phrase(fmt.Sprintf("%d kept", len(s.LateFences)), onTicket(s, "read them", OpLate))
}

// Inbox names the inbox that lists a closed handoff.
func Inbox(s protocol.State) Phrase {
	if s.Inbox == "" {
		return Phrase{}
	}
	return phrase("of "+s.Inbox, reviewActions(s)...)
}

// reviewActions returns the actions on a closed handoff in an inbox.
func reviewActions(s protocol.State) []Action {
	leave := onTicket(s, "leave it at that", OpDismiss)
	if lifecycle.CheckRedrive(s) != nil {
		return []Action{leave}
	}
	return []Action{onTicket(s, "submit it again", OpRedrive), leave}
}
