package lifecycle

import p "github.com/agenthandoff/handoff/protocol"

// InboxReason is the reason for which an inbox lists a handoff.
type InboxReason string

const (
	InboxNone       InboxReason = ""                 // the inbox does not list it
	InboxApproval   InboxReason = "approval"         // the agent, or one below it, is asked whether another one may have it: approve or deny it
	InboxBudget     InboxReason = "budget_exhausted" // its budget has run out: the person raises it, takes the handoff, or ends it
	InboxOffer      InboxReason = "offer"            // it stands in the agent's queue
	InboxEscalation InboxReason = "escalation"       // the same, escalated to the agent: answer, take or reroute it
	InboxHeld       InboxReason = "held"             // the agent holds it
	InboxQuestion   InboxReason = "question"         // another agent asks for context or a permission
	InboxReview     InboxReason = "look"             // it closed, and the agent should see how: redrive or dismiss it
)

// DeadLetter tells whether a handoff closed without success. A return is no dead
// letter: its content is read by the ticket of its handoff. Nor is a call for a bid.
func DeadLetter(s p.State) bool {
	success := s.Outcome == p.OutcomeSuccess || s.Outcome == p.OutcomePartial
	return s.Closed && !success && s.ReturnOf == "" && s.CallOf == ""
}

// InboxReasonFor returns why the inbox of an agent, or of a person (protocol.Human),
// lists a handoff. A question goes to a person where the source is no agent of the
// directory. What an agent is asked to approve is for those above it as well; for a person once
// a person is asked.
func InboxReasonFor(s p.State, agent string, d *Directory) InboxReason {
	switch {
	case s.Closed && s.Inbox == agent:
		return InboxReview
	case s.Closed:
		return InboxNone
	case AskedAtGate(s) != "":
		switch asked := AskedAtGate(s) == agent; {
		case asked && s.Gate.First() == p.GateBudget:
			return InboxBudget
		case asked, agent != p.Human && MayAnswer(s, agent, d) == nil:
			return InboxApproval
		}
	case s.Phase == p.Conditional && s.Conditions != nil:
		asked := s.Source
		if _, known := d.Agent(asked); !known {
			asked = p.Human
		}
		if asked == agent {
			return InboxQuestion
		}
	case s.Agent != agent:
	case s.Held():
		return InboxHeld
	case s.Phase == p.Pending && s.EscalationLevel > 0:
		return InboxEscalation
	case s.Phase == p.Pending:
		return InboxOffer
	}
	return InboxNone
}
