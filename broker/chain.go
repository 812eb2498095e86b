package broker

import (
	"context"
	"errors"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// ensureChain records the end of the chain that a closed handoff began, once that has ended. It
// takes one read for each handoff of the chain.
func (b *Broker) ensureChain(ctx context.Context, head Head) (Head, error) {
	last, err := b.lastOfChain(ctx, head)
	if err != nil || last.Ticket == head.Ticket {
		return head, err
	}
	head, _, err = b.update(ctx, head, b.decisionDirectory, func(h Head, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		return lifecycle.EndChain(h.State, d, last.State, now)
	})
	return head, err
}

// LastOfChain returns the handoff that a chain has come to: the one that the chain of a handoff
// ended with, or that has it now. It is the handoff itself where that has handed on to none.
func (b *Broker) LastOfChain(ctx context.Context, ticket string) (Head, error) {
	head, err := b.Head(ctx, ticket, 0)
	if err != nil {
		return Head{}, unknownTicketError(ticket, err)
	}
	return b.lastOfChain(ctx, head)
}

// lastOfChain follows a chain. It stops before a handoff that is promised and not there yet, or
// that cannot be read.
func (b *Broker) lastOfChain(ctx context.Context, head Head) (Head, error) {
	for {
		ticket, goesOn := lifecycle.NextInChain(head.State)
		if !goesOn {
			return head, nil
		}
		next, err := b.Head(ctx, ticket, 0)
		switch {
		case errors.Is(err, ErrNotFound), Unreadable(err):
			return head, nil
		case err != nil:
			return head, err
		}
		head = next
	}
}

// chainReturn is the end of the chain that a handoff began, as the source of that gets it.
func (b *Broker) chainReturn(ctx context.Context, head Head) (protocol.Return, error) {
	last, err := b.Head(ctx, head.State.ChainEnd.Ticket, 0)
	if err != nil {
		return protocol.Return{}, unknownTicketError(head.State.ChainEnd.Ticket, err)
	}
	last.State.ChainEnd = nil // the last of a chain began none, whatever a foreign writer says
	ret, err := b.returnOf(ctx, last)
	if err != nil {
		return ret, err
	}
	ret.OfChain(head.State)
	for link := head; link.Ticket != last.Ticket; {
		ret.Audit.TokensConsumed += link.State.Usage.Total().Tokens
		next, _ := lifecycle.NextInChain(link.State)
		if link, err = b.Head(ctx, next, 0); err != nil { // so old that it is gone: the figure is of the others
			break
		}
	}
	return ret, nil
}

// warnDeep tells of a lineage that is deep, and again with each as many hand-offs more.
func (b *Broker) warnDeep(s *protocol.State) {
	if lifecycle.Deep(s.Summary) && s.Lineage.Depth%protocol.LineageDepthWarning == 0 {
		b.log.Warn("deep lineage: agents may hand off in a loop", "ticket", s.Ticket, "depth", s.Lineage.Depth, "most", protocol.LineageDepthMax,
			"repeated", lifecycle.Repeated(s.Summary, s.Source, s.Agent))
	}
}
