package dossier

import (
	"context"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Chain has the next and the last handoff of a chain.
type Chain struct {
	Next  Reference `json:"next"` // the handoff that it continues as
	Last  Reference `json:"last"` // the most recent handoff of the chain
	Ended bool      `json:"ended"`

	NextState protocol.State `json:"-"`
	LastState protocol.State `json:"-"`
}

// ChainReader reads states and chains. An api.Source implements it.
type ChainReader interface {
	Status(ctx context.Context, ticket string) (protocol.State, error)
	LastOfChain(ctx context.Context, ticket string) (protocol.State, error)
}

// ChainOf reads the chain of a handoff. It returns nil if the chain ended with this handoff.
func ChainOf(ctx context.Context, r ChainReader, s protocol.State) (*Chain, error) {
	ticket, goesOn := lifecycle.NextInChain(s)
	if !goesOn {
		return nil, nil
	}
	next, err := readState(ctx, r, ticket)
	if err != nil {
		return nil, err
	}
	last := next
	if lifecycle.GoesOn(next) {
		if last, err = r.LastOfChain(ctx, s.Ticket); err != nil {
			return nil, err
		}
	}
	c := &Chain{Next: referenceTo(ticket, next), Last: referenceTo(ticket, last), NextState: next, LastState: last}
	if last.Ticket != "" {
		c.Last.Ticket = last.Ticket
	}
	c.Ended = last.Closed && !lifecycle.GoesOn(last)
	return c, nil
}

func referenceTo(ticket string, s protocol.State) Reference {
	return Reference{Ticket: ticket, Agent: agentOf(s), Phase: s.Phase, Closed: s.Closed, Outcome: s.Outcome}
}
