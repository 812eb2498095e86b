package jetstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
)

const (
	// consumeBatch is how many entries a consumer requests at once. Each may take consumeEach, and all
	// of them together less than the wait after which the engine delivers them again.
	consumeBatch = 8
	consumeEach  = 15 * time.Second
	// consumePendingMax bounds the entries that wait for another try. The consumer gets no further
	// entry until one of them is done.
	consumePendingMax = 1000
	// consumeAgain is how far a consumer that is created again goes back. It is more than clocks differ.
	consumeAgain = time.Minute
)

// Consume calls fn with each new entry of the ledger, at least once. Those of a partition come one at a
// time. New are the
// entries since the consumer of that name was first created. The engine keeps its place, also while
// no process consumes, for as long as it keeps an entry (broker.LedgerAge). Processes with the same
// name share the entries. Names have letters, digits, _ and -.
//
// fn has 15 s for an entry, by its context. attempt counts the deliveries of the entry, from 1. If
// again is not zero, the entry is delivered again after that time, and others may come before it.
// After an error of fn it is delivered again at once, and after the death of the process in 2 min.
//
// ready is called once the consumer exists. Consume waits for an engine that does not answer. One that
// comes back from a backup has no consumer: the next one begins a minute before the last answer of the old
// one. Consume returns the error of fn, the end of ctx, or broker.ErrNotAllowed.
func (j *Engine) Consume(ctx context.Context, name string, ready func(), fn func(ctx context.Context, e broker.Entry, attempt int) (again time.Duration, err error)) error {
	ready = sync.OnceFunc(ready)
	var count atomic.Int64 // partitions whose consumer exists
	return j.whileGrowing(ctx, func(ctx context.Context, p int, _ *sync.Mutex) error {
		exists := sync.OnceFunc(func() {
			if count.Add(1) >= int64(j.partitions()) {
				ready()
			}
		})
		return j.consumePartition(ctx, p, name, exists, fn)
	})
}

// consumePartition is Consume for one partition.
func (j *Engine) consumePartition(ctx context.Context, p int, name string, ready func(), fn func(context.Context, broker.Entry, int) (time.Duration, error)) error {
	cfg := jetstream.ConsumerConfig{
		Durable: name, DeliverPolicy: jetstream.DeliverNewPolicy, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: 4 * j.cfg.AckWait, MaxDeliver: -1, MaxAckPending: consumePendingMax, InactiveThreshold: broker.LedgerAge,
	}
	var answered time.Time // last, by the consumer
	for pauses := newBackOff(ctx); ; {
		err := j.consume(ctx, p, cfg, &answered, ready, fn)
		switch end := j.endOf(ctx, err); {
		case end != nil:
			return end
		case errors.Is(err, broker.ErrNotAllowed):
			return fmt.Errorf("consume the ledger as %s: %w", name, err)
		}
		j.cfg.Log.Warn("the consumer of the ledger starts again", "consumer", name, "after", err)
		j.pause(ctx, pauses.NextBackOff(), nil)
	}
}

// consume creates the consumer if it does not exist, and calls fn until an error.
func (j *Engine) consume(ctx context.Context, p int, cfg jetstream.ConsumerConfig, answered *time.Time, ready func(), fn func(context.Context, broker.Entry, int) (time.Duration, error)) error {
	var consumer jetstream.Consumer
	err := j.retryWithTimeout(ctx, func(ctx context.Context) error {
		existing, err := j.js.Consumer(ctx, ledgerStreams[p], cfg.Durable)
		switch {
		case err == nil: // its beginning cannot be changed
			old := existing.CachedInfo().Config
			cfg.DeliverPolicy, cfg.OptStartTime = old.DeliverPolicy, old.OptStartTime
		case !errors.Is(err, jetstream.ErrConsumerNotFound):
			return err
		case !answered.IsZero():
			from := answered.Add(-consumeAgain)
			cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &from
		case p > 0 && j.consumedBefore(ctx, p, cfg.Durable):
			cfg.DeliverPolicy = jetstream.DeliverAllPolicy
		}
		consumer, err = j.js.CreateOrUpdateConsumer(ctx, ledgerStreams[p], cfg)
		return err
	})
	if err == nil {
		*answered = time.Now()
		ready()
	}
	connected, cancel, linkErr := j.whileConnected(ctx)
	if linkErr != nil {
		return linkErr
	}
	defer cancel()
	for err == nil {
		var batch jetstream.MessageBatch
		if batch, err = consumer.Fetch(consumeBatch, jetstream.FetchContext(connected)); err != nil {
			return err
		}
		for msg := range batch.Messages() {
			if err == nil {
				err = consumeOne(ctx, msg, fn)
			} else {
				_ = msg.Nak()
			}
		}
		if err = errors.Join(err, batch.Error(), connected.Err()); err == nil {
			*answered = time.Now()
		}
	}
	return err
}

// consumedBefore reports whether the consumer of that name is older than a partition: all entries of the
// partition are new then.
func (j *Engine) consumedBefore(ctx context.Context, p int, name string) bool {
	first, err := j.js.Consumer(ctx, LedgerStream, name)
	if err != nil {
		return false
	}
	stream, err := j.js.Stream(ctx, ledgerStreams[p])
	return err == nil && first.CachedInfo().Created.Before(stream.CachedInfo().Created)
}

// consumeOne calls fn with the entry of a message, and acknowledges it.
func consumeOne(ctx context.Context, msg jetstream.Msg, fn func(context.Context, broker.Entry, int) (time.Duration, error)) error {
	meta, err := msg.Metadata()
	if err != nil {
		return err
	}
	ticket, ok := parseLedgerSubject(msg.Subject())
	if !ok {
		return msg.Ack() // never an entry of ours
	}
	one, cancel := context.WithTimeout(ctx, consumeEach)
	defer cancel()
	again, err := fn(one, broker.Entry{Ticket: ticket, Seq: meta.Sequence.Stream, At: meta.Timestamp.UTC(), Body: msg.Data()}, int(meta.NumDelivered))
	switch {
	case err != nil:
		_ = msg.Nak()
		return &callerError{err}
	case again > 0:
		return msg.NakWithDelay(again)
	}
	return msg.Ack()
}
