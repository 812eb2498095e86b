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
	// hintsUnderWay is how many hints one PutHints has sent without an answer, and
	// hintBytesUnderWay how many bytes of them: a stream of the engine keeps up to
	// 10,000 messages and 128 MB that it has not come to, and refuses what is beyond.
	hintsUnderWay     = 256
	hintBytesUnderWay = 1 << 20
	// hintersKept is how many inboxes are kept for the next PutHints.
	hintersKept = 16
)

// errUnanswered marks a hint of which the engine has said nothing.
var errUnanswered = fmt.Errorf("%w: no answer", broker.ErrUnreachable)

// PutHints implements broker.Engine. What is refused, or not answered within 2 s, is tried
// again like any offer or wake-up, one by one; when the engine does not answer at
// all the rest is not tried.
func (j *Engine) PutHints(ctx context.Context, hints []broker.Hint) []error {
	errs := make([]error, len(hints))
	for i := range errs {
		errs[i] = errUnanswered
	}
	if ctx.Err() == nil {
		if h, err := j.takeHinter(); err == nil {
			h.put(ctx, hints, errs)
			j.returnHinter(h)
		}
	}
	var down error
	for i := range hints {
		switch {
		case errs[i] == nil:
		case down != nil:
			errs[i] = down
		default:
			if errs[i] = j.putHint(ctx, &hints[i]); errors.Is(errs[i], broker.ErrUnreachable) || ctx.Err() != nil {
				down = errs[i]
			}
		}
	}
	return errs
}

// putHint puts out one.
func (j *Engine) putHint(ctx context.Context, h *broker.Hint) error {
	if h.Body == nil {
		return j.Arm(ctx, h.WakeUp.Ticket, h.WakeUp.Seq, h.WakeUp.At)
	}
	return j.PutOffer(broker.WithTrace(ctx, h.Trace), h.Offer, h.Body)
}

func checkHint(h *broker.Hint) error {
	if h.Body == nil {
		return protocol.CheckID("ticket", h.WakeUp.Ticket)
	}
	return h.Offer.Validate()
}

func hintMessage(h *broker.Hint) *nats.Msg {
	if h.Body == nil {
		return wakeUpMessage(h.WakeUp.Ticket, h.WakeUp.Seq, h.WakeUp.At)
	}
	return offerMessage(h.Offer, h.Body, h.Trace)
}

// hinter sends hints for one caller at a time. Each has a number of its own as the
// last token of what it is answered on, so that a late answer is no other's.
type hinter struct {
	j       *Engine
	inbox   string // ends with a dot
	sub     *nats.Subscription
	answers chan *nats.Msg
	sent    uint64
}

func (j *Engine) takeHinter() (*hinter, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil, broker.ErrClosed
	}
	if n := len(j.hinters); n > 0 {
		h := j.hinters[n-1]
		j.hinters = j.hinters[:n-1]
		return h, nil
	}
	// The library drops what the channel has no room for: twice what is under way is
	// answers to what was given up.
	h := &hinter{j: j, inbox: j.nc.NewInbox() + ".", answers: make(chan *nats.Msg, 4*hintsUnderWay)}
	var err error
	if h.sub, err = j.nc.ChanSubscribe(h.inbox+"*", h.answers); err != nil {
		return nil, fmt.Errorf("%w: %w", broker.ErrUnreachable, err)
	}
	return h, nil
}

func (j *Engine) returnHinter(h *hinter) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed || len(j.hinters) >= hintersKept {
		_ = h.sub.Unsubscribe()
		return
	}
	j.hinters = append(j.hinters, h)
}

func (j *Engine) closeHinters() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, h := range j.hinters {
		_ = h.sub.Unsubscribe()
	}
	j.hinters = nil
}

// put sends hints and notes in errs what is answered. It returns when everything
// is, or when no answer is to be expected any more.
func (h *hinter) put(ctx context.Context, hints []broker.Hint, errs []error) {
	first, next, under, bytes := h.sent, 0, 0, 0
	link := h.j.linkChange()
	silence := time.NewTimer(tryTimeout)
	defer silence.Stop()
	for next < len(hints) || under > 0 {
		for ; next < len(hints) && under < hintsUnderWay && bytes < hintBytesUnderWay; next++ {
			if errs[next] = checkHint(&hints[next]); errs[next] != nil {
				continue
			}
			msg := hintMessage(&hints[next])
			msg.Reply = h.inbox + strconv.FormatUint(h.sent, 10)
			h.sent++
			if errs[next] = h.j.nc.PublishMsg(msg); errs[next] == nil {
				errs[next] = errUnanswered
				under, bytes = under+1, bytes+len(hints[next].Body)
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
			errs[i] = hintError(m)
			under, bytes = under-1, bytes-len(hints[i].Body)
			silence.Reset(tryTimeout)
		case <-ctx.Done():
			return
		case <-h.j.life.Done():
			return
		case <-link:
			return
		case <-silence.C:
			return
		}
	}
}

// hintError is what the engine says of a hint; nil: it stands.
func hintError(m *nats.Msg) error {
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
