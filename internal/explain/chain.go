package explain

import (
	"cmp"
	"fmt"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// HandedOn names the agent and the ticket that a closed handoff continues as, and the state of the
// chain. next is the next handoff of the chain, last its most recent one; a handoff that was not
// read is zero.
func HandedOn(s, next, last protocol.State) string {
	ticket, goesOn := lifecycle.NextInChain(s)
	if !goesOn {
		return ""
	}
	text := "as " + ticket
	if next.Ticket != "" {
		text = fmt.Sprintf("to %s, %s", atAgent(next), ticket)
	}
	return text + After("; ", ChainStands(next, last))
}

// ChainStands describes the state of a chain: the agent that has it while it is open, or else how
// and where it ended.
func ChainStands(next, last protocol.State) string {
	if last.Ticket == "" {
		return ""
	}
	at := "there"
	if last.Ticket != next.Ticket {
		at = fmt.Sprintf("at %s, %s", atAgent(last), last.Ticket)
	}
	following, goesOn := lifecycle.NextInChain(last)
	switch {
	case goesOn:
		return fmt.Sprintf("still open: %s is about to be submitted", following)
	case last.Closed:
		return fmt.Sprintf("ended %s: %s", at, Ending(last))
	}
	return fmt.Sprintf("still open %s: it waits for %s", at, WaitingFor(last).Words)
}

// OpenReturn is Return for an open handoff. If the return waits for the end of a chain, OpenReturn
// also names the most recent handoff of that chain.
func OpenReturn(s, last protocol.State) Phrase {
	if !s.ReturnExpected || !lifecycle.AwaitsChain(s) || last.Ticket == "" {
		return Return(s)
	}
	return phrase(fmt.Sprintf("still open: %s gets the end of the chain, which is at %s, %s", s.Source, atAgent(last), last.Ticket))
}

// atAgent names the agent that has or had a handoff, or else its target.
func atAgent(s protocol.State) string { return Person(cmp.Or(s.Agent, s.TargetWords())) }

// handedOn adds the state of the chain that a closed handoff continues as.
func (x *explainer) handedOn() {
	ticket, goesOn := lifecycle.NextInChain(x.State)
	if !goesOn {
		return
	}
	next, last := x.Next, x.Last
	if next.Ticket == "" {
		x.say("It is handed on as handoff %s, which is about to be submitted.", ticket)
		return
	}
	x.say("It was handed on to %s, as handoff %s.", atAgent(next), ticket)
	at := "there"
	if last.Ticket != next.Ticket {
		at = fmt.Sprintf("at %s, as handoff %s", atAgent(last), last.Ticket)
	}
	following, goesOn := lifecycle.NextInChain(last)
	switch {
	case goesOn:
		x.say("The chain is still open: handoff %s is about to be submitted.", following)
	case last.Closed:
		x.say("The chain ended %s: %s.", at, Ending(last))
		x.suggest("see that end", OpWhy, "ticket", last.Ticket)
	default:
		x.say("The chain is still open %s: it waits for %s.", at, WaitingFor(last).Words)
		x.suggest("see what it waits for", OpWhy, "ticket", last.Ticket)
	}
}
