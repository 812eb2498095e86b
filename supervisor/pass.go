package supervisor

import (
	"context"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// judgeAfter is when a pass follows another that came with a new connection:
// by then this supervisor has been connected for a default lease and may judge
// who is gone.
const judgeAfter = time.Duration(protocol.LeaseDefaultMS)*time.Millisecond + time.Second

// passes runs a pass over all heads at the start and after each reconnection, and one
// over those that matter every PassEvery and after each departure.
func (s *Supervisor) passes(ctx context.Context, departures <-chan protocol.Holder) error {
	reconnected := s.b.Reconnected(ctx)
	every := time.NewTicker(s.cfg.PassEvery)
	defer every.Stop()
	judge := time.NewTimer(judgeAfter)
	defer judge.Stop()
	filled := s.passAndLog(ctx, passAtStart, s.lookAt)
	gone := map[string]protocol.Holder{}
	rested := time.NewTimer(0) // when departures may cost the next pass
	defer rested.Stop()
	var rest <-chan time.Time // rested, while there are departures to see to
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-every.C:
			filled = s.passAtEase(ctx, reconnected, departures)
			every.Reset(s.cfg.PassEvery) // from its end: over many it takes longer than that
		case <-judge.C:
			visit := s.lookAt
			if filled { // a lease ago: what stands outside need not be put out once more
				visit = s.judgeAt
			}
			s.passAndLog(ctx, passAsJudge, visit)
		case <-reconnected:
			judge.Reset(judgeAfter)
			filled = s.passAndLog(ctx, passReconnected, s.lookAt)
		case holder := <-departures:
			gone[holder.ID], rest = holder, rested.C
			drain(gone, departures)
		case <-rest:
			begun, those := time.Now(), gone
			s.passAndLog(ctx, passDeparture, func(ctx context.Context, c *crew, h broker.Head) { s.departed(ctx, c, h, those) })
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

// passAndLog tells whether the pass came to its end.
func (s *Supervisor) passAndLog(ctx context.Context, why string, visit func(context.Context, *crew, broker.Head)) (whole bool) {
	begun := time.Now()
	kin := newKin()
	crew := newCrew(func(run []broker.Hints) { s.putOut(ctx, run) })
	all := why == passAtStart || why == passReconnected // hints may be lost, or the ledger another
	read := func(see func(broker.Head)) error { return s.read(ctx, all, see) }
	var called []uint64 // offers that stand, or should
	end := uint64(0)
	heads, open, err := s.pass(ctx, crew, read, func(h broker.Head) {
		kin.see(h.State)
		if end = max(end, h.Seq); lifecycle.OfferStands(h.State) {
			called = append(called, h.State.Offer)
		}
		if !h.State.Closed || s.owes(ctx, h.State) {
			visit(ctx, crew, h)
		}
	})
	if err == nil {
		for _, parent := range kin.parents() {
			s.kept.forget(parent)
			s.enqueue(ctx, look{ticket: parent})
		}
		if all || len(called) <= offersMost {
			s.removeEnded(ctx, called, end)
		}
	}
	if ctx.Err() != nil {
		return false
	}
	took := time.Since(begun)
	s.cfg.Watch.Passed(why, heads, open, took, err)
	if err != nil {
		s.log.Warn("pass broke off; the next one makes up for it", "why", why, "err", err)
		return false
	}
	s.cfg.Passed(took)
	s.log.Debug("pass", "why", why, "heads", heads, "open", open, "took", took)
	return true
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
	events, err := decide(state, directory, s.b.Now())
	return err != nil || len(events) > 0
}

// pass calls visit with each head that read finds, as it was when the pass came by,
// and dismisses the crew.
func (s *Supervisor) pass(ctx context.Context, c *crew, read func(see func(broker.Head)) error, visit func(broker.Head)) (heads, open int, err error) {
	defer c.dismiss(ctx)
	err = read(func(h broker.Head) {
		heads++
		c.seen(ctx)
		if !h.State.Closed {
			open++
		}
		_ = s.guard(h.Ticket, func() error { visit(h); return nil })
	})
	return heads, open, err
}

// readHeads calls see with the head of every handoff, until ctx ends.
func (s *Supervisor) readHeads(ctx context.Context, see func(broker.Head)) error {
	return s.b.Heads(ctx, func(e broker.Entry) error {
		if head, ok := s.headOf(e); ok {
			see(head)
		}
		return ctx.Err()
	})
}

// lookAt sees to a handoff that a pass has come by. Where nothing is to be decided
// and nothing but its offer and its wake-up called for, as with most, the crew puts
// those out; if anything else is to do, it is a look like any other.
func (s *Supervisor) lookAt(ctx context.Context, c *crew, h broker.Head) {
	now := latest(s.b.Now(), h.At, h.State.UpdatedAt)
	if next, settled := s.settled(ctx, h, now); settled {
		c.hint(ctx, hintsOf(h, now, next))
	} else {
		s.enqueue(ctx, look{ticket: h.Ticket, head: h, matched: true})
	}
}

// easeRate is how many handoffs a second a pass that nothing calls for puts out hints
// of. Nearly all of them stand; to find out costs as much as to put them out again,
// and a million open handoffs are not to take the machine for it every few minutes.
const easeRate = 2_500

// passAtEase is such a pass. It makes haste when somebody has departed, who waits for
// a pass, and breaks off for one that makes up for hints that may be lost.
func (s *Supervisor) passAtEase(ctx context.Context, reconnected <-chan struct{}, departures <-chan protocol.Holder) (whole bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return s.passAndLog(ctx, passAtInterval, func(ctx context.Context, c *crew, h broker.Head) {
		c.rest = runMost * time.Second / easeRate
		if len(departures) > 0 {
			c.rest = 0
		}
		if len(reconnected) > 0 {
			cancel()
			return
		}
		s.lookAt(ctx, c, h)
	})
}

// judgeAt looks at a handoff of which something is to be said by now.
func (s *Supervisor) judgeAt(ctx context.Context, _ *crew, h broker.Head) {
	if _, settled := s.settled(ctx, h, latest(s.b.Now(), h.At, h.State.UpdatedAt)); !settled {
		s.enqueue(ctx, look{ticket: h.Ticket, head: h, matched: true})
	}
}

// settled tells whether an open handoff calls for nothing but its offer and its
// wake-up, and when that is.
func (s *Supervisor) settled(ctx context.Context, h broker.Head, now time.Time) (next time.Time, settled bool) {
	duties := lifecycle.DutiesOf(h.State)
	if h.State.Closed || duties.Return || duties.CancelChildren {
		return next, false
	}
	directory, err := s.b.Directory(ctx)
	if err != nil {
		return next, false // the look says so
	}
	if h.State.Holder != "" && !directory.Present(h.State.Holder) {
		return next, false // the look asks whether it is gone
	}
	events, err := decide(h.State, directory, now)
	if err != nil || len(events) > 0 {
		return next, false
	}
	return nextLook(h.State, now, lifecycle.JudgeAt(h.State, directory)), true
}

// hintsOf are the offer that a handoff calls for, and its wake-up.
func hintsOf(h broker.Head, now, next time.Time) broker.Hints {
	return broker.Hints{Head: h, Offer: lifecycle.DutiesOf(h.State).Offer, Seq: h.Seq, At: latest(next, now.Add(armMin))}
}

// runTimeout bounds the putting out of a run.
const runTimeout = 30 * time.Second

// putOut puts out a run of hints. Where that fails the look tries again, and says so.
func (s *Supervisor) putOut(ctx context.Context, run []broker.Hints) {
	running, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	for i, err := range s.b.PutHints(running, run) {
		if ctx.Err() != nil {
			return
		}
		s.cfg.Watch.Looked(err)
		if h := run[i].Head; err != nil {
			s.enqueue(ctx, look{ticket: h.Ticket, head: h, matched: true})
		}
	}
}

func latest(all ...time.Time) time.Time {
	return slices.MaxFunc(all, time.Time.Compare)
}

// departureSeq is what the check after a departure is armed under. No append has it.
const departureSeq = 0

// departed looks at what a departed holder had in its hands, and has a look
// taken at the agent's queue once its absence counts.
func (s *Supervisor) departed(ctx context.Context, c *crew, h broker.Head, gone map[string]protocol.Holder) {
	if _, held := gone[h.State.Holder]; held {
		s.lookAt(ctx, c, h)
		return
	}
	if !lifecycle.DutiesOf(h.State).Offer || !agentDeparted(h.State.Agent, gone) {
		return
	}
	directory, err := s.b.Directory(ctx)
	if err != nil {
		return // the next pass makes up for it
	}
	if directory.Attended(h.State.Agent) {
		return
	}
	at := s.b.Now().Add(lifecycle.AckTimeout(h.State) + armMin)
	// Under a sequence of its own, so that it does not replace the wake-up that
	// the handoff's own clocks have, which may be sooner.
	c.do(ctx, func() {
		if err := s.b.Arm(ctx, h.Ticket, departureSeq, at); err != nil && ctx.Err() == nil {
			s.log.Warn("wake-up not armed", "ticket", h.Ticket, "err", err)
		}
	})
}

func agentDeparted(agent string, gone map[string]protocol.Holder) bool {
	for _, holder := range gone {
		if holder.Agent == agent {
			return true
		}
	}
	return false
}
