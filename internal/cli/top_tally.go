package cli

import (
	"github.com/agenthandoff/handoff/protocol"
)

// tally is what happened in one second.
type tally struct{ accepted, completed, failed int }

func (t *tally) add(o tally) {
	t.accepted += o.accepted
	t.completed += o.completed
	t.failed += o.failed
}

// tallyOf is what an event counts for, and of which agent.
func tallyOf(event protocol.Event, after protocol.State) (agent string, t tally) {
	switch e := event.(type) {
	case *protocol.Accepted:
		return e.Agent, tally{accepted: 1}
	case *protocol.Completed:
		return after.Agent, tally{completed: 1}
	case *protocol.Rejected:
		return e.Agent, tally{failed: 1}
	case *protocol.TimedOut:
		return e.Agent, tally{failed: 1}
	case *protocol.Failed, *protocol.LeaseLost:
		return after.Agent, tally{failed: 1}
	}
	return "", tally{}
}
