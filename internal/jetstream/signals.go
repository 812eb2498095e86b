package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Headers of a signal. A message without an id has its sequence for one.
const (
	signalIDHeader     = "Handoff-Signal-Id"
	signalParentHeader = "Handoff-Parent"
	// signalHeadersMax bounds the headers of a signal.
	signalHeadersMax = 4 << 10
	// codeStoreFailed is the code of a full stream, among others.
	codeStoreFailed = 10077
)

var signalConsumer = jetstream.ConsumerConfig{
	Durable: SupervisorConsumer, AckPolicy: jetstream.AckExplicitPolicy, AckWait: broker.SignalWait, MaxDeliver: -1,
	MaxAckPending: broker.SignalsMax, // the delayed ones count
}

// PutSignal implements broker.Engine. It retries a timeout for 12 s.
func (j *Engine) PutSignal(ctx context.Context, s protocol.Signal) error {
	if err := s.Validate(); err != nil {
		return err
	}
	msg := nats.NewMsg(signalPrefix + s.Name)
	msg.Data = s.Payload
	msg.Header[signalIDHeader] = []string{s.ID}
	msg.Header[jetstream.MsgIDHeader] = []string{s.Name + "/" + s.ID}
	if s.Parent != "" {
		msg.Header[signalParentHeader] = []string{s.Parent}
	}
	full := false
	err := j.retryWithTimeout(ctx, func(ctx context.Context) error {
		_, err := j.publish(ctx, msg)
		if errors.Is(err, nats.ErrNoResponders) || hasCode(err, codeNoStream) {
			if healErr := j.recreate(ctx); healErr == nil {
				_, err = j.publish(ctx, msg)
			}
		}
		if full = hasCode(err, codeStoreFailed); full { // its status would have it tried again
			return nil
		}
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("signal %s %s: %w", s.Name, s.ID, err)
	case full:
		return broker.ErrSignalsFull
	}
	return nil
}

// SignalsWaiting implements broker.Engine.
func (j *Engine) SignalsWaiting(ctx context.Context) (n int, err error) {
	err = j.retryWithTimeout(ctx, func(ctx context.Context) error {
		stream, err := j.js.Stream(ctx, SignalStream)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil
		}
		if err == nil {
			n = int(stream.CachedInfo().State.Msgs)
		}
		return err
	})
	return n, err
}

// PullSignals implements broker.Engine.
func (j *Engine) PullSignals(ctx context.Context, most int, wait time.Duration) ([]broker.SignalDelivery, error) {
	consumer, err := j.signals(ctx)
	if err != nil {
		return nil, fmt.Errorf("pull signals: %w", err)
	}
	connected, cancel, err := j.whileConnected(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	got, err := collectSignals(consumer.FetchNoWait(most))
	if err == nil && len(got) == 0 {
		limited, end := context.WithTimeout(connected, wait)
		defer end()
		got, err = collectSignals(consumer.Fetch(1, jetstream.FetchContext(limited)))
		if errors.Is(err, context.DeadlineExceeded) && connected.Err() == nil {
			err = nil
		}
	}
	if err == nil || len(got) > 0 {
		return got, nil
	}
	j.mu.Lock()
	j.signalConsumer = nil // it may be gone
	j.mu.Unlock()
	if connected.Err() != nil {
		err = causeOr(connected, err)
	}
	return nil, fmt.Errorf("pull signals: %w", err)
}

// signals returns the shared consumer of the signals, and creates the missing parts of it.
func (j *Engine) signals(ctx context.Context) (jetstream.Consumer, error) {
	j.mu.Lock()
	consumer := j.signalConsumer
	j.mu.Unlock()
	if consumer != nil {
		return consumer, nil
	}
	err := j.retryWithTimeout(ctx, func(ctx context.Context) (err error) {
		consumer, err = j.js.Consumer(ctx, SignalStream, SupervisorConsumer)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			if err = j.recreate(ctx); err != nil {
				return err
			}
			err = jetstream.ErrConsumerNotFound
		}
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			consumer, err = j.js.CreateOrUpdateConsumer(ctx, SignalStream, signalConsumer)
		}
		return err
	})
	if err == nil {
		j.mu.Lock()
		j.signalConsumer = consumer
		j.mu.Unlock()
	}
	return consumer, err
}

func collectSignals(batch jetstream.MessageBatch, err error) (got []broker.SignalDelivery, _ error) {
	if err != nil {
		return nil, err
	}
	for msg := range batch.Messages() {
		meta, err := msg.Metadata()
		name, ok := lastToken(msg.Subject(), signalPrefix)
		if err != nil || !ok {
			_ = msg.Term() // never a signal
			continue
		}
		s := protocol.Signal{Name: name, ID: msg.Headers().Get(signalIDHeader), Payload: msg.Data(), Parent: msg.Headers().Get(signalParentHeader)}
		if s.ID == "" {
			s.ID = strconv.FormatUint(meta.Sequence.Stream, 10)
		}
		got = append(got, &signalDelivery{msg, s, meta})
	}
	return got, batch.Error()
}

type signalDelivery struct {
	msg    jetstream.Msg
	signal protocol.Signal
	meta   *jetstream.MsgMetadata
}

func (d *signalDelivery) Signal() protocol.Signal         { return d.signal }
func (d *signalDelivery) At() time.Time                   { return d.meta.Timestamp.UTC() }
func (d *signalDelivery) Attempt() int                    { return int(d.meta.NumDelivered) }
func (d *signalDelivery) Done() error                     { return d.msg.Ack() }
func (d *signalDelivery) Again(after time.Duration) error { return d.msg.NakWithDelay(after) }
