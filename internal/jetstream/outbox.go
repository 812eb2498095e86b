package jetstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	// entriesUnderWay is how many entries of one PublishOutbox are in flight, and entryBytesUnderWay
	// their size: a stream of the engine queues up to 10,000 messages and 128 MB, and refuses more.
	entriesUnderWay    = 256
	entryBytesUnderWay = 1 << 20
)

// errUnanswered marks an entry without an answer of the engine.
var errUnanswered = fmt.Errorf("%w: no answer", broker.ErrUnreachable)

// PublishOutbox implements broker.Engine. An entry that is refused, or not answered within 2 s, is
// retried like any offer or wake-up, one by one; if the engine does not answer at all, the rest is
// not tried.
func (j *Engine) PublishOutbox(ctx context.Context, entries []broker.OutboxEntry) []error {
	errs := make([]error, len(entries))
	for i := range errs {
		errs[i] = errUnanswered
	}
	if ctx.Err() == nil && !j.isClosed() {
		j.publishEntries(ctx, entries, errs)
	}
	var down error
	for i := range entries {
		switch {
		case errs[i] == nil:
		case down != nil:
			errs[i] = down
		default:
			if errs[i] = j.publishEntry(ctx, &entries[i]); errors.Is(errs[i], broker.ErrUnreachable) || ctx.Err() != nil {
				down = errs[i]
			}
		}
	}
	return errs
}

// PutOffer implements broker.Engine. It retries a timeout for 12 s.
func (j *Engine) PutOffer(ctx context.Context, key broker.OfferKey, body []byte) error {
	if body == nil {
		body = []byte{}
	}
	return j.publishEntry(ctx, &broker.OutboxEntry{Offer: key, Body: body, Trace: broker.TraceFrom(ctx)})
}

// Arm implements broker.Engine. It retries a timeout for 12 s.
func (j *Engine) Arm(ctx context.Context, ticket string, seq uint64, at time.Time) error {
	return j.publishEntry(ctx, &broker.OutboxEntry{WakeUp: broker.WakeUp{Ticket: ticket, Seq: seq, At: at}})
}

// publishEntry publishes one entry.
func (j *Engine) publishEntry(ctx context.Context, h *broker.OutboxEntry) error {
	if err := checkEntry(h); err != nil {
		return err
	}
	msg := j.entryMessage(h)
	defer msg.release()
	err := j.storeEntry(ctx, &msg.Msg)
	switch {
	case err == nil || hasCode(err, codeConflict): // the offer is stored already
		return nil
	case h.Body != nil:
		return fmt.Errorf("offer %s to %s: %w", h.Offer.Ticket, h.Offer.Agent, err)
	}
	return fmt.Errorf("arm %s at %d: %w", h.WakeUp.Ticket, h.WakeUp.Seq, err)
}

func checkEntry(h *broker.OutboxEntry) error {
	if h.Body == nil {
		return protocol.CheckID("ticket", h.WakeUp.Ticket)
	}
	return h.Offer.Validate()
}

func (j *Engine) entryMessage(h *broker.OutboxEntry) *message {
	switch {
	case h.WakeUp.Attention != "":
		return announcement(&h.WakeUp)
	case h.Body == nil:
		return wakeUpMessage(h.WakeUp.Ticket, h.WakeUp.Seq, h.WakeUp.At)
	}
	return offerMessage(j.queueIn(h.Offer.Agent), h.Offer, h.Body, h.Trace)
}

// publishEntries publishes entries and records the answers in errs. It returns when all are
// answered, or no more answers can be expected.
func (j *Engine) publishEntries(ctx context.Context, entries []broker.OutboxEntry, errs []error) {
	type sentEntry struct {
		at   int
		wait *ackWait
	}
	var sent []sentEntry
	defer func() {
		for _, e := range sent {
			j.acks.forget(e.wait)
		}
	}()
	for next, bytes := 0, 0; next < len(entries) || len(sent) > 0; {
		for ; next < len(entries) && len(sent) < entriesUnderWay && bytes < entryBytesUnderWay; next++ {
			if errs[next] = checkEntry(&entries[next]); errs[next] != nil {
				continue
			}
			msg := j.entryMessage(&entries[next])
			wait, err := j.acks.send(&msg.Msg)
			msg.release()
			if errs[next] = err; err == nil {
				errs[next] = errUnanswered
				sent, bytes = append(sent, sentEntry{next, wait}), bytes+len(entries[next].Body)
			}
		}
		if len(sent) == 0 {
			continue
		}
		first := sent[0]
		reply, err := j.acks.wait(ctx, first.wait, tryTimeout)
		switch {
		case errors.Is(err, nats.ErrNoResponders):
			errs[first.at] = err
		case err != nil:
			return
		default:
			errs[first.at] = entryError(reply)
		}
		j.acks.forget(first.wait)
		sent, bytes = sent[1:], bytes-len(entries[first.at].Body)
	}
}

// entryError returns the engine's error for an entry; nil if it is stored.
func entryError(m *nats.Msg) error {
	_, err := seqIn(m.Data)
	if hasCode(err, codeConflict) { // the offer is stored already
		return nil
	}
	return err
}
