package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
)

// tailIdle bounds how long a tail waits without news before it checks that there are none: a
// consumer may disappear without an error.
const tailIdle = 2 * time.Second

// LedgerInfo implements broker.Engine.
func (j *Engine) LedgerInfo(ctx context.Context) (broker.LedgerInfo, error) {
	all := make([]broker.LedgerInfo, broker.PartitionsMax)
	if err := j.eachPartition(func(p int) (err error) {
		all[p], err = j.partitionInfo(ctx, p)
		return err
	}); err != nil {
		return broker.LedgerInfo{}, err
	}
	ledger := all[0]
	for p := 1; p < j.partitions() && all[p].First > 0; p++ { // 0: it was added meanwhile
		all[p].Created = ledger.Created
		ledger.Others = append(ledger.Others, all[p])
	}
	return ledger, nil
}

// partitionInfo is LedgerInfo for one partition. Only the first one knows which ledger it is.
func (j *Engine) partitionInfo(ctx context.Context, p int) (broker.LedgerInfo, error) {
	var l broker.LedgerInfo
	err := j.retryWithTimeout(ctx, func(ctx context.Context) error {
		asked := time.Now()
		stream, err := j.js.Stream(ctx, ledgerStreams[p])
		if err != nil {
			return err
		}
		info := stream.CachedInfo()
		if p == 0 {
			j.adoptLedger(asked, info)
		}
		created, began, accepted := LedgerIdentity(info.Created, info.Config.Metadata)
		base := broker.PartitionBase(p)
		l = broker.LedgerInfo{Created: created, Began: began, First: max(info.State.FirstSeq, base+1), Last: max(info.State.LastSeq, base),
			LastAt: info.State.LastTime.UTC(), Messages: info.State.Msgs, Handoffs: info.State.NumSubjects, Accepted: accepted}
		return nil
	})
	if err != nil {
		return broker.LedgerInfo{}, fmt.Errorf("state of the ledger: %w", err)
	}
	return l, nil
}

// MissingEntries reads from the leader which entries between the first and the last of the ledger
// are missing.
func (j *Engine) MissingEntries(ctx context.Context) (missing []broker.Range, err error) {
	err = j.retryWithTimeout(ctx, func(ctx context.Context) error {
		missing = nil
		for p := range j.partitions() {
			stream, err := j.js.Stream(ctx, ledgerStreams[p])
			if err != nil {
				return err
			}
			info, err := stream.Info(ctx, jetstream.WithDeletedDetails(true))
			if err != nil {
				return err
			}
			for _, seq := range info.State.Deleted {
				missing = append(missing, broker.Range{From: seq, To: seq})
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("missing entries of the ledger: %w", err)
	}
	return broker.MergeRanges(missing), nil
}

// Since implements broker.Engine.
func (j *Engine) Since(ctx context.Context, at time.Time) (broker.Cursor, error) {
	at = at.UTC()
	ledger, err := j.LedgerInfo(ctx)
	if err != nil {
		return nil, err
	}
	since := ledger.End() // read first: an entry that it does not have is behind it
	for p := range since {
		msg, err := j.getMessage(ctx, ledgerStreams[p], getRequest{StartTime: &at})
		switch {
		case err == nil:
			since[p] = msg.Seq
		case !errors.Is(err, broker.ErrNotFound):
			return nil, fmt.Errorf("entries since %v: %w", at, err)
		}
	}
	return since, nil
}

// Tail implements broker.Engine.
func (j *Engine) Tail(ctx context.Context, from broker.Cursor, fn func(broker.Entry) error) error {
	err := j.whileGrowing(ctx, func(ctx context.Context, p int, one *sync.Mutex) error {
		return j.tail(ctx, p, from.Next(p), func(e broker.Entry) error {
			one.Lock()
			defer one.Unlock()
			if err := context.Cause(ctx); err != nil { // another partition has ended the tail
				return err
			}
			return fn(e)
		})
	})
	switch end := j.endOf(ctx, err); {
	case end == broker.ErrClosed:
		err = end
	case end != nil:
		return end
	case !errors.Is(err, broker.ErrUnreachable) && !errors.Is(err, broker.ErrLedgerChanged) && !errors.Is(err, broker.ErrNotAllowed):
		err = fmt.Errorf("%w: %w", broker.ErrUnreachable, err)
	}
	return fmt.Errorf("follow the ledger from %v: %w", from, err)
}

// tail is Tail for one partition.
func (j *Engine) tail(ctx context.Context, p int, from uint64, fn func(broker.Entry) error) error {
	ledger, err := j.partitionInfo(ctx, p)
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
	messages, stop, err := j.tailConsumer(ctx, p, next)
	if err != nil {
		return causeOr(ctx, err)
	}
	defer stop()
	idle := &idleTimer{}
	defer idle.stop()
	for delivered := uint64(1); ; delivered++ {
		msg, err := j.tailNext(ctx, p, messages, idle, ledger.Created, next)
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
			return fmt.Errorf("received delivery %d instead of %d", meta.Sequence.Consumer, delivered)
		case seq != next && (from > 0 || delivered > 1) && !ledger.Lost(next, seq-1): // only the beginning may be missing
			return fmt.Errorf("%w: received entry %d instead of %d", broker.ErrLedgerChanged, seq, next)
		}
		ticket, _ := parseLedgerSubject(msg.Subject())
		if err := fn(broker.Entry{Ticket: ticket, Seq: seq, At: meta.Timestamp.UTC(), Body: msg.Data()}); err != nil {
			return &callerError{err}
		}
		next = seq + 1
	}
}

// whileConnected returns a context that also ends with the connection: a single node forgets the
// consumer when it restarts, and messages in flight are lost.
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

// causeOr returns why ctx ended, or err if it has not.
func causeOr(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// tailConsumer starts to receive a partition from a sequence on.
func (j *Engine) tailConsumer(ctx context.Context, p int, from uint64) (jetstream.MessagesContext, func(), error) {
	cfg := jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: 30 * time.Second,
	}
	var consumer jetstream.Consumer
	err := j.retryWithTimeout(ctx, func(ctx context.Context) (err error) {
		consumer, err = j.js.CreateConsumer(ctx, ledgerStreams[p], cfg)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	name := consumer.CachedInfo().Name
	messages, err := consumer.Messages(jetstream.PullMaxMessages(replayBatch))
	if err != nil {
		j.deleteConsumer(ledgerStreams[p], name)
		return nil, nil, err
	}
	return messages, func() { messages.Stop(); j.deleteConsumer(ledgerStreams[p], name) }, nil
}

// tailNext waits for the next message, as long as the leader reports the same ledger with nothing
// new.
func (j *Engine) tailNext(ctx context.Context, p int, messages jetstream.MessagesContext, idle *idleTimer, created time.Time, next uint64) (jetstream.Msg, error) {
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
			return nil, fmt.Errorf("entry %d exists and is not delivered", next)
		}
		ledger, err := j.partitionInfo(ctx, p)
		if err != nil {
			return nil, causeOr(ctx, err)
		}
		if !ledger.Created.Equal(created) || ledger.Last+1 < next {
			return nil, fmt.Errorf("%w: it was created at %v and ends at %d", broker.ErrLedgerChanged, ledger.Created, ledger.Last)
		}
		overdue = ledger.Last >= next
	}
}

// idleTimer limits waits to between tailIdle and half of it, with one context for many messages:
// one context per message would need a timer each.
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

// hintPause is how long hints are collected before they are published together: each flush of the
// connection wakes the server.
const hintPause = time.Millisecond

// hints notify waiters that a handoff has a new head. The engine of the appending process publishes
// them, on the subject of the ticket, once the append is stored. They are best effort: waiters also
// poll.
type hints struct {
	nc *nats.Conn

	mu     sync.Mutex
	wait   []hint
	timer  *time.Timer // calls publish
	closed bool
}

// hint reports a stored append.
type hint struct {
	ticket string
	seq    uint64
}

func newHints(nc *nats.Conn) *hints {
	h := &hints{nc: nc}
	h.timer = time.AfterFunc(time.Hour, h.publish)
	h.timer.Stop()
	return h
}

// add publishes a hint within hintPause.
func (h *hints) add(ticket string, seq uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	if len(h.wait) == 0 {
		h.timer.Reset(hintPause)
	}
	h.wait = append(h.wait, hint{ticket, seq})
}

// publish publishes the collected hints.
func (h *hints) publish() {
	h.mu.Lock()
	defer h.mu.Unlock()
	body := make([]byte, 0, 20) // the library copies it
	for _, each := range h.wait {
		_ = h.nc.Publish(feedSubject(each.ticket), strconv.AppendUint(body, each.seq, 10))
	}
	clear(h.wait)
	h.wait = h.wait[:0]
}

// close publishes the last hints.
func (h *hints) close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.timer.Stop()
	h.publish()
}

// Feed implements broker.Engine.
func (j *Engine) Feed(ctx context.Context, ticket string) (<-chan uint64, func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if j.isClosed() {
		return nil, nil, broker.ErrClosed
	}
	latest := make(chan uint64, 1)
	// The library calls the handler of a subscription from one goroutine,
	// which makes it the only sender.
	sub, err := j.nc.Subscribe(feedSubject(ticket), func(m *nats.Msg) {
		seq, err := strconv.ParseUint(string(m.Data), 10, 64)
		if err != nil {
			return
		}
		select {
		case <-latest: // the newest replaces one not yet read
		default:
		}
		latest <- seq
	})
	if err != nil {
		return nil, nil, fmt.Errorf("feed of %s: %w: %w", ticket, broker.ErrUnreachable, err)
	}
	cancel := context.AfterFunc(ctx, func() { _ = sub.Unsubscribe() })
	return latest, func() { cancel(); _ = sub.Unsubscribe() }, nil
}
