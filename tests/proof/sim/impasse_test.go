//go:build proof

package sim

import (
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

const impasseEarly bug = "a wait that ends while no agent is there"

func init() { bugs = append(bugs, impasseEarly) }

// impasseOf is the impasse of a handoff, or what the planted bug takes for one.
func (j *judge) impasseOf(s protocol.State) lifecycle.Impasse {
	if j.l.bug == impasseEarly {
		s.Absent = nil
	}
	return lifecycle.ImpasseOf(s)
}

// checkImpasse: a handoff that only a person can move on does not go on by itself.
func (j *judge) checkImpasse(before, after protocol.State, events []protocol.Event) {
	impasse := j.impasseOf(before)
	if impasse == lifecycle.NoImpasse || after.Closed || j.impasseOf(after) == impasse ||
		impasse != lifecycle.ImpasseBudget && after.Agent == protocol.Human {
		return
	}
	for _, e := range events {
		if by := e.Author(); by == protocol.Human || by == after.Source {
			return
		}
	}
	j.faultLocked("%s waits for a person (%s), and goes on by itself: %s", after.Ticket, impasse, names(events))
}
