package broker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// parked returns the record of a late result whose body is inline or in a blob.
func parked(result protocol.Result, inline json.RawMessage, blob *protocol.BlobRef) protocol.ResultParked {
	result.Normalize()
	return protocol.ResultParked{Status: result.Status, Result: inline, Blob: blob, Usage: result.Usage,
		SetAside: protocol.CutText(result.SetAside, protocol.FailureBytesMax), Vote: result.Vote(),
		Malformed: protocol.CutText(result.Malformed, protocol.FailureBytesMax)}
}

// parkResult keeps the result of a holder that has lost its lease, and reports whether it did.
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
	_, kept, err = b.update(ctx, head, wantNothing, func(h Head, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.Park(h.State, late, q.Now), nil
	})
	return kept, err
}

// Late classifies a result that was submitted under a lost lease.
type Late int

const (
	LateDropped  Late = iota // the lease never had the handoff, still has it, or released it otherwise
	LateKept                 // now or before
	LateRepeated             // the handoff left the lease with this result: it is not late
)

// ParkLate keeps a result that is submitted under a lost lease. A result that waits ends nothing,
// and is not kept.
func (b *Broker) ParkLate(ctx context.Context, lease string, result protocol.Result) (Late, error) {
	token, err := ParseLease(lease)
	if err != nil {
		return LateDropped, err
	}
	result.Normalize()
	if err := result.Validate(); err != nil {
		return LateDropped, err
	}
	encode := func(r *protocol.Result) (json.RawMessage, error) { return protocol.EncodeResult(*r) }
	if result.Malformed != "" {
		encode = encodeMalformed
	}
	body, err := encode(&result)
	if err != nil {
		return LateDropped, err
	}
	if len(body) > protocol.ResultBytesMax {
		return LateDropped, protocol.Errorf(protocol.CodeTooLarge, "result", "%s", protocol.OverSize(len(body), protocol.ResultBytesMax))
	}
	fence, attempt, released, err := b.lostFence(ctx, token)
	switch {
	case err != nil:
		return LateDropped, err
	case released != nil:
		return b.isRepeated(ctx, released, result, body)
	case fence == 0, result.Awaits():
		return LateDropped, nil
	}
	inline, blob, err := b.storeResult(ctx, token.Ticket, body)
	if err != nil {
		return LateDropped, err
	}
	late := parked(result, inline, blob)
	late.Holder, late.Fence, late.Attempt = token.Holder, fence, attempt
	kept, err := b.parkResult(ctx, token.Ticket, token.Agent, late)
	if err != nil || kept {
		return LateKept, err
	}
	head, err := b.Head(ctx, token.Ticket, 0)
	if err != nil || !slices.Contains(head.State.LateFences, fence) {
		return LateDropped, err
	}
	return LateKept, nil
}

// isRepeated compares a result, and its body, with the event that released a handoff.
func (b *Broker) isRepeated(ctx context.Context, released protocol.Event, result protocol.Result, body json.RawMessage) (Late, error) {
	if result.Awaits() { // it is not kept: there was nothing to wait for, or it waits
		switch released.(type) {
		case *protocol.Suspended, *protocol.Completed:
			return LateRepeated, nil
		}
		return LateDropped, nil
	}
	inline, blob := protocol.BodyOf(released)
	if inline == nil {
		return LateDropped, nil
	}
	redactor, err := b.redaction()
	if err != nil {
		return LateDropped, err
	}
	redacted, err := redactor.Result(ctx, body)
	if err != nil {
		return LateDropped, err
	}
	same := bytes.Equal(*inline, redacted)
	if blob != nil {
		same = blob.Digest == fmt.Sprintf("sha256:%x", sha256.Sum256(redacted))
	}
	if same {
		return LateRepeated, nil
	}
	return LateDropped, nil
}

// lostFence returns the last fence that the holder of a lease had and that was taken from it; 0 is
// none. released is the event with which the holder itself released the handoff.
func (b *Broker) lostFence(ctx context.Context, token LeaseToken) (fence uint64, attempt int, released protocol.Event, err error) {
	err = b.eachChange(ctx, token.Ticket, func(c protocol.Change) error {
		for _, e := range c.Record.Events {
			switch e := e.(type) {
			case *protocol.Accepted:
				if token.issuedFor(e) {
					fence, attempt, released = c.Seq, e.Attempt, nil
				}
			case *protocol.Taken:
				if token.issuedFor(e) {
					fence, attempt, released = c.Seq, 1, nil
				}
			default:
				if fence != 0 && releasingHolder(e) == token.Holder {
					fence, released = 0, e
				}
			}
		}
		return nil
	})
	return fence, attempt, released, err
}

// releasingHolder returns the author of an event that ends an attempt; empty for other events. A
// holder that makes such an event has released its handoff.
func releasingHolder(e protocol.Event) string {
	if protocol.OutlineOf(e).Ends == "" {
		return ""
	}
	return e.Author()
}
