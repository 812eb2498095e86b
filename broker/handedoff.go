package broker

import (
	"context"

	"github.com/agenthandoff/handoff/protocol"
)

// HandedOff is a handoff that another one has handed off.
type HandedOff struct {
	N      int           `json:"n"`      // its ordinal
	By     string        `json:"by"`     // the agent that had the other one then
	Type   protocol.Type `json:"type"`   //
	Target string        `json:"target"` // in words
}

// HandedOff reads what this handoff has handed off, by whichever agent had it, in
// the order in which that happened.
func (c *Claim) HandedOff(ctx context.Context) ([]HandedOff, error) {
	var all []HandedOff
	by := ""
	err := c.b.eachChange(ctx, c.Ticket, func(change protocol.Change) error {
		for _, e := range change.Record.Events {
			switch e := e.(type) {
			case *protocol.Accepted:
				by = e.Agent
			case *protocol.Taken:
				by = e.Agent
			case *protocol.HandedOff:
				all = append(all, HandedOff{N: e.N, By: by, Type: e.Type, Target: e.Target})
			}
		}
		return nil
	})
	return all, err
}

// Returns is ChildReturns of this handoff, as its holder last saw it.
func (c *Claim) Returns(ctx context.Context) ([]protocol.Return, error) {
	return c.b.ChildReturns(ctx, c.State())
}
