package explain

import (
	"fmt"

	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// WaitBreaker is that the breaker of its agent keeps it back.
const WaitBreaker lifecycle.Wait = "breaker"

// keptBack says that a breaker keeps the handoff back, what opened it and what lets it through; false
// is that none does.
func (x *explainer) keptBack() bool {
	agent, h, kept := lifecycle.KeptBack(x.State, x.Directory, x.Now)
	if !kept {
		return false
	}
	state, until := lifecycle.Breaker(h, x.Directory.BreakerPolicy(agent), x.Now)
	x.e.WaitingFor = WaitBreaker
	last := ""
	if f := h.LastFailure; f != nil {
		last = fmt.Sprintf(", the last (%s) %s", f.Ticket, x.at(f.At))
	}
	x.say("It waits because the breaker of %s is %s: %s failed there%s.", agent, state, Count(len(h.Failures), "handoff"), last)
	switch {
	case state == lifecycle.BreakerOpen:
		x.say("One is tried %s, in %s; the others go on when that succeeds.", x.at(until), Spoken(until.Sub(x.Now)))
	case len(h.Probes) > 0:
		x.say("Handoff %s tries whether it has recovered; the others go on when that succeeds.", h.Probes[0].Ticket)
	}
	x.suggest("close the breaker, if the agent has recovered", OpResetBreaker, "agent", agent)
	x.suggest(toAnother, OpReroute, "ticket", x.State.Ticket, "to", "")
	return true
}
