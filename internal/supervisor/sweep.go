package supervisor

import (
	"context"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// expiryAfter is the time from a new connection to another sweep: by then this supervisor has been
// connected for a default lease, and may judge which holders are gone.
const expiryAfter = time.Duration(protocol.LeaseDefaultMS)*time.Millisecond + time.Second

// sweepLoop sweeps in full at the start and after each reconnection, and incrementally every
// SweepInterval, after departures, and where a deadlock is suspected.
func (s *Supervisor) sweepLoop(ctx context.Context, departures <-chan protocol.Holder) error {
	reconnected := s.engine.Reconnected(ctx)
	every := time.NewTicker(s.cfg.SweepInterval)
	defer every.Stop()
	judge := time.NewTimer(expiryAfter)
	defer judge.Stop()
	filled := s.sweep(ctx, sweepAtStart, s.reconcileSwept)
	every.Reset(s.untilSweep(filled))
	gone := map[string]protocol.Holder{}
	rested := time.NewTimer(0) // when departures may cost the next sweep
	defer rested.Stop()
	var rest <-chan time.Time // rested, while there are departures to see to
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-every.C:
			filled = s.sweepThrottled(ctx, reconnected, departures)
			every.Reset(s.untilSweep(filled)) // from its end: over many it takes longer than that
		case <-judge.C:
			visit := s.reconcileSwept
			if filled { // a lease ago: the outbox need not be published again
				visit = s.recheckExpired
			}
			s.sweep(ctx, sweepExpired, visit)
		case <-reconnected:
			judge.Reset(expiryAfter)
			filled = s.sweep(ctx, sweepReconnected, s.reconcileSwept)
			every.Reset(s.untilSweep(filled))
		case holder := <-departures:
			gone[holder.ID], rest = holder, rested.C
			collectDepartures(gone, departures)
		case <-s.suspects:
			rest = rested.C
		case <-rest:
			begun, those := time.Now(), gone
			s.sweep(ctx, sweepDeparture, func(ctx context.Context, c *batchPublisher, h broker.Head) { s.reconcileDeparted(ctx, c, h, those) })
			gone, rest = map[string]protocol.Holder{}, nil
			rested.Reset(min(departurePause*time.Since(begun), time.Minute))
		}
	}
}

// sweepRetry is how long after a sweep that broke off, at most, the next one begins: what the
// faults of an engine left behind waits for a sweep.
const sweepRetry = 10 * time.Second

// untilSweep is the time to the next regular sweep. whole says that the last one did not break off.
func (s *Supervisor) untilSweep(whole bool) time.Duration {
	if whole {
		return s.cfg.SweepInterval
	}
	return min(sweepRetry, s.cfg.SweepInterval)
}

// departurePause is how many times as long as a sweep for departures took the next one waits, at most a
// minute. Each claim from a command line that finds nothing is a departure: polling agents must not
// keep a supervisor reading heads without a break.
const departurePause = 9

// collectDepartures takes all departures that are there: one sweep serves them all.
func collectDepartures(gone map[string]protocol.Holder, more <-chan protocol.Holder) {
	for {
		select {
		case holder := <-more:
			gone[holder.ID] = holder
		default:
			return
		}
	}
}

// sweep visits the heads that the reason calls for, and reconciles those that no sweep has
// seen. whole says that it came to its end.
func (s *Supervisor) sweep(ctx context.Context, why string, visit func(context.Context, *batchPublisher, broker.Head)) (whole bool) {
	begun, begunAt := time.Now(), s.b.Now()
	families := newFamilyMatcher()
	var waits lifecycle.WaitGraph
	publisher := newBatchPublisher(func(run []broker.Outbox) { s.publish(ctx, run) })
	all := why == sweepAtStart || why == sweepReconnected // outbox entries may be lost, or the ledger another
	read := func(see func(broker.Head)) error { return s.sweepHeads(ctx, all, see) }
	var called []uint64 // offers that stand, or should
	end, sweptTo := uint64(0), s.sweptTo
	heads, open, err := s.visitHeads(ctx, publisher, read, func(h broker.Head) {
		families.add(h.State)
		waits.Add(&h.State, begunAt)
		s.absences.note(&h.State)
		if end = max(end, h.Seq); lifecycle.OfferStands(h.State) {
			called = append(called, h.State.Offer)
		}
		switch {
		case h.State.Closed && !s.hasPendingDuties(ctx, h.State):
		case h.Seq > sweptTo: // its writer may have died before it announced the append
			s.reconcileSwept(ctx, publisher, h)
		default:
			visit(ctx, publisher, h)
		}
	})
	if err == nil {
		for _, parent := range families.incompleteParents() {
			s.childCache.forget(parent)
			s.enqueue(ctx, request{ticket: parent})
		}
		s.resolveDeadlocks(ctx, &waits)
		if all || len(called) <= offersSweptMax {
			s.removeEnded(ctx, called, end)
		}
	}
	if err == nil {
		err = s.b.SweepWorkspaces(ctx)
	}
	if ctx.Err() != nil {
		return false
	}
	took := time.Since(begun)
	s.cfg.Watch.Swept(why, heads, open, took, err)
	if err != nil {
		s.log.Warn("sweep broken off; the next one makes up for it", "why", why, "err", err)
		return false
	}
	s.cfg.Swept(took)
	s.log.Debug("sweep", "why", why, "heads", heads, "open", open, "took", took)
	return true
}

// hasPendingDuties tells whether anything can be done about what a closed handoff owes. A
// return whose source is no agent is read by ticket, and owed for ever.
func (s *Supervisor) hasPendingDuties(ctx context.Context, state protocol.State) bool {
	if !lifecycle.HasPendingDuties(state) {
		return false
	}
	if duties := lifecycle.DutiesOf(state); duties.Return || duties.CancelChildren || duties.Chain || duties.BidAnswer {
		return true
	}
	directory, err := s.b.Directory(ctx)
	if err != nil {
		return true // the reconcile reports it
	}
	step, err := decide(state, directory, s.b.Now())
	return err != nil || len(step.Events) > 0
}

// visitHeads calls visit with each head that read finds, and closes the publisher.
func (s *Supervisor) visitHeads(ctx context.Context, c *batchPublisher, read func(see func(broker.Head)) error, visit func(broker.Head)) (heads, open int, err error) {
	defer c.Close(ctx)
	err = read(func(h broker.Head) {
		heads++
		c.tick(ctx)
		if !h.State.Closed {
			open++
		}
		_ = s.recoverPanic(h.Ticket, func() error { visit(h); return nil })
	})
	return heads, open, err
}

// readHeads calls see with the head of every handoff, until ctx ends.
func (s *Supervisor) readHeads(ctx context.Context, see func(broker.Head)) error {
	return s.engine.Heads(ctx, func(e broker.Entry) error {
		if head, ok := s.headOf(e); ok {
			see(head)
		}
		return ctx.Err()
	})
}

// reconcileSwept reconciles a handoff that a sweep has found. As a rule its offer and its wake-up are all
// that it needs, and the batch publisher puts them in place; otherwise it is a request like any other.
func (s *Supervisor) reconcileSwept(ctx context.Context, c *batchPublisher, h broker.Head) {
	now := latest(s.b.Now(), h.At, h.State.UpdatedAt)
	if next, settled := s.needsOutboxOnly(ctx, h, now); settled {
		c.add(ctx, outboxOf(h, now, next))
	} else {
		s.enqueue(ctx, request{ticket: h.Ticket, head: h, childrenSwept: true})
	}
}

// throttledRate is how many outbox entries a second a throttled sweep publishes. Nearly all of them are in
// place; to find out costs as much as to publish them again, and a million open handoffs are not to
// take the machine for it every few minutes.
const throttledRate = 2_500

// sweepThrottled is the regular sweep. It makes haste when a holder has departed, and breaks off for the
// full sweep after a reconnection.
func (s *Supervisor) sweepThrottled(ctx context.Context, reconnected <-chan struct{}, departures <-chan protocol.Holder) (whole bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return s.sweep(ctx, sweepAtInterval, func(ctx context.Context, c *batchPublisher, h broker.Head) {
		c.pause = batchMax * time.Second / throttledRate
		if len(departures) > 0 {
			c.pause = 0
		}
		if len(reconnected) > 0 {
			cancel()
			return
		}
		s.reconcileSwept(ctx, c, h)
	})
}

// recheckExpired reconciles a handoff whose holder may have expired by now.
func (s *Supervisor) recheckExpired(ctx context.Context, _ *batchPublisher, h broker.Head) {
	if _, settled := s.needsOutboxOnly(ctx, h, latest(s.b.Now(), h.At, h.State.UpdatedAt)); !settled {
		s.enqueue(ctx, request{ticket: h.Ticket, head: h, childrenSwept: true})
	}
}

// needsOutboxOnly tells whether an open handoff calls for nothing but its offer and its
// wake-up, and when that is.
func (s *Supervisor) needsOutboxOnly(ctx context.Context, h broker.Head, now time.Time) (next time.Time, needsOutboxOnly bool) {
	duties := lifecycle.DutiesOf(h.State)
	if h.State.Closed || duties.Return || duties.CancelChildren || duties.Source || duties.Bids || lifecycle.AwaitsWorkspace(h.State) {
		return next, false
	}
	directory, err := s.b.Directory(ctx)
	if err != nil {
		return next, false // the reconcile reports it
	}
	if h.State.Holder != "" && !directory.Present(h.State.Holder) {
		return next, false // the reconcile asks whether it is gone
	}
	step, err := decide(h.State, directory, now)
	if err != nil || len(step.Events) > 0 {
		return next, false
	}
	return nextReconcile(h.State, now, lifecycle.AbsenceKnownAt(h.State, directory)), true
}

// outboxOf is the outbox entry of a handoff: its offer, where one is called for, and its wake-up.
func outboxOf(h broker.Head, now, next time.Time) broker.Outbox {
	return broker.Outbox{Head: h, Offer: lifecycle.DutiesOf(h.State).Offer, Seq: h.Seq, At: latest(next, now.Add(wakeUpDelayMin))}
}

// publishTimeout bounds the publishing of a batch.
const publishTimeout = 30 * time.Second

// publish publishes a batch of outbox entries. A request tries again where that fails.
func (s *Supervisor) publish(ctx context.Context, run []broker.Outbox) {
	running, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	for i, err := range s.b.PublishOutbox(running, run) {
		if ctx.Err() != nil {
			return
		}
		s.cfg.Watch.Reconciled(err)
		if h := run[i].Head; err != nil {
			s.enqueue(ctx, request{ticket: h.Ticket, head: h, childrenSwept: true})
		}
	}
}

func latest(all ...time.Time) time.Time {
	return slices.MaxFunc(all, time.Time.Compare)
}

// departureSeq is what the check after a departure is armed under. No append has it.
const departureSeq = 0

// reconcileDeparted reconciles the handoffs of a departed holder, and arms a wake-up for the offers of an
// agent whose absence counts.
func (s *Supervisor) reconcileDeparted(ctx context.Context, c *batchPublisher, h broker.Head, gone map[string]protocol.Holder) {
	_, held := gone[h.State.Holder]
	if held {
		s.reconcileSwept(ctx, c, h)
		return
	}
	if !lifecycle.DutiesOf(h.State).Offer || !agentDeparted(h.State.Agent, gone) {
		return
	}
	directory, err := s.b.Directory(ctx)
	if err != nil {
		return // the next sweep makes up for it
	}
	if directory.Attended(h.State.Agent) {
		return
	}
	at := s.b.Now().Add(lifecycle.AckTimeout(h.State) + wakeUpDelayMin)
	// Under a sequence of its own, so that it does not replace the wake-up that
	// the handoff's own clocks have, which may be sooner.
	c.do(ctx, func() {
		if err := s.engine.Arm(ctx, h.Ticket, departureSeq, at); err != nil && ctx.Err() == nil {
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
