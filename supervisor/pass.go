package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// judgeAfter is when a pass follows another that came with a new connection:
// by then this supervisor has been connected for a default lease and may judge
// who is gone.
const judgeAfter = time.Duration(protocol.LeaseDefaultMS)*time.Millisecond + time.Second

// passes runs a pass over all heads at the start, after each reconnection and
// every PassEvery, and a smaller one after each departure.
func (s *Supervisor) passes(ctx context.Context, departures <-chan protocol.Holder) error {
	reconnected := s.b.Reconnected(ctx)
	every := time.NewTicker(s.cfg.PassEvery)
	defer every.Stop()
	judge := time.NewTimer(judgeAfter)
	defer judge.Stop()
	s.passAndLog(ctx, passAtStart, s.lookAt)
	gone := map[string]protocol.Holder{}
	rested := time.NewTimer(0) // when departures may cost the next pass
	defer rested.Stop()
	var rest <-chan time.Time // rested, while there are departures to see to
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-every.C:
			s.passAndLog(ctx, passAtInterval, s.lookAt)
		case <-judge.C:
			s.passAndLog(ctx, passAsJudge, s.lookAt)
		case <-reconnected:
			judge.Reset(judgeAfter)
			s.passAndLog(ctx, passReconnected, s.lookAt)
		case holder := <-departures:
			gone[holder.ID], rest = holder, rested.C
			drain(gone, departures)
		case <-rest:
			begun, those := time.Now(), gone
			s.passAndLog(ctx, passDeparture, func(ctx context.Context, h broker.Head) { s.departed(ctx, h, those) })
			gone, rest = map[string]protocol.Holder{}, nil
			rested.Reset(min(departureRest*time.Since(begun), time.Minute))
		}
	}
}

// departureRest is how many times as long as a pass for departures took the next
// one waits, at most a minute. Each claim from a command line that finds nothing is a departure:
// polling agents must not keep a supervisor reading all heads without a break.
const departureRest = 9

// drain takes all departures that are there: one pass serves them all.
func drain(gone map[string]protocol.Holder, more <-chan protocol.Holder) {
	for {
		select {
		case holder := <-more:
			gone[holder.ID] = holder
		default:
			return
		}
	}
}

func (s *Supervisor) passAndLog(ctx context.Context, why string, visit func(context.Context, broker.Head)) {
	begun := time.Now()
	kin := newKin()
	heads, open, err := pass(ctx, s.b, func(h broker.Head) error {
		kin.see(h.State)
		if !h.State.Closed || s.owes(ctx, h.State) {
			visit(ctx, h)
		}
		return nil
	})
	if err == nil {
		for parent := range kin.parents() {
			s.kept.forget(parent)
			s.enqueue(ctx, look{ticket: parent})
		}
	}
	if ctx.Err() != nil {
		return
	}
	s.cfg.Watch.Passed(why, heads, open, time.Since(begun), err)
	switch {
	case err != nil:
		s.log.Warn("pass over the heads broke off; the next one makes up for it", "why", why, "err", err)
	default:
		s.log.Debug("pass over the heads", "why", why, "heads", heads, "open", open, "took", time.Since(begun))
	}
}

// owes tells whether anything can be done about what a closed handoff owes. A
// return whose source is no agent is read by ticket, and owed for ever.
func (s *Supervisor) owes(ctx context.Context, state protocol.State) bool {
	if !lifecycle.Owes(state) {
		return false
	}
	if duties := lifecycle.DutiesOf(state); duties.Return || duties.CancelChildren {
		return true
	}
	directory, err := s.b.Directory(ctx)
	if err != nil {
		return true // the look says so
	}
	events, err := decide(state, directory, time.Now())
	return err != nil || len(events) > 0
}

// pass calls visit with the head of every handoff, as it was when the pass came by.
func pass(ctx context.Context, b Broker, visit func(broker.Head) error) (heads, open int, err error) {
	err = b.Heads(ctx, func(e broker.Entry) error {
		heads++
		head, err := broker.HeadOf(e)
		if err != nil {
			return nil // the follower has said so
		}
		if !head.State.Closed {
			open++
		}
		if err := visit(head); err != nil {
			return err
		}
		return ctx.Err()
	})
	return heads, open, err
}

func (s *Supervisor) lookAt(ctx context.Context, h broker.Head) {
	s.enqueue(ctx, look{ticket: h.Ticket, head: h, matched: true})
}

// departureSeq is what the check after a departure is armed under. No append has it.
const departureSeq = 0

// departed looks at what a departed holder had in its hands, and has a look
// taken at the agent's queue once its absence counts.
func (s *Supervisor) departed(ctx context.Context, h broker.Head, gone map[string]protocol.Holder) {
	if _, held := gone[h.State.Holder]; held {
		s.lookAt(ctx, h)
		return
	}
	if !lifecycle.DutiesOf(h.State).Offer || !agentDeparted(h.State.Agent, gone) {
		return
	}
	directory, err := s.b.Directory(ctx)
	if err != nil {
		return // the next pass makes up for it
	}
	if live, _, _ := directory.Load(h.State.Agent); live > 0 {
		return
	}
	at := time.Now().Add(lifecycle.AckTimeout(h.State) + armMin)
	// Under a sequence of its own, so that it does not replace the wake-up that
	// the handoff's own clocks have, which may be sooner.
	if err := s.b.Arm(ctx, h.Ticket, departureSeq, at); err != nil {
		s.log.Warn("wake-up not armed", "ticket", h.Ticket, "err", err)
	}
}

func agentDeparted(agent string, gone map[string]protocol.Holder) bool {
	for _, holder := range gone {
		if holder.Agent == agent {
			return true
		}
	}
	return false
}

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
	_, _, err = pass(ctx, b, func(h broker.Head) error {
		if h.State.Closed {
			return nil
		}
		now := time.Now()
		err := s.hints(ctx, h, lifecycle.DutiesOf(h.State), now, lifecycle.NextLook(h.State, now))
		if ctx.Err() != nil || errors.Is(err, broker.ErrUnreachable) {
			return fmt.Errorf("refill %s: %w", h.Ticket, err)
		}
		if err != nil {
			s.log.Error("handoff not put back", "ticket", h.Ticket, "err", err)
		}
		return nil
	})
	return err
}
