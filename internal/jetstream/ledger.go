package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// recordHeader carries the id of the record, so that a client can identify an append without
// parsing it.
const recordHeader = "Handoff-Record"

// Append implements broker.Engine.
func (j *Engine) Append(ctx context.Context, ticket string, after uint64, id string, attention lifecycle.Attention, body []byte) (uint64, error) {
	if err := protocol.CheckID("ticket", ticket); err != nil {
		return 0, err
	}
	seq, err := j.append(ctx, ticket, after, id, body)
	if err != nil {
		return 0, fmt.Errorf("append %s after %d: %w", ticket, after, err)
	}
	if after > 0 { // a new ticket has no waiters
		j.hints.add(ticket, seq)
	}
	j.announcer.Appended(ctx, ticket, seq, attention)
	return seq, nil
}

// append is Append without its announcement.
func (j *Engine) append(ctx context.Context, ticket string, after uint64, id string, body []byte) (uint64, error) {
	if after > 0 {
		return j.appendIn(ctx, broker.PartitionOf(after), ticket, after, id, body, func() bool { return false })
	}
	for {
		p, seq, first, err := j.beginIn(ctx, ticket)
		switch {
		case errors.Is(err, broker.ErrUnreachable) && !errors.Is(err, broker.ErrClosed) && ctx.Err() == nil:
			continue
		case err != nil:
			return 0, err
		case seq > 0 && first == id:
			return seq, nil
		case seq > 0:
			return 0, broker.ErrConflict
		}
		seq, err = j.appendIn(ctx, p, ticket, 0, id, body, func() bool { return j.beginsElsewhere(ticket) })
		if !errors.Is(err, errElsewhere) {
			return seq, err
		}
	}
}

// errElsewhere ends the tries to begin a handoff in a partition: it may have to begin in another one.
var errElsewhere = errors.New("the handoff may begin in another partition")

// appendIn appends to a partition. elsewhere is asked before each try but the first.
func (j *Engine) appendIn(ctx context.Context, p int, ticket string, after uint64, id string, body []byte, elsewhere func() bool) (uint64, error) {
	if p >= broker.PartitionsMax {
		return 0, broker.ErrConflict // no entry has that sequence
	}
	msg := newMessage(ledgerSubject(p, ticket), body)
	defer msg.release()
	msg.set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(after, 10))
	msg.set(jetstream.ExpectedStreamHeader, ledgerStreams[p])
	msg.set(recordHeader, id)
	msg.setTrace(broker.TraceFrom(ctx))
	admitted, err := j.commits[p].awaitAdmission(ctx, &msg.Msg)
	if err != nil || admitted.seq > 0 {
		return admitted.seq, err
	}
	defer admitted.release()
	tried, seq := false, uint64(0)
	err = j.retryBounded(ctx, func() (err error) {
		if tried && elsewhere() {
			return errElsewhere
		}
		tried = true
		seq, err = j.publish(ctx, &msg.Msg)
		admitted.release()
		if hasCode(err, codeConflict) {
			seq, err = j.judgeConflict(ctx, p, ticket, after, id)
		}
		return err
	})
	return seq, err
}

// Settled implements broker.Engine.
func (j *Engine) Settled(ticket string, seq uint64) { j.announcer.Settled(ticket, seq) }

// judgeConflict returns the successor of sequence after if it has the record id, otherwise
// ErrConflict. An append that timed out may have been stored, and others may have followed it, so
// the head does not decide this.
func (j *Engine) judgeConflict(ctx context.Context, p int, ticket string, after uint64, id string) (uint64, error) {
	next, err := j.getMessage(ctx, ledgerStreams[p], getRequest{Seq: max(after, broker.PartitionBase(p)) + 1, NextFor: ledgerSubject(p, ticket)})
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return 0, broker.ErrConflict // the expected sequence never existed
	case err != nil:
		return 0, err
	case next.header(recordHeader) == id:
		return next.Seq, nil
	}
	return 0, broker.ErrConflict
}

// Last implements broker.Engine.
func (j *Engine) Last(ctx context.Context, ticket string, min uint64) (broker.Entry, error) {
	var msg stored
	last := func(p int) (err error) {
		msg, err = j.getMessage(ctx, ledgerStreams[p], getRequest{LastFor: ledgerSubject(p, ticket)})
		return err
	}
	read := func() (err error) {
		if p := broker.PartitionOf(min); min > 0 && p < broker.PartitionsMax {
			err = last(p)
		} else {
			err = j.inPlaces(ticket, last)
		}
		if err != nil && !errors.Is(err, broker.ErrNotFound) {
			return backoff.Permanent(err)
		}
		if err == nil && msg.Seq < min {
			return fmt.Errorf("%w: the head is %d, not yet %d", broker.ErrNotFound, msg.Seq, min)
		}
		return err
	}
	err := read()
	if err != nil && min > 0 && errors.Is(err, broker.ErrNotFound) {
		// A newly elected leader may still be applying entries that were acknowledged before its election.
		err = backoff.Retry(read, newBackOff(ctx))
		if ctx.Err() != nil {
			err = ctx.Err()
		}
	}
	var permanent *backoff.PermanentError
	if errors.As(err, &permanent) {
		err = permanent.Err
	}
	if err != nil {
		return broker.Entry{}, fmt.Errorf("last of %s: %w", ticket, err)
	}
	return entryOf(ticket, msg), nil
}

// Next implements broker.Engine.
func (j *Engine) Next(ctx context.Context, ticket string, after uint64) (broker.Entry, error) {
	var msg stored
	next := func(p int) (err error) {
		msg, err = j.getMessage(ctx, ledgerStreams[p], getRequest{Seq: max(after, broker.PartitionBase(p)) + 1, NextFor: ledgerSubject(p, ticket)})
		return err
	}
	var err error
	if p := broker.PartitionOf(after); after > 0 && p < broker.PartitionsMax {
		err = next(p)
	} else {
		err = j.inPlaces(ticket, next)
	}
	if err != nil {
		return broker.Entry{}, fmt.Errorf("next of %s after %d: %w", ticket, after, err)
	}
	return entryOf(ticket, msg), nil
}

func entryOf(ticket string, msg stored) broker.Entry {
	return broker.Entry{Ticket: ticket, Seq: msg.Seq, At: msg.Time.UTC(), Body: msg.Data}
}

// Heads implements broker.Engine. After a failure of the engine it resumes after the last entry
// that fn received.
func (j *Engine) Heads(ctx context.Context, fn func(broker.Entry) error) error {
	for p := range j.partitions() {
		end := func(ctx context.Context) (uint64, error) {
			// Read after the consumer was created: every head that it starts with has a sequence up to this
			// one, and the message there is one of them.
			return j.ledgerEnd(ctx, p)
		}
		start := func(uint64) jetstream.ConsumerConfig {
			return jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, FilterSubject: ledgerPrefixes[p] + ">"}
		}
		if err := j.replay(ctx, p, 0, start, end, fn); err != nil {
			return fmt.Errorf("read the heads of the ledger: %w", err)
		}
	}
	return nil
}

// Entries implements broker.Engine. After a failure of the engine it resumes after the last entry
// that fn received.
func (j *Engine) Entries(ctx context.Context, from broker.Cursor, fn func(broker.Entry) error) error {
	lasts := make([]uint64, j.partitions())
	for p := range lasts {
		var err error
		if lasts[p], err = j.ledgerEnd(ctx, p); err != nil {
			return fmt.Errorf("read the ledger from %v: %w", from, err)
		}
	}
	for p, last := range lasts {
		next := max(from.Next(p), broker.PartitionBase(p)+1)
		if last < next {
			continue
		}
		end := func(context.Context) (uint64, error) { return last, nil }
		start := func(after uint64) jetstream.ConsumerConfig {
			return jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: after + 1}
		}
		if err := j.replay(ctx, p, next-1, start, end, fn); err != nil {
			return fmt.Errorf("read the ledger from %v: %w", from, err)
		}
	}
	return nil
}

// ledgerEnd reads from the leader the sequence of the last message of a partition; 0 if it is empty.
func (j *Engine) ledgerEnd(ctx context.Context, p int) (last uint64, err error) {
	err = j.retryWithTimeout(ctx, func(ctx context.Context) error {
		stream, err := j.js.Stream(ctx, ledgerStreams[p])
		if err != nil {
			return err
		}
		if state := stream.CachedInfo().State; state.Msgs > 0 {
			last = state.LastSeq
		}
		return nil
	})
	return last, err
}

const (
	// replayBatch bounds the memory of a replay: 256 entries of at most 300 KB or so. A bound in bytes
	// would be better, but on a consumer of last messages the engine loses those that do not fit a
	// request (nats-server 2.15.2; TestHeadsOfAllSizes).
	replayBatch = 256
	// replayIdle is how long a replay waits for the next entry before it restarts after the last one.
	replayIdle = 5 * time.Second
	// replayPatience bounds the start of a replay. To find the heads of a ledger that the engine has
	// not read since its start it reads all of it: ten or more seconds per million handoffs.
	replayPatience = 2 * time.Minute
	// replayTries is the number of consecutive restarts without a new entry.
	replayTries = 3
)

// replay reads a partition through its own consumers, from after sequence after up to an end.
func (j *Engine) replay(ctx context.Context, p int, after uint64, start func(after uint64) jetstream.ConsumerConfig,
	end func(context.Context) (uint64, error), fn func(broker.Entry) error) error {
	for failures := 0; ; failures++ {
		before := after
		err := j.replayOnce(ctx, p, &after, start(after), end, fn)
		if err == nil {
			return nil
		}
		switch end := j.endOf(ctx, err); {
		case end != nil:
			return end
		case after > before:
			failures = 0
		case failures == replayTries || errors.Is(err, broker.ErrUnreachable):
			return fmt.Errorf("%w: stopped after sequence %d: %w", broker.ErrUnreachable, after, err)
		}
	}
}

// callerError is an error of the caller's function.
type callerError struct{ err error }

func (e *callerError) Error() string { return e.err.Error() }

// endOf returns the error that ends a loop over entries for good: that of the caller's function or
// context, or ErrClosed; nil if err is none of them.
func (j *Engine) endOf(ctx context.Context, err error) error {
	var mine *callerError
	switch {
	case errors.As(err, &mine):
		return mine.err
	case ctx.Err() != nil:
		return ctx.Err()
	case j.isClosed():
		return broker.ErrClosed
	}
	return nil
}

func (j *Engine) replayOnce(ctx context.Context, p int, after *uint64, cfg jetstream.ConsumerConfig,
	end func(context.Context) (uint64, error), fn func(broker.Entry) error) error {
	cfg.AckPolicy, cfg.MemoryStorage, cfg.Replicas = jetstream.AckNonePolicy, true, 1
	cfg.InactiveThreshold = 30 * time.Second
	var consumer jetstream.Consumer
	err := j.retryWithTimeout(ctx, func(context.Context) error {
		// The engine may be slow, and a second try would make it start over: only a broken connection ends
		// the wait.
		linked, unlink, err := j.whileConnected(ctx)
		if err != nil {
			return err
		}
		defer unlink()
		long, cancel := context.WithTimeout(linked, replayPatience)
		defer cancel()
		consumer, err = j.js.CreateConsumer(long, ledgerStreams[p], cfg)
		return causeOr(linked, err)
	})
	if err != nil {
		return err
	}
	defer j.deleteConsumer(ledgerStreams[p], consumer.CachedInfo().Name)
	last, err := end(ctx)
	if err != nil {
		return err
	}
	if last <= *after {
		return nil
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(replayBatch))
	if err != nil {
		return err
	}
	defer messages.Stop()
	for delivered := uint64(1); ; delivered++ {
		msg, err := j.nextMessage(ctx, messages)
		if err != nil {
			return err
		}
		meta, err := msg.Metadata()
		if err != nil {
			return err
		}
		if meta.Sequence.Consumer != delivered { // a message was lost
			return fmt.Errorf("received delivery %d instead of %d", meta.Sequence.Consumer, delivered)
		}
		seq := meta.Sequence.Stream
		if cfg.DeliverPolicy == jetstream.DeliverByStartSequencePolicy && seq != *after+1 && delivered > 1 {
			// The ledger denies deletion: only its start may be missing.
			ledger, err := j.partitionInfo(ctx, p)
			if err != nil {
				return err
			}
			if !ledger.Lost(*after+1, seq-1) {
				return fmt.Errorf("received entry %d instead of %d", seq, *after+1)
			}
		}
		ticket, ok := parseLedgerSubject(msg.Subject())
		if ok && seq > *after {
			if err := fn(broker.Entry{Ticket: ticket, Seq: seq, At: meta.Timestamp.UTC(), Body: msg.Data()}); err != nil {
				return &callerError{err}
			}
		}
		*after = max(*after, seq)
		if seq >= last {
			return nil
		}
	}
}

func (j *Engine) nextMessage(ctx context.Context, messages jetstream.MessagesContext) (jetstream.Msg, error) {
	if j.isClosed() {
		return nil, broker.ErrClosed
	}
	idle, cancel := context.WithTimeout(ctx, replayIdle)
	defer cancel()
	return messages.Next(jetstream.NextContext(idle))
}

// deleteConsumer deletes an unused consumer, which the engine would do a little later.
func (j *Engine) deleteConsumer(stream, consumer string) {
	if j.isClosed() || !j.nc.IsConnected() {
		return
	}
	_ = j.nc.Publish(apiPrefix+"CONSUMER.DELETE."+stream+"."+consumer, nil)
}
