package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	// entriesUnderWay is how many entries one PublishOutbox has sent without an answer, and
	// entryBytesUnderWay how many bytes of them: a stream of the engine keeps up to
	// 10,000 messages and 128 MB that it has not come to, and refuses what is beyond.
	entriesUnderWay    = 256
	entryBytesUnderWay = 1 << 20
	// outboxPublishersKept is how many inboxes are kept for the next PublishOutbox.
	outboxPublishersKept = 16
)

// errUnanswered marks an entry of which the engine has said nothing.
var errUnanswered = fmt.Errorf("%w: no answer", broker.ErrUnreachable)

// PublishOutbox implements broker.Engine. What is refused, or not answered within 2 s, is tried
// again like any offer or wake-up, one by one; when the engine does not answer at
// all the rest is not tried.
func (j *Engine) PublishOutbox(ctx context.Context, entries []broker.OutboxEntry) []error {
	errs := make([]error, len(entries))
	for i := range errs {
		errs[i] = errUnanswered
	}
	if ctx.Err() == nil {
		if h, err := j.takeOutboxPublisher(); err == nil {
			h.put(ctx, entries, errs)
			j.returnOutboxPublisher(h)
		}
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

// publishEntry publishes one entry.
func (j *Engine) publishEntry(ctx context.Context, h *broker.OutboxEntry) error {
	if h.Body == nil {
		return j.Arm(ctx, h.WakeUp.Ticket, h.WakeUp.Seq, h.WakeUp.At)
	}
	return j.PutOffer(broker.WithTrace(ctx, h.Trace), h.Offer, h.Body)
}

func checkEntry(h *broker.OutboxEntry) error {
	if h.Body == nil {
		return protocol.CheckID("ticket", h.WakeUp.Ticket)
	}
	return h.Offer.Validate()
}

func entryMessage(h *broker.OutboxEntry) *message {
	if h.Body == nil {
		return wakeUpMessage(h.WakeUp.Ticket, h.WakeUp.Seq, h.WakeUp.At)
	}
	return offerMessage(h.Offer, h.Body, h.Trace)
}

// outboxPublisher sends entries for one caller at a time. Each has a number of its own as the
// last token of what it is answered on, so that a late answer is no other's.
type outboxPublisher struct {
	j       *Engine
	inbox   string // ends with a dot
	sub     *nats.Subscription
	answers chan *nats.Msg
	sent    uint64
}

func (j *Engine) takeOutboxPublisher() (*outboxPublisher, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil, broker.ErrClosed
	}
	if n := len(j.outboxPublishers); n > 0 {
		h := j.outboxPublishers[n-1]
		j.outboxPublishers = j.outboxPublishers[:n-1]
		return h, nil
	}
	// The library drops what the channel has no room for: twice what is under way is
	// answers to what was given up.
	h := &outboxPublisher{j: j, inbox: j.nc.NewInbox() + ".", answers: make(chan *nats.Msg, 4*entriesUnderWay)}
	var err error
	if h.sub, err = j.nc.ChanSubscribe(h.inbox+"*", h.answers); err != nil {
		return nil, fmt.Errorf("%w: %w", broker.ErrUnreachable, err)
	}
	return h, nil
}

func (j *Engine) returnOutboxPublisher(h *outboxPublisher) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed || len(j.outboxPublishers) >= outboxPublishersKept {
		_ = h.sub.Unsubscribe()
		return
	}
	j.outboxPublishers = append(j.outboxPublishers, h)
}

func (j *Engine) closeOutboxPublishers() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, h := range j.outboxPublishers {
		_ = h.sub.Unsubscribe()
	}
	j.outboxPublishers = nil
}

// put sends entries and notes in errs what is answered. It returns when everything
// is, or when no answer is to be expected any more.
func (h *outboxPublisher) put(ctx context.Context, entries []broker.OutboxEntry, errs []error) {
	first, next, under, bytes := h.sent, 0, 0, 0
	link := h.j.connectionChange()
	silence := time.NewTimer(tryTimeout)
	defer silence.Stop()
	for next < len(entries) || under > 0 {
		for ; next < len(entries) && under < entriesUnderWay && bytes < entryBytesUnderWay; next++ {
			if errs[next] = checkEntry(&entries[next]); errs[next] != nil {
				continue
			}
			msg := entryMessage(&entries[next])
			msg.Reply = h.inbox + strconv.FormatUint(h.sent, 10)
			h.sent++
			errs[next] = h.j.nc.PublishMsg(&msg.Msg)
			msg.release()
			if errs[next] == nil {
				errs[next] = errUnanswered
				under, bytes = under+1, bytes+len(entries[next].Body)
			}
		}
		if under == 0 {
			continue
		}
		select {
		case m := <-h.answers:
			number, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, h.inbox), 10, 64)
			i := int(number - first)
			if err != nil || number < first || i >= next || errs[i] != errUnanswered {
				continue // to what was given up
			}
			errs[i] = entryError(m)
			under, bytes = under-1, bytes-len(entries[i].Body)
			silence.Reset(tryTimeout)
		case <-ctx.Done():
			return
		case <-h.j.closing.Done():
			return
		case <-link:
			return
		case <-silence.C:
			return
		}
	}
}

// entryError is what the engine says of an entry; nil: it stands.
func entryError(m *nats.Msg) error {
	if _, ok := ackedSeq(m.Data); ok {
		return nil
	}
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return nats.ErrNoResponders
	}
	var ack struct {
		Error *apiError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &ack); err != nil {
		return err
	}
	if ack.Error != nil && ack.Error.ErrorCode != codeConflict { // which says that the offer stands
		return ack.Error
	}
	return nil
}
