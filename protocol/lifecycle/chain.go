package lifecycle

import (
	"fmt"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// A chain is the handoffs that follow from one by goto. Its end is that of the last one. The
// first of them keeps what it owes its source or its parent until the chain has ended, and
// tells that end, once; the others owe nothing.

// GoesOn tells whether a handoff has closed and handed on: its chain goes on with another.
func GoesOn(s p.State) bool { return s.Closed && s.Children != nil && s.Children.Next != 0 }

// NextInChain returns the ticket of the handoff that the chain of s goes on with.
func NextInChain(s p.State) (ticket string, ok bool) {
	if !GoesOn(s) {
		return "", false
	}
	return s.ChildTicket(s.Children.Next - 1), true
}

// owesEnd tells whether a source or a parent gets the end of a handoff.
func owesEnd(s p.State) bool {
	return s.ReturnOf == "" && (s.ReturnExpected || s.Parent != "" && s.N > 0 && (s.Group != "" || s.Wait != ""))
}

// beginsChain tells whether the chain that begins with a handoff has an end that it owes.
func beginsChain(s p.State) bool { return owesEnd(s) && s.EndOf != p.ReturnOfHandoff }

// AwaitsChain tells whether a closed handoff owes the end of its chain, and does not know it.
func AwaitsChain(s p.State) bool { return GoesOn(s) && s.ChainEnd == nil && beginsChain(s) }

// HasEnded tells whether the end of a handoff is there, as its source or its parent gets it.
func HasEnded(s p.State) bool { return s.Closed && !AwaitsChain(s) }

// endOf is the end of a handoff as its source or its parent gets it: that of its chain, where
// this is known, else its own.
func endOf(s p.State) p.ChainEnd {
	if s.ChainEnd != nil {
		return *s.ChainEnd
	}
	end := p.ChainEnd{Ticket: s.Ticket, Agent: s.Agent, Outcome: s.Outcome, Vote: s.Vote}
	if s.Account != nil && s.ChainOf != "" {
		end.Left = Available(s)
		if keepsRest(&s) { // but for what was overrun
			end.Left = end.Left.Minus(end.Left.Max(p.Amounts{}))
		}
	}
	return end
}

// NotifiesChain tells whether a handoff is the end of a chain that another one began, and
// that owes this end.
func NotifiesChain(s p.State) bool { return s.Closed && s.ChainOf != "" && !GoesOn(s) }

// continueChain has the summary of a child go on with the chain of parent: its end is that of the
// chain, and the return's clock runs on.
func continueChain(child *p.Summary, parent p.State) {
	switch {
	case parent.ChainOf != "":
		child.ChainOf = parent.ChainOf
	case beginsChain(parent):
		child.ChainOf = parent.Ticket
	default:
		return
	}
	child.ReturnFrom = parent.ReturnSince
	child.Overrides.ReturnTimeoutMS, child.Overrides.OnReturnTimeout = parent.Overrides.ReturnTimeoutMS, parent.Overrides.OnReturnTimeout
}

// EndChain records the end of the chain that a handoff began, and sends its return on its way.
// last is the last handoff of the chain. The step is empty where that has not closed, or the end
// is known.
func EndChain(s p.State, d *Directory, last p.State, now time.Time) (Step, error) {
	if !AwaitsChain(s) || !last.Closed || GoesOn(last) {
		return Step{}, nil
	}
	return decideAfter(s, d, &p.ChainEnded{Meta: p.Meta{At: now, By: By}, End: endOf(last)})
}

func applyChainEnded(s *p.State, e *p.ChainEnded) error {
	if !AwaitsChain(*s) || e.End.Ticket == "" || e.End.Outcome == "" {
		return fmt.Errorf("%w: its chain ended as %+v, and it awaits none", ErrIllegal, e.End)
	}
	end := e.End
	s.ChainEnd = &end
	return nil
}
