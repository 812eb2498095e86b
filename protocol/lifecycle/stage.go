package lifecycle

import p "github.com/agenthandoff/handoff/protocol"

// Stage is the part of its life that an open handoff is in. Times of a handoff are
// counted by stage: the stages of its states add up to the time that it was open.
type Stage string

const (
	StageNone        Stage = ""            // not submitted, or closed
	StageGate        Stage = "gate"        // until what its next offer waits for is there
	StageQueue       Stage = "queue"       // until a holder claims or accepts it
	StageAcknowledge Stage = "acknowledge" // claimed, until the holder acknowledges it
	StageWork        Stage = "work"        // accepted, until that attempt ends
	StageAnswers     Stage = "answers"     // its agent asks, until that is answered
	StageDeferred    Stage = "deferred"    // its agent put it off
	StageChildren    Stage = "children"    // it waits for what it handed off, or for its members
	StageBackoff     Stage = "backoff"     // between two attempts
	StageDeciding    Stage = "deciding"    // until a supervisor decides
)

// StageOf returns the stage that a handoff is in.
func StageOf(s p.State) Stage {
	switch {
	case s.Phase == fresh, s.Closed:
		return StageNone
	case s.Fence != 0:
		return StageWork
	case s.Held():
		return StageAcknowledge
	case s.Aggregate != nil && s.Phase == p.Pending, s.Children != nil && s.Children.Awaited != "":
		return StageChildren
	}
	switch s.Phase {
	case p.AwaitingApproval:
		return StageGate
	case p.Pending:
		return StageQueue
	case p.Conditional:
		if s.Conditions != nil {
			return StageAnswers
		}
		return StageDeferred
	case p.Retrying:
		return StageBackoff
	}
	return StageDeciding
}

// Wait is what a handoff waits for, in one word.
type Wait string

const (
	WaitNothing         Wait = "nothing"         // it is closed
	WaitApproval        Wait = "approval"        // of State.Gate.Approver
	WaitGate            Wait = "gate"            // State.Gate.Waits, of which the first is no approval
	WaitSource          Wait = "source"          // the completion of the handoff from which it follows
	WaitMembers         Wait = "members"         // of a group
	WaitStop            Wait = "stop"            // of its holder, which was asked to
	WaitAgent           Wait = "agent"           // one that is fit
	WaitPerson          Wait = "person"          // that takes it
	WaitTaker           Wait = "taker"           // a worker of its agent; Unavailable tells what keeps it
	WaitAcknowledgement Wait = "acknowledgement" // of its claim
	WaitStart           Wait = "start"           // of the accepted work
	WaitWork            Wait = "work"            // its result
	WaitAnswer          Wait = "answer"          // to the question of its agent
	WaitChildren        Wait = "children"        // what it handed off
	WaitTime            Wait = "time"            // State.RetryAt
	WaitDecision        Wait = "decision"        // of a supervisor
)

// WaitingFor returns what a handoff waits for, as its state alone tells.
func WaitingFor(s p.State) Wait {
	switch {
	case s.Phase == fresh, s.Closed:
		return WaitNothing
	case s.CancelRequested && s.Held():
		return WaitStop
	case s.CancelRequested:
		return WaitDecision
	case s.Aggregate != nil && s.Phase == p.Pending:
		return WaitMembers
	case isSuspended(s):
		return WaitChildren
	}
	switch s.Phase {
	case p.AwaitingApproval:
		switch s.Gate.First() {
		case p.GateApproval:
			return WaitApproval
		case "":
			return WaitDecision
		}
		return WaitGate
	case p.AwaitingSource:
		return WaitSource
	case p.Pending:
		return waitingForTaker(s)
	case p.PhaseAccepted:
		return WaitStart
	case p.Working:
		return WaitWork
	case p.Conditional:
		if s.Conditions != nil {
			return WaitAnswer
		}
		return WaitTime
	case p.Retrying:
		return WaitTime
	case p.PhaseRejected:
		if s.Policy.OnNoTaker == p.NoTakerQueue {
			return WaitAgent
		}
	}
	return WaitDecision
}

// waitingForTaker returns what a pending handoff waits for.
func waitingForTaker(s p.State) Wait {
	switch {
	case s.Held():
		return WaitAcknowledgement
	case s.Agent == p.Human:
		return WaitPerson
	case s.Agent == "":
		return WaitAgent
	}
	return WaitTaker
}
