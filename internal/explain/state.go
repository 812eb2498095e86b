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

// Phrase says something about a state, and what the reader may do about it.
type Phrase struct {
	Words   string // empty where the actions alone are to be shown
	Actions []Action
}

func phrase(words string, actions ...Action) Phrase { return Phrase{Words: words, Actions: actions} }

// onTicket is an action that needs a ticket, and values that the reader fills in.
func onTicket(s protocol.State, to, op string, open ...string) Action {
	args := map[string]string{"ticket": s.Ticket}
	for _, name := range open {
		args[name] = ""
	}
	if op == OpAnswer {
		args["question"] = questionNumber(s)
	}
	return Action{To: to, Op: op, Args: args}
}

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

// WaitingFor says what has to happen next.
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
		if s.Gate.First() == protocol.GateApproval {
			return phrase(GateWords(s), onTicket(s, "approve it", OpApprove), onTicket(s, "deny it", OpDeny, "reason"))
		}
		if s.Gate.First() == protocol.GateBudget {
			return phrase(GateWords(s), raiseBudget(s))
		}
		return phrase(GateWords(s))
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
	return phrase("a supervisor to decide", Action{To: "start a supervisor", Op: OpSupervise})
}

// Override returns a sentence about the rules that were set aside for the agent of a handoff; empty is
// none.
func Override(s protocol.State) string {
	if !s.Overridden(s.Agent) {
		return ""
	}
	return sentence(Person(s.Override.By)) + fmt.Sprintf(" overrode %s to give it to %s", strings.Join(s.Override.Rules, " and "), s.Agent)
}

func waitingForTaker(s protocol.State) Phrase {
	switch {
	case s.Held():
		return phrase(fmt.Sprintf("%s, who has claimed it, to acknowledge it by %s", s.Agent, Instant(lifecycle.ClaimDue(s))))
	case s.Agent == protocol.Human && len(s.Chain) > 0:
		return phrase("a person", personActions(s)...)
	case s.Agent == protocol.Human:
		return phrase("a person", onTicket(s, toTake, OpTake))
	case s.Agent == "":
		return phrase("an agent that is fit to take it")
	}
	return phrase(fmt.Sprintf("%s to take it", s.Agent))
}

// The words of actions on a handoff that waits for a person, or an agent.
const (
	toTake    = "do it yourself"
	toAnother = "give it to another agent"
)

// personActions are what a person may do about a handoff that waits for one.
func personActions(s protocol.State) []Action {
	actions := []Action{onTicket(s, toTake, OpTake), onTicket(s, toAnother, OpReroute, "to"), onTicket(s, "roll it back", OpRollback, "reason")}
	if s.Denied != "" {
		return append([]Action{onTicket(s, "permit it, and send it back down", OpAnswer, "permit"), onTicket(s, "deny it, too", OpAnswer, "deny", "reason")}, actions...)
	}
	if len(s.Chain) > 0 {
		answer := onTicket(s, "answer it, and send it back down", OpAnswer, "text")
		actions = append([]Action{answer}, actions...)
	}
	return actions
}

func waitingForCondition(s protocol.State) Phrase {
	switch awaited := awaitedTickets(s); {
	case len(awaited) > 0:
		return phrase(fmt.Sprintf("what %s has handed off to come back: %s", s.Agent, Some(awaited)))
	case s.Conditions == nil:
		return phrase(fmt.Sprintf("%s, who takes it at %s", s.Agent, Instant(s.RetryAt)))
	}
	return phrase(fmt.Sprintf("an answer to %s, who needs %s", s.Agent, Needs(*s.Conditions)), NewAction("answer", OpAnswer, answerArgs(s)...))
}

// awaitedTickets are the children that a suspended handoff waits for.
func awaitedTickets(s protocol.State) []string {
	if s.Children == nil {
		return nil
	}
	return ChildTickets(s, s.Children.Awaited.Without(s.Children.Closed))
}

// ChildTickets returns the tickets of a handoff's children with these ordinals.
func ChildTickets(s protocol.State, ordinals protocol.Bits) []string {
	var tickets []string
	for _, n := range ordinals.Numbers() {
		tickets = append(tickets, s.ChildTicket(n))
	}
	return tickets
}

// Ending says how a closed handoff ended, in a few words.
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

// Ended says how and when a closed handoff ended.
func Ended(s protocol.State) string {
	if !s.Closed {
		return ""
	}
	return fmt.Sprintf("%s, %s after it was submitted", Ending(s), Duration(Took(s.SubmittedAt, s.ClosedAt)))
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
	return "by " + cmp.Or(s.CancelBy, unknownCaller) + After(": ", s.CancelReason)
}

// unknownCaller stands for a caller that gave no name.
const unknownCaller = "an unknown caller"

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

// Group says how far a group is: group of 5: 3 closed (2 succeeded, 1 failed). Members of a
// majority are in favour or against.
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
	if s.Aggregate.Mode == protocol.AggregateMajority { // votes count, too
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

// Member names the group of a member, and its place in it.
func Member(s protocol.State) string {
	if s.Group == "" {
		return ""
	}
	return fmt.Sprintf("%s, as number %d", s.Group, s.N)
}

// HandedOff names the children of a handoff. Members of a group are listed elsewhere, and so is
// the handoff that its chain goes on with.
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

// Return says where the return of a handoff is.
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

// Warning says what of an output did not go into the result.
// Of a malformed result that is kept it says so.
func Warning(s protocol.State) Phrase {
	switch {
	case Malformed(s):
		return phrase("the last output was a malformed result, and is kept", onTicket(s, "read it", OpResult))
	case s.SetAside != "":
		return phrase(s.SetAside+After("; ", undeliveredWords(s)), undeliveredAction(s)...)
	}
	return phrase(undeliveredWords(s), undeliveredAction(s)...)
}

// undeliveredAction shows where a child is that could not be delivered.
func undeliveredAction(s protocol.State) []Action {
	for _, ticket := range Undelivered(s) {
		return []Action{{To: "see where it is", Op: OpWhy, Args: map[string]string{"ticket": ticket}}}
	}
	return nil
}

// Undelivered returns the tickets of the children that no agent could be given when they were
// handed on.
func Undelivered(s protocol.State) []string {
	if s.Children == nil {
		return nil
	}
	return ChildTickets(s, s.Children.Undelivered)
}

// undeliveredWords says that children could not be delivered at once. They may have been since.
func undeliveredWords(s protocol.State) string {
	switch tickets := Undelivered(s); len(tickets) {
	case 0:
		return ""
	case 1:
		return tickets[0] + " was not delivered when it was handed on"
	default:
		return Some(tickets) + " were not delivered when they were handed on"
	}
}

// Malformed tells whether what is kept as the result of a handoff is a malformed one.
func Malformed(s protocol.State) bool {
	well := s.Outcome == protocol.OutcomeSuccess || s.Outcome == protocol.OutcomePartial || s.Outcome == protocol.OutcomeRolledBack
	return s.ResultSeq != 0 && !well
}

// LateResults says how many results came late, and how to read them.
func LateResults(s protocol.State) Phrase {
	if len(s.LateFences) == 0 {
		return Phrase{}
	}
	return phrase(fmt.Sprintf("%d kept", len(s.LateFences)), onTicket(s, "read them", OpLate))
}

// Inbox names the inbox that lists a closed handoff, and what to do about it.
func Inbox(s protocol.State) Phrase {
	if s.Inbox == "" {
		return Phrase{}
	}
	return phrase("of "+s.Inbox, reviewActions(s)...)
}

// reviewActions are what a person may do about a closed handoff that an inbox lists.
func reviewActions(s protocol.State) []Action {
	leave := onTicket(s, "leave it at that", OpDismiss)
	if lifecycle.CheckRedrive(s) != nil {
		return []Action{leave}
	}
	return []Action{onTicket(s, "submit it again", OpRedrive), leave}
}
