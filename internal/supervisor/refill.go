package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Refill puts the offer and the wake-up of every open handoff where they
// belong, deciding nothing: what an engine needs whose work and timer streams
// were emptied, before anybody is served. A handoff that cannot be helped is
// logged and passed over: the others must not wait for it. An engine that does
// not answer ends it with an error.
func Refill(ctx context.Context, b Broker, engine Engine, log *slog.Logger) error {
	s, err := New(b, engine, Config{Log: log})
	if err != nil {
		return err
	}
	done := func(h broker.Outbox, err error) error { return s.refilled(ctx, h, err) }
	_, _, err = s.publishAll(ctx, done, func(c context.Context, publisher *batchPublisher, h broker.Head) {
		if now := b.Now(); !h.State.Closed {
			publisher.add(c, outboxOf(h, now, lifecycle.NextReconcile(h.State, now)))
		}
	})
	return err
}

// refilled handles the outcome of one outbox entry. Its error ends the refill.
func (s *Supervisor) refilled(ctx context.Context, h broker.Outbox, err error) error {
	switch {
	case err == nil:
	case isUnanswered(err) && !s.engineAnswers(ctx):
		return fmt.Errorf("refill %s: %w", h.Head.Ticket, err)
	default:
		s.log.Error("handoff not put back", "ticket", h.Head.Ticket, "err", err)
	}
	return nil
}

// isUnanswered is an error that is the engine's, and no handoff's own.
func isUnanswered(err error) bool {
	return errors.Is(err, broker.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded)
}

// publishAll publishes the outbox entries that visit makes of each head, and calls done with each
// outcome: one at a time within a batch, batches side by side. The first error, of done as well, ends it.
func (s *Supervisor) publishAll(ctx context.Context, done func(broker.Outbox, error) error,
	visit func(context.Context, *batchPublisher, broker.Head)) (heads, open int, err error) {
	working, end := context.WithCancelCause(ctx)
	defer end(nil)
	publisher := newBatchPublisher(func(run []broker.Outbox) {
		running, cancel := context.WithTimeout(working, publishTimeout)
		defer cancel()
		for i, err := range s.b.PublishOutbox(running, run) {
			if working.Err() != nil {
				return
			}
			if err := done(run[i], err); err != nil {
				end(err)
			}
		}
	})
	heads, open, err = s.visitHeads(working, publisher, func(see func(broker.Head)) error { return s.readHeads(working, see) },
		func(h broker.Head) { visit(working, publisher, h) })
	if ctx.Err() == nil && working.Err() != nil {
		err = context.Cause(working)
	}
	return heads, open, err
}
