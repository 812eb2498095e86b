package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// recordHeader carries the id of the record, so that a client that must know whose
// append it was need not parse it.
const recordHeader = "Handoff-Record"

// Append implements broker.Engine.
func (j *Engine) Append(ctx context.Context, ticket string, after uint64, id string, attention lifecycle.Attention, body []byte) (uint64, error) {
	if err := protocol.CheckID("ticket", ticket); err != nil {
		return 0, err
	}
	msg := newMessage(ledgerSubject(ticket), body)
	defer msg.release()
	msg.set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(after, 10))
	msg.set(jetstream.ExpectedStreamHeader, LedgerStream)
	msg.set(recordHeader, id)
	msg.setTrace(broker.TraceFrom(ctx))
	admitted, err := j.commits.awaitAdmission(ctx, &msg.Msg)
	seq := admitted.seq
	if err == nil && seq == 0 {
		seq, err = j.appendSingly(ctx, &msg.Msg, &admitted, func(ctx context.Context) (uint64, error) {
			return j.judgeConflict(ctx, ticket, after, id)
		})
	}
	if err != nil {
		return 0, fmt.Errorf("append %s after %d: %w", ticket, after, err)
	}
	if after > 0 { // a ticket that is new is not waited for
		j.hints.add(ticket, seq)
	}
	j.announcer.Appended(ctx, ticket, seq, attention)
	return seq, nil
}

// Settled implements broker.Engine.
func (j *Engine) Settled(ticket string, seq uint64) { j.announcer.Settled(ticket, seq) }

// appendSingly appends one message by itself, again while that fails in passing.
func (j *Engine) appendSingly(ctx context.Context, msg *nats.Msg, admitted *admission, judge func(context.Context) (uint64, error)) (seq uint64, err error) {
	defer admitted.release()
	err = j.retryBounded(ctx, func() (err error) {
		seq, err = j.publish(ctx, msg)
		admitted.release()
		if hasCode(err, codeConflict) {
			seq, err = judge(ctx)
		}
		return err
	})
	return seq, err
}

// judgeConflict tells whose the successor of sequence after is. An append that
// timed out may have been stored, and others may have followed it: the head
// would tell nothing.
func (j *Engine) judgeConflict(ctx context.Context, ticket string, after uint64, id string) (uint64, error) {
	next, err := j.getMessage(ctx, LedgerStream, getRequest{Seq: after + 1, NextFor: ledgerSubject(ticket)})
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return 0, broker.ErrConflict // the expected sequence is one that never was
	case err != nil:
		return 0, err
	case next.header(recordHeader) == id:
		return next.Seq, nil
	}
	return 0, broker.ErrConflict
}

// Last implements broker.Engine.
func (j *Engine) Last(ctx context.Context, ticket string, min uint64) (broker.Entry, error) {
	req := getRequest{LastFor: ledgerSubject(ticket)}
	var msg stored
	read := func() (err error) {
		if msg, err = j.getMessage(ctx, LedgerStream, req); err != nil && !errors.Is(err, broker.ErrNotFound) {
			return backoff.Permanent(err)
		}
		if err == nil && msg.Seq < min {
			return fmt.Errorf("%w: the head is %d, not yet %d", broker.ErrNotFound, msg.Seq, min)
		}
		return err
	}
	err := read()
	if err != nil && min > 0 && errors.Is(err, broker.ErrNotFound) {
		// A leader that has just been elected may still be applying what was
		// acknowledged before it.
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
	msg, err := j.getMessage(ctx, LedgerStream, getRequest{Seq: after + 1, NextFor: ledgerSubject(ticket)})
	if err != nil {
		return broker.Entry{}, fmt.Errorf("next of %s after %d: %w", ticket, after, err)
	}
	return entryOf(ticket, msg), nil
}

func entryOf(ticket string, msg stored) broker.Entry {
	return broker.Entry{Ticket: ticket, Seq: msg.Seq, At: msg.Time.UTC(), Body: msg.Data}
}

// Heads implements broker.Engine. It tries again, after the last entry that fn received,
// when the engine lets it down.
func (j *Engine) Heads(ctx context.Context, fn func(broker.Entry) error) error {
	end := func(ctx context.Context) (uint64, error) {
		// Read after the consumer was made: every head that it begins with
		// has a sequence up to this one, and the message there is one of them.
		return j.ledgerEnd(ctx)
	}
	start := func(uint64) jetstream.ConsumerConfig {
		return jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, FilterSubject: ledgerPrefix + ">"}
	}
	if err := j.replay(ctx, 0, start, end, fn); err != nil {
		return fmt.Errorf("read the heads of the ledger: %w", err)
	}
	return nil
}

// Entries implements broker.Engine. It tries again, after the last entry it passed
// on, when the engine lets it down.
func (j *Engine) Entries(ctx context.Context, from uint64, fn func(broker.Entry) error) error {
	last, err := j.ledgerEnd(ctx)
	if err != nil {
		return fmt.Errorf("read the ledger from %d: %w", from, err)
	}
	if last < from || last == 0 {
		return nil
	}
	end := func(context.Context) (uint64, error) { return last, nil }
	start := func(after uint64) jetstream.ConsumerConfig {
		return jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: after + 1}
	}
	if err := j.replay(ctx, max(from, 1)-1, start, end, fn); err != nil {
		return fmt.Errorf("read the ledger from %d: %w", from, err)
	}
	return nil
}

// ledgerEnd is the sequence of the ledger's last message, by its leader; 0 of
// an empty one.
func (j *Engine) ledgerEnd(ctx context.Context) (last uint64, err error) {
	err = j.retryWithTimeout(ctx, func(ctx context.Context) error {
		stream, err := j.js.Stream(ctx, LedgerStream)
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
	// replayBatch bounds what a replay has in memory: 256 entries of at most
	// 300 KB or so. A bound in bytes would be the better one, but on a consumer
	// of last messages the engine loses those that no longer fit a request
	// (nats-server 2.15.2; TestHeadsOfAllSizes).
	replayBatch = 256
	// replayIdle is how long a replay waits for the next entry before it
	// begins again behind the last one.
	replayIdle = 5 * time.Second
	// replayPatience is how long the engine may take to begin. To find the heads of
	// a ledger that it has not read since its start it reads all of it: ten
	// seconds a million handoffs and more.
	replayPatience = 2 * time.Minute
	// replayTries is how often in a row it does so without one more entry.
	replayTries = 3
)

// replay reads the ledger through consumers of its own, from behind sequence
// after up to an end.
func (j *Engine) replay(ctx context.Context, after uint64, start func(after uint64) jetstream.ConsumerConfig,
	end func(context.Context) (uint64, error), fn func(broker.Entry) error) error {
	for failures := 0; ; failures++ {
		before := after
		err := j.replayOnce(ctx, &after, start(after), end, fn)
		var mine *callerError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &mine):
			return mine.err
		case ctx.Err() != nil:
			return ctx.Err()
		case j.isClosed():
			return broker.ErrClosed
		case after > before:
			failures = 0
		case failures == replayTries || errors.Is(err, broker.ErrUnreachable):
			return fmt.Errorf("%w: stopped behind sequence %d: %w", broker.ErrUnreachable, after, err)
		}
	}
}

// callerError is an error of the function that entries are given to.
type callerError struct{ err error }

func (e *callerError) Error() string { return e.err.Error() }

func (j *Engine) replayOnce(ctx context.Context, after *uint64, cfg jetstream.ConsumerConfig,
	end func(context.Context) (uint64, error), fn func(broker.Entry) error) error {
	cfg.AckPolicy, cfg.MemoryStorage, cfg.Replicas = jetstream.AckNonePolicy, true, 1
	cfg.InactiveThreshold = 30 * time.Second
	var consumer jetstream.Consumer
	err := j.retryWithTimeout(ctx, func(context.Context) error {
		// An engine that is there may take its time, and a second try would make
		// it begin a second time: only a broken connection cuts it short.
		linked, unlink, err := j.whileConnected(ctx)
		if err != nil {
			return err
		}
		defer unlink()
		long, cancel := context.WithTimeout(linked, replayPatience)
		defer cancel()
		consumer, err = j.js.CreateConsumer(long, LedgerStream, cfg)
		return causeOr(linked, err)
	})
	if err != nil {
		return err
	}
	defer j.deleteConsumer(LedgerStream, consumer.CachedInfo().Name)
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
		if meta.Sequence.Consumer != delivered { // one was lost on the way to us
			return fmt.Errorf("delivery %d came where %d was due", meta.Sequence.Consumer, delivered)
		}
		seq := meta.Sequence.Stream
		if cfg.DeliverPolicy == jetstream.DeliverByStartSequencePolicy && seq != *after+1 && delivered > 1 {
			// The ledger denies deletion: only its beginning may be gone.
			return fmt.Errorf("entry %d came where %d was due", seq, *after+1)
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

// deleteConsumer deletes a consumer that is of no more use; the engine would do it by
// itself a little later.
func (j *Engine) deleteConsumer(stream, consumer string) {
	if j.isClosed() || !j.nc.IsConnected() {
		return
	}
	_ = j.nc.Publish(apiPrefix+"CONSUMER.DELETE."+stream+"."+consumer, nil)
}
