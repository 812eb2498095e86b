package broker

import (
	"context"

	"github.com/agenthandoff/handoff/protocol"
)

// HandedOff is a handoff that another one has handed off.
type HandedOff struct {
	Ticket string        `json:"ticket"`
	Key    string        `json:"key,omitempty"` // of its package
	Type   protocol.Type `json:"type"`
	Target string        `json:"to"` // in words
	By     string        `json:"by"` // the agent that had the other one then
	// Asked is that the attempt in hand has asked for it.
	Asked   bool             `json:"asked,omitempty"`
	Phase   protocol.Phase   `json:"phase,omitempty"`
	Closed  bool             `json:"closed"`
	Outcome protocol.Outcome `json:"outcome,omitempty"`

	N       int `json:"-"` // its ordinal
	written string
}

// HandedOff reads what this handoff has handed off, by whichever agent had it, in
// the order in which that happened.
func (c *Claim) HandedOff(ctx context.Context) ([]HandedOff, error) {
	return c.b.handedOff(ctx, c.State())
}

func (b *Broker) handedOff(ctx context.Context, s protocol.State) ([]HandedOff, error) {
	var all []HandedOff
	by := ""
	err := b.eachChange(ctx, s.Ticket, func(change protocol.Change) error {
		for _, e := range change.Record.Events {
			switch e := e.(type) {
			case *protocol.Accepted:
				by = e.Agent
			case *protocol.Taken:
				by = e.Agent
			case *protocol.HandedOff:
				all = append(all, HandedOff{Ticket: e.Ticket, Key: e.Key, Type: e.Type, Target: e.Target, By: by, N: e.N, written: e.Written,
					Asked: s.Children != nil && s.Children.Asked.Has(e.N)})
			}
		}
		return nil
	})
	return all, err
}

// Children reads what a handoff has handed off, and where each of them is. It takes one read for each.
func (b *Broker) Children(ctx context.Context, s protocol.State) ([]HandedOff, error) {
	if s.Children == nil || s.Children.Made == "" {
		return nil, nil
	}
	all, err := b.handedOff(ctx, s)
	if err != nil {
		return nil, err
	}
	err = forEachParallel(ctx, readsAtOnce, len(all), func(ctx context.Context, i int) error {
		head, err := b.Head(ctx, all[i].Ticket, 0)
		if isAbsent(err) {
			return nil
		}
		all[i].Phase, all[i].Closed, all[i].Outcome = head.State.Phase, head.State.Closed, head.State.Outcome
		return err
	})
	return all, err
}

// Returns is ChildReturns of this handoff, as its holder last saw it.
func (c *Claim) Returns(ctx context.Context) ([]protocol.Return, error) {
	return c.b.ChildReturns(ctx, c.State())
}
