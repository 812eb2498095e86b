//go:build proof

package sim

import (
	"bytes"
	"context"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// owesEnd tells whether a source or a parent waits for the end of a handoff.
func owesEnd(s protocol.State) bool {
	tracked := s.N > 0 && (s.Group != "" || s.Wait != "")
	return s.ReturnOf == "" && (s.ReturnExpected || tracked)
}

// endOf follows the chain that a handoff began to where it has come, as the entries have it. ended
// says that it has closed there.
func (j *judge) endOf(s protocol.State) (last protocol.State, ended bool) {
	for owesEnd(s) && s.EndOf == "" || s.ChainOf != "" {
		if !s.Closed || s.Children == nil || s.Children.Next == 0 {
			break
		}
		next := j.heads[s.ChildTicket(s.Children.Next-1)].state
		if next.Ticket == "" { // it is yet to be submitted
			return s, false
		}
		s = next
	}
	return s, s.Closed
}

// checkChain: the end of a chain is told by its first handoff alone, and when it is there. A rollback
// goes to the agent before as well.
func (j *judge) checkChain(before, after protocol.State, events []protocol.Event) {
	j.checkPrevious(before, events)
	if before.Ticket == "" && after.ReturnOf != "" {
		of := j.heads[after.ReturnOf].state
		if _, ended := j.endOf(of); !ended {
			j.faultLocked("the end of %s is told, and its chain goes on", of.Ticket)
		}
		if of.ChainOf != "" && of.Outcome != protocol.OutcomeRolledBack {
			j.faultLocked("the end of the chain of %s is told twice: by %s, too", of.ChainOf, of.Ticket)
		}
	}
	for _, e := range events {
		marked, ok := e.(*protocol.ChildrenClosed)
		if !ok {
			continue
		}
		for _, child := range marked.Children {
			of := j.heads[after.ChildTicket(child.N)].state
			if after.Closed && after.Children.Next == child.N+1 {
				// Its chain goes on with it, and gets the end by chain_ended: it marks that
				// link as closed, no more, when all that follows is to be cancelled.
				if of.Outcome != child.Outcome {
					j.faultLocked("link %d of %s has ended with %s, and is %s (%s)", child.N, after.Ticket, child.Outcome, of.Phase, of.Outcome)
				}
				continue
			}
			if last, ended := j.endOf(of); !ended || last.Outcome != child.Outcome {
				j.faultLocked("child %d of %s has ended with %s for its parent, and %s is %s (%s)", child.N, after.Ticket, child.Outcome, last.Ticket, last.Phase, last.Outcome)
			}
		}
	}
	if after.ChainEnd != nil && before.ChainEnd == nil {
		if last, ended := j.endOf(after); !ended || last.Ticket != after.ChainEnd.Ticket || last.Outcome != after.ChainEnd.Outcome {
			j.faultLocked("the chain of %s ended as %+v, and is with %s, %s", after.Ticket, *after.ChainEnd, last.Ticket, last.Phase)
		}
	}
}

// checkChainEnd: what owes the end of its chain has it once all is over.
func (j *judge) checkChainEnd(s protocol.State) {
	if owesEnd(s) && s.EndOf == "" && s.Children != nil && s.Children.Next != 0 && s.ChainEnd == nil {
		j.faultLocked("the end of the chain of %s was never told", s.Ticket)
	}
}

// tellsTwice makes a submission within a chain one that expects a return of its own.
func tellsTwice(body []byte) []byte {
	return bytes.ReplaceAll(body, []byte(`"chain_of":`), []byte(`"return_expected":true,"chain_of":`))
}

// withoutChains is EnsureReturn that passes over chains.
func (f *faultyBroker) withoutChains(ctx context.Context, head broker.Head) error {
	if lifecycle.AwaitsChain(head.State) {
		return nil
	}
	return f.Broker.EnsureReturn(ctx, head)
}
