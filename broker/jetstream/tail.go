package jetstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
)

// tailIdle is how long a tail without news waits at most before it makes sure that
// there are none: a consumer may be gone without a word.
const tailIdle = 2 * time.Second

// LedgerInfo implements broker.Engine.
func (j *Engine) LedgerInfo(ctx context.Context) (broker.LedgerInfo, error) {
	var l broker.LedgerInfo
	err := j.retryWithTimeout(ctx, func(ctx context.Context) error {
		stream, err := j.js.Stream(ctx, LedgerStream)
		if err != nil {
			return err
		}
		info := stream.CachedInfo()
		created, began := ledgerTimes(info)
		l = broker.LedgerInfo{Created: created, Began: began, First: max(info.State.FirstSeq, 1), Last: info.State.LastSeq}
		return nil
	})
	if err != nil {
		return broker.LedgerInfo{}, fmt.Errorf("state of the ledger: %w", err)
	}
	return l, nil
}

// Since implements broker.Engine.
func (j *Engine) Since(ctx context.Context, at time.Time) (broker.Entry, error) {
	at = at.UTC()
	for request := (getRequest{StartTime: &at}); ; {
		msg, err := j.getMessage(ctx, LedgerStream, request)
		if err != nil {
			return broker.Entry{}, fmt.Errorf("first entry since %v: %w", at, err)
		}
		if ticket, ok := parseLedgerSubject(msg.Subject); ok {
			return broker.Entry{Ticket: ticket, Seq: msg.Seq, At: msg.Time.UTC(), Body: msg.Data}, nil
		}
		request = getRequest{Seq: msg.Seq + 1, NextFor: ledgerPrefix + "*"} // no entry of ours
	}
}

// Tail implements broker.Engine.
func (j *Engine) Tail(ctx context.Context, from uint64, fn func(broker.Entry) error) error {
	err := j.tail(ctx, from, fn)
	var mine *callerError
	switch {
	case errors.As(err, &mine):
		return mine.err
	case ctx.Err() != nil:
		return ctx.Err()
	case j.isClosed():
		err = broker.ErrClosed
	case !errors.Is(err, broker.ErrUnreachable) && !errors.Is(err, broker.ErrLedgerChanged) && !errors.Is(err, broker.ErrNotAllowed):
		err = fmt.Errorf("%w: %w", broker.ErrUnreachable, err)
	}
	return fmt.Errorf("follow the ledger from %d: %w", from, err)
}

func (j *Engine) tail(ctx context.Context, from uint64, fn func(broker.Entry) error) error {
	ledger, err := j.LedgerInfo(ctx)
	if err != nil {
		return err
	}
	next := from
	if from == 0 {
		next = ledger.First
	}
	if next < ledger.First || next > ledger.Last+1 {
		return fmt.Errorf("%w: it has the entries %d to %d", broker.ErrLedgerChanged, ledger.First, ledger.Last)
	}
	ctx, cancel, err := j.whileConnected(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	messages, stop, err := j.tailConsumer(ctx, next)
	if err != nil {
		return causeOr(ctx, err)
	}
	defer stop()
	idle := &idleTimer{}
	defer idle.stop()
	for delivered := uint64(1); ; delivered++ {
		msg, err := j.tailNext(ctx, messages, idle, ledger.Created, next)
		if err != nil {
			return err
		}
		meta, err := msg.Metadata()
		if err != nil {
			return err
		}
		seq := meta.Sequence.Stream
		switch {
		case meta.Sequence.Consumer != delivered:
			return fmt.Errorf("delivery %d came where %d was due", meta.Sequence.Consumer, delivered)
		case seq != next && (from > 0 || delivered > 1): // only a beginning may be gone
			return fmt.Errorf("%w: entry %d came where %d was due", broker.ErrLedgerChanged, seq, next)
		}
		ticket, _ := parseLedgerSubject(msg.Subject())
		if err := fn(broker.Entry{Ticket: ticket, Seq: seq, At: meta.Timestamp.UTC(), Body: msg.Data()}); err != nil {
			return &callerError{err}
		}
		next = seq + 1
	}
}

// whileConnected returns a context that ends with the connection, too: a single
// node forgets the consumer when it restarts, and what was on its way is lost.
func (j *Engine) whileConnected(ctx context.Context) (context.Context, func(), error) {
	link := j.connectionChange()
	ctx, cancel := context.WithCancelCause(ctx)
	if !j.start(func() {
		select {
		case <-link:
			cancel(errDisconnected)
		case <-j.closing.Done():
			cancel(broker.ErrClosed)
		case <-ctx.Done():
		}
	}) {
		cancel(nil)
		return nil, nil, broker.ErrClosed
	}
	return ctx, func() { cancel(nil) }, nil
}

// causeOr is why ctx ended; err if it has not.
func causeOr(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// tailConsumer begins to receive the ledger from a sequence on.
func (j *Engine) tailConsumer(ctx context.Context, from uint64) (jetstream.MessagesContext, func(), error) {
	cfg := jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: 30 * time.Second,
	}
	var consumer jetstream.Consumer
	err := j.retryWithTimeout(ctx, func(ctx context.Context) (err error) {
		consumer, err = j.js.CreateConsumer(ctx, LedgerStream, cfg)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	name := consumer.CachedInfo().Name
	messages, err := consumer.Messages(jetstream.PullMaxMessages(replayBatch))
	if err != nil {
		j.deleteConsumer(LedgerStream, name)
		return nil, nil, err
	}
	return messages, func() { messages.Stop(); j.deleteConsumer(LedgerStream, name) }, nil
}

// tailNext waits for the next message, for as long as the ledger, asked at its
// leader, is the same and has nothing new.
func (j *Engine) tailNext(ctx context.Context, messages jetstream.MessagesContext, idle *idleTimer, created time.Time, next uint64) (jetstream.Msg, error) {
	for overdue := false; ; {
		limited := idle.from(ctx)
		msg, err := messages.Next(jetstream.NextContext(limited))
		waited := limited.Err() != nil
		switch {
		case err == nil:
			return msg, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case !waited:
			return nil, err
		case overdue:
			return nil, fmt.Errorf("entry %d is there and does not come", next)
		}
		ledger, err := j.LedgerInfo(ctx)
		if err != nil {
			return nil, causeOr(ctx, err)
		}
		if !ledger.Created.Equal(created) || ledger.Last+1 < next {
			return nil, fmt.Errorf("%w: it was made at %v and ends at %d", broker.ErrLedgerChanged, ledger.Created, ledger.Last)
		}
		overdue = ledger.Last >= next
	}
}

// idleTimer limits waits to between tailIdle and half of it: so one context serves
// for many messages, where one for each would make a timer for each.
type idleTimer struct {
	ctx    context.Context
	cancel context.CancelFunc
	since  time.Time
}

// from returns a context that ends at least half of tailIdle from now.
func (t *idleTimer) from(ctx context.Context) context.Context {
	if now := time.Now(); t.ctx == nil || t.ctx.Err() != nil || now.Sub(t.since) > tailIdle/2 {
		t.stop()
		t.ctx, t.cancel = context.WithTimeout(ctx, tailIdle)
		t.since = now
	}
	return t.ctx
}

func (t *idleTimer) stop() {
	if t.cancel != nil {
		t.cancel()
	}
}
