package broker

import (
	"context"
	"encoding/json"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// parked is what is kept of a late result whose body lies inline or in a blob.
func parked(result protocol.Result, inline json.RawMessage, blob *protocol.BlobRef) protocol.ResultParked {
	result.Normalize()
	return protocol.ResultParked{Status: result.Status, Result: inline, Blob: blob, Usage: result.Usage,
		SetAside: protocol.CutText(result.SetAside, protocol.FailureBytesMax), Vote: result.Vote(),
		Malformed: protocol.CutText(result.Malformed, protocol.FailureBytesMax)}
}

// parkResult keeps the result of a holder that has lost its lease, and tells whether it did.
func (c *Claim) parkResult(ctx context.Context, late protocol.ResultParked) bool {
	c.mu.Lock()
	late.Holder, late.Fence, late.Attempt = c.Holder.ID, c.fence, c.head.State.Attempt
	c.mu.Unlock()
	kept, err := c.b.parkResult(ctx, c.Ticket, c.Agent, late)
	if err != nil {
		c.b.log.Warn("late result not kept", "ticket", c.Ticket, "err", err)
	}
	return kept
}

func (b *Broker) parkResult(ctx context.Context, ticket, agent string, late protocol.ResultParked) (kept bool, err error) {
	if late.Fence == 0 {
		return false, nil
	}
	if late.Usage, err = b.price(ctx, agent, protocol.Usage{}, late.Usage); err != nil {
		return false, err
	}
	late.By, late.Agent = late.Holder, agent
	head, err := b.Head(ctx, ticket, 0)
	if err != nil {
		return false, err
	}
	_, kept, err = b.updateWithoutDirectory(ctx, head, func(h Head, _ *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		return lifecycle.Park(h.State, late, now), nil
	})
	return kept, err
}

// ParkLate keeps a result that is handed in under a lease which is lost. It
// reports false, and keeps nothing, where the lease never had the handoff, still
// has it, or let go of it itself (a result handed in twice is no late one), where its result
// was kept before, and where it waits, and is no end.
func (b *Broker) ParkLate(ctx context.Context, lease string, result protocol.Result) (kept bool, err error) {
	token, err := ParseLease(lease)
	if err != nil {
		return false, err
	}
	result.Normalize()
	if err := result.Validate(); err != nil || result.Awaits() {
		return false, err
	}
	encode := func(r *protocol.Result) (json.RawMessage, error) { return protocol.EncodeResult(*r) }
	if result.Malformed != "" {
		encode = encodeMalformed
	}
	body, err := encode(&result)
	if err != nil {
		return false, err
	}
	if len(body) > protocol.ResultBytesMax {
		return false, protocol.Errorf(protocol.CodeTooLarge, "result", "%s", protocol.OverSize(len(body), protocol.ResultBytesMax))
	}
	fence, attempt, err := b.lostFence(ctx, token)
	if err != nil || fence == 0 {
		return false, err
	}
	inline, blob, err := b.storeResult(ctx, token.Ticket, body)
	if err != nil {
		return false, err
	}
	late := parked(result, inline, blob)
	late.Holder, late.Fence, late.Attempt = token.Holder, fence, attempt
	return b.parkResult(ctx, token.Ticket, token.Agent, late)
}

// lostFence is the last fence that the holder of a lease had and that was taken
// from it; 0 is none.
func (b *Broker) lostFence(ctx context.Context, token LeaseToken) (fence uint64, attempt int, err error) {
	err = b.eachChange(ctx, token.Ticket, func(c protocol.Change) error {
		for _, e := range c.Record.Events {
			switch e := e.(type) {
			case *protocol.Accepted:
				if e.Holder == token.Holder && e.Agent == token.Agent {
					fence, attempt = c.Seq, e.Attempt
				}
			case *protocol.Taken:
				if e.Holder == token.Holder && e.Agent == token.Agent {
					fence, attempt = c.Seq, 1
				}
			default:
				if fence != 0 && releasingHolder(e) == token.Holder {
					fence = 0
				}
			}
		}
		return nil
	})
	return fence, attempt, err
}

// releasingHolder is the holder that let go of its handoff with an event; empty if it is
// no such event.
func releasingHolder(e protocol.Event) string {
	switch e := e.(type) {
	case *protocol.Completed:
		return e.By
	case *protocol.Failed:
		return e.By
	case *protocol.Rejected:
		return e.Holder
	case *protocol.Conditioned:
		return e.Holder
	case *protocol.Released:
		return e.Holder
	case *protocol.Suspended:
		return e.By
	case *protocol.Escalated:
		return e.By
	case *protocol.RolledBack:
		return e.By
	}
	return ""
}
