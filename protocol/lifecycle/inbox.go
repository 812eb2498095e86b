package lifecycle

import p "github.com/agenthandoff/handoff/protocol"

// Waits is why a handoff waits for somebody.
type Waits string

const (
	WaitsNot        Waits = ""
	WaitsOffer      Waits = "offer"      // it stands in their queue
	WaitsEscalation Waits = "escalation" // the same, passed up to them: answer, take or reroute it
	WaitsHeld       Waits = "held"       // they have it in their hands
	WaitsQuestion   Waits = "question"   // an agent asks them for context or a permission
	WaitsLook       Waits = "look"       // it closed in a way that they should see: redrive or dismiss it
)

// DeadLetter tells whether a handoff closed without success. A return is no dead
// letter: what it would deliver is read by the ticket of its handoff.
func DeadLetter(s p.State) bool {
	success := s.Outcome == p.OutcomeSuccess || s.Outcome == p.OutcomePartial
	return s.Closed && !success && s.ReturnOf == ""
}

// WaitsFor tells whether, and why, a handoff waits for an agent, or for a
// person (protocol.Human). A person is asked what its source cannot be: when that
// is no agent of the directory.
func WaitsFor(s p.State, agent string, d *Directory) Waits {
	switch {
	case s.Closed && s.Inbox == agent:
		return WaitsLook
	case s.Closed:
		return WaitsNot
	case s.Phase == p.Conditional && s.Conditions != nil:
		asked := s.Source
		if _, known := d.Agent(asked); !known {
			asked = p.Human
		}
		if asked == agent {
			return WaitsQuestion
		}
	case s.Agent != agent:
	case s.Held():
		return WaitsHeld
	case s.Phase == p.Pending && s.EscalationLevel > 0:
		return WaitsEscalation
	case s.Phase == p.Pending:
		return WaitsOffer
	}
	return WaitsNot
}
