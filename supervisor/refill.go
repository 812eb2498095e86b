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
func Refill(ctx context.Context, b Broker, log *slog.Logger) error {
	s, err := New(b, Config{Log: log})
	if err != nil {
		return err
	}
	done := func(h broker.Hints, err error) error { return s.refilled(ctx, h, err) }
	_, _, err = s.putAllOut(ctx, done, func(c context.Context, crew *crew, h broker.Head) {
		if now := b.Now(); !h.State.Closed {
			crew.hint(c, hintsOf(h, now, lifecycle.NextLook(h.State, now)))
		}
	})
	return err
}

// refilled is told what became of a handoff's hints. Its error ends the refill.
func (s *Supervisor) refilled(ctx context.Context, h broker.Hints, err error) error {
	switch {
	case err == nil:
	case notAnswering(err) && !s.answers(ctx):
		return fmt.Errorf("refill %s: %w", h.Head.Ticket, err)
	default:
		s.log.Error("handoff not put back", "ticket", h.Head.Ticket, "err", err)
	}
	return nil
}

// notAnswering is an error that is the engine's, and no handoff's own.
func notAnswering(err error) bool {
	return errors.Is(err, broker.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded)
}

// putAllOut has a crew put out what visit gives it of each head, and tells done what
// became of it; done is called by one at a time of each run, and by several runs. The
// first error, of done as well, ends it.
func (s *Supervisor) putAllOut(ctx context.Context, done func(broker.Hints, error) error,
	visit func(context.Context, *crew, broker.Head)) (heads, open int, err error) {
	working, end := context.WithCancelCause(ctx)
	defer end(nil)
	crew := newCrew(func(run []broker.Hints) {
		running, cancel := context.WithTimeout(working, runTimeout)
		defer cancel()
		for i, err := range s.b.PutHints(running, run) {
			if working.Err() != nil {
				return
			}
			if err := done(run[i], err); err != nil {
				end(err)
			}
		}
	})
	heads, open, err = s.pass(working, crew, func(see func(broker.Head)) error { return s.readHeads(working, see) },
		func(h broker.Head) { visit(working, crew, h) })
	if ctx.Err() == nil && working.Err() != nil {
		err = context.Cause(working)
	}
	return heads, open, err
}
