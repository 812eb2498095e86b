package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// expiryAfter is the time from a new connection to another sweep: by then this supervisor has been
// connected for a default lease, and may judge which holders are gone.
const expiryAfter = time.Duration(protocol.LeaseDefaultMS)*time.Millisecond + time.Second

// checkEvery is the time between two checks for damage of the ledger.
const checkEvery = time.Second

// sweepLoop sweeps in full at the start and after each reconnection, and incrementally every
// SweepInterval, after departures, and if a deadlock is suspected.
func (s *Supervisor) sweepLoop(ctx context.Context, departures <-chan protocol.Holder) error {
	reconnected := s.engine.Reconnected(ctx)
	every := time.NewTicker(s.cfg.SweepInterval)
	defer every.Stop()
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	judge := time.NewTimer(expiryAfter)
	defer judge.Stop()
	filled := s.sweep(ctx, sweepAtStart, s.reconcileSwept)
	every.Reset(s.untilSweep(filled))
	gone := map[string]protocol.Holder{}
	rested := time.NewTimer(0) // until departures may cause the next sweep
	defer rested.Stop()
	var rest <-chan time.Time // rested.C, while departures wait for a sweep
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-every.C:
			filled = s.sweepThrottled(ctx, reconnected, departures)
			every.Reset(s.untilSweep(filled)) // measured from its end: a long sweep may take more than the interval
		case <-judge.C:
			visit := s.reconcileSwept
			if filled { // the outbox was published a lease ago
				visit = s.recheckExpired
			}
			s.sweep(ctx, sweepExpired, visit)
		case <-check.C:
			if err := s.cfg.Check(ctx); err != nil {
				return err
			}
		case <-reconnected:
			if err := s.cfg.Check(ctx); err != nil {
				return err
			}
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

// sweepRetry is the longest time from an aborted sweep to the next one, which handles the
// consequences of the engine's faults.
const sweepRetry = 10 * time.Second

// untilSweep returns the time to the next regular sweep. whole reports that the last one was
// completed.
func (s *Supervisor) untilSweep(whole bool) time.Duration {
	if whole {
		return s.cfg.SweepInterval
	}
	return min(sweepRetry, s.cfg.SweepInterval)
}

// departurePause is the pause after a sweep for departures, as a multiple of its duration, at most
// a minute. Each claim from a command line that finds nothing is a departure: polling agents must
// not keep a supervisor reading heads without a break.
const departurePause = 9

// collectDepartures takes all queued departures: one sweep serves them all.
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

// sweep calls visit for the heads that the reason requires, and reconciles those that no sweep has
// read. whole reports that it was completed.
func (s *Supervisor) sweep(ctx context.Context, why string, visit func(context.Context, *batchPublisher, broker.Head)) (whole bool) {
	begun, begunAt := time.Now(), s.b.Now()
	families := newFamilyMatcher()
	var waits lifecycle.WaitGraph
	publisher := newBatchPublisher(func(run []broker.Outbox) { s.publish(ctx, run) })
	all := why == sweepAtStart || why == sweepReconnected // outbox entries may be lost, or the ledger may be another one
	read := func(see func(broker.Head)) error { return s.sweepHeads(ctx, all, see) }
	var called []uint64   // offers that are in a queue, or should be
	var end broker.Cursor // of the sweep
	sweptTo := s.sweptTo
	heads, open, err := s.visitHeads(ctx, publisher, read, func(h broker.Head) {
		families.add(h.State)
		waits.Add(&h.State, begunAt)
		s.absences.note(&h.State)
		if end.Pass(h.Seq); lifecycle.OfferStands(h.State) {
			called = append(called, h.State.Offer)
		}
		if all && !h.State.Closed && !lifecycle.DutiesOf(h.State).Offer && h.State.StuckReason == "" {
			publisher.do(ctx, func() { s.checkPackage(ctx, h) })
		}
		switch {
		case h.State.Closed && !s.hasPendingDuties(ctx, h.State):
		case !sweptTo.Passed(h.Seq): // its writer may have died before it announced the append
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
		s.log.Warn("sweep aborted; the next one starts over", "why", why, "err", err)
		return false
	}
	s.cfg.Swept(took)
	s.log.Debug("sweep", "why", why, "heads", heads, "open", open, "took", took)
	return true
}

// checkPackage reconciles a handoff whose package is gone. A handoff that is offered needs no
// check, because its offer has the package read.
func (s *Supervisor) checkPackage(ctx context.Context, h broker.Head) {
	var lost *broker.BodyLostError
	if err := s.b.CheckPackage(ctx, h); errors.As(err, &lost) {
		s.enqueue(ctx, request{ticket: h.Ticket, head: h, childrenSwept: true, checkPackage: true})
	}
}

// hasPendingDuties reports whether any duty of a closed handoff can be performed now. A return
// whose source is no agent is read by ticket, so its duty remains for ever.
func (s *Supervisor) hasPendingDuties(ctx context.Context, state protocol.State) bool {
	if !lifecycle.HasPendingDuties(state) {
		return false
	}
	if duties := lifecycle.DutiesOf(state); duties.Return || duties.CancelChildren || duties.Chain || duties.BidAnswer {
		return true
	}
	directory, err := s.b.Directory(ctx)
	if err != nil {
		return true // the reconcile reports the error
	}
	step, err := lifecycle.Decide(state, directory.At(s.b.Now()))
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

// reconcileSwept reconciles a handoff that a sweep has read. Usually it needs only its offer and
// its wake-up, and the batch publisher puts them in place; otherwise it becomes a request.
func (s *Supervisor) reconcileSwept(ctx context.Context, c *batchPublisher, h broker.Head) {
	now := latest(s.b.Now(), h.At, h.State.UpdatedAt)
	if next, settled := s.needsOutboxOnly(ctx, h, now); settled {
		c.add(ctx, outboxOf(h, now, next))
	} else {
		s.enqueue(ctx, request{ticket: h.Ticket, head: h, childrenSwept: true})
	}
}

// throttledRate is the number of outbox entries that a throttled sweep publishes per second. Nearly
// all of them are in place, and checking that costs as much as publishing them again. A million
// open handoffs must not occupy the machine every few minutes.
const throttledRate = 2_500

// sweepThrottled is the regular sweep. It runs at full speed when a holder has departed, and is
// aborted for the full sweep after a reconnection.
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

// needsOutboxOnly reports whether an open handoff needs only its offer and its wake-up, and returns
// the time of the wake-up.
func (s *Supervisor) needsOutboxOnly(ctx context.Context, h broker.Head, now time.Time) (next time.Time, needsOutboxOnly bool) {
	duties := lifecycle.DutiesOf(h.State)
	if h.State.Closed || duties.Return || duties.CancelChildren || duties.Source || duties.Bids || lifecycle.AwaitsWorkspace(h.State) {
		return next, false
	}
	directory, err := s.b.Directory(ctx)
	if err != nil {
		return next, false // the reconcile reports the error
	}
	if h.State.Holder != "" && !directory.Present(h.State.Holder) {
		return next, false // the reconcile checks whether the holder is gone
	}
	step, err := lifecycle.Decide(h.State, directory.At(now))
	if err != nil || len(step.Events) > 0 {
		return next, false
	}
	return nextReconcile(h.State, now, lifecycle.AbsenceKnownAt(h.State, directory)), true
}

// outboxOf returns the outbox entry of a handoff: its offer, if it needs one, and its wake-up.
func outboxOf(h broker.Head, now, next time.Time) broker.Outbox {
	return broker.Outbox{Head: h, Offer: lifecycle.DutiesOf(h.State).Offer, Seq: h.Seq, At: latest(next, now.Add(wakeUpDelayMin))}
}

// publishTimeout bounds the publishing of a batch.
const publishTimeout = 30 * time.Second

// publish publishes a batch of outbox entries. An entry that fails becomes a request.
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

// departureSeq is the sequence of the wake-up after a departure. No append has it.
const departureSeq = 0

// reconcileDeparted reconciles the handoffs of a departed holder, and arms a wake-up for the offers
// of an agent that has no worker now.
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
		return // the next sweep handles it
	}
	if directory.Attended(h.State.Agent) {
		return
	}
	at := s.b.Now().Add(lifecycle.AckTimeout(h.State) + wakeUpDelayMin)
	// A sequence of its own keeps the wake-up of the handoff's own clocks, which may be sooner.
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

const (
	// unfinishedMax bounds the unfinished handoffs that a sweep remembers for the next one.
	unfinishedMax = 10_000
	// fullSweepIntervals is the number of intervals after which a sweep is full again. An
	// incremental one does not see duties that a closed handoff gets later: a return to a source
	// that was no agent yet.
	fullSweepIntervals = 12
)

// sweepState is the result of a sweep that the next one uses. A handoff that is closed and has no
// duties stays so: the next sweep need only read the unfinished ones, and the entries since.
// Reading the heads of all handoffs makes a server fetch nearly all of its ledger from the disk.
type sweepState struct {
	open   map[string]uint64 // the last sequence of each unfinished handoff, by ticket
	end    broker.Cursor     // behind the entries that were read
	fullAt time.Time         // when all heads were read
}

// errTooManyOpen reports more unfinished handoffs than a sweep may remember.
var errTooManyOpen = errors.New("too many open handoffs to remember")

// sweepFull reads the heads of all handoffs.
func (s *Supervisor) sweepFull(ctx context.Context, see func(broker.Head)) error {
	next := &sweepState{open: map[string]uint64{}, fullAt: time.Now()}
	err := s.readHeads(ctx, func(h broker.Head) {
		see(h)
		next.addUnfinished(ctx, s, h)
		next.end.Pass(h.Seq)
	})
	if err == nil {
		s.sweptTo = next.end
	}
	if s.lastSweep = nil; err == nil && len(next.open) <= s.cfg.unfinishedMax {
		s.lastSweep = next
	}
	return err
}

// addUnfinished remembers an unfinished handoff, up to one more than allowed.
func (r *sweepState) addUnfinished(ctx context.Context, s *Supervisor, h broker.Head) {
	if len(r.open) <= s.cfg.unfinishedMax && (!h.State.Closed || s.hasPendingDuties(ctx, h.State)) {
		r.open[h.Ticket] = h.Seq
	}
}

// closedWord is in each entry that closes a handoff. An entry without it need not be decoded:
// usually the handoff's next entry closes it, and otherwise its head is read. The same holds for an
// entry that is encoded in another way, for example with a space.
var closedWord = []byte(`"closed":true`)

// sweepIncremental reads the unfinished handoffs of the previous sweep, and the entries since. It
// visits only those closed handoffs that were closed since.
func (s *Supervisor) sweepIncremental(ctx context.Context, last *sweepState, see func(broker.Head)) error {
	s.lastSweep = nil
	open, end := last.open, slices.Clone(last.end)
	err := s.engine.Entries(ctx, last.end, func(e broker.Entry) error {
		if end.Pass(e.Seq); bytes.Contains(e.Body, closedWord) {
			head, ok := s.headOf(e)
			if !ok {
				delete(open, e.Ticket)
				return ctx.Err()
			}
			if head.State.Closed && !s.hasPendingDuties(ctx, head.State) {
				delete(open, e.Ticket)
				see(head)
				return ctx.Err()
			}
		}
		if open[e.Ticket] = e.Seq; len(open) > s.cfg.unfinishedMax {
			return errTooManyOpen
		}
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	next := &sweepState{open: map[string]uint64{}, end: end, fullAt: last.fullAt}
	for _, ticket := range slices.Sorted(maps.Keys(open)) {
		head, err := s.b.Head(ctx, ticket, 0)
		if errors.Is(err, broker.ErrNotFound) { // removed after the entries were read
			continue
		}
		if broker.Unreadable(err) {
			s.noteUnreadable(ticket, open[ticket], err)
			continue
		}
		if err != nil {
			return err
		}
		s.noteReadable(ticket, head.Seq)
		see(head)
		next.addUnfinished(ctx, s, head)
	}
	if ctx.Err() == nil {
		s.sweptTo = end
	}
	if len(next.open) <= s.cfg.unfinishedMax && ctx.Err() == nil {
		s.lastSweep = next
	}
	return ctx.Err()
}

// sweepHeads sweeps in full or incrementally. An incremental sweep that finds too much is followed
// by a full one at once; one that fails for another reason leaves no state, so that the next is
// full.
func (s *Supervisor) sweepHeads(ctx context.Context, whole bool, see func(broker.Head)) error {
	last := s.lastSweep
	if whole || last == nil || time.Since(last.fullAt) > fullSweepIntervals*s.cfg.SweepInterval {
		return s.sweepFull(ctx, see)
	}
	err := s.sweepIncremental(ctx, last, see)
	if errors.Is(err, errTooManyOpen) {
		return s.sweepFull(ctx, see)
	}
	return err
}

// Refill restores the offer and the wake-up of every open handoff and decides nothing. An engine
// needs this before it serves clients if its work and timer streams were emptied. A handoff that
// cannot be restored is logged and skipped, so that the others need not wait for it. An engine that
// does not answer ends Refill with an error.
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

// isUnanswered reports whether an error comes from the engine and not from the handoff.
func isUnanswered(err error) bool {
	return errors.Is(err, broker.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded)
}

// publishAll publishes the outbox entries that visit derives from each head, and calls done with
// each outcome: one at a time within a batch, batches in parallel. The first error, including one
// of done, ends it.
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

// An offer that has been in its queue for more than standingHold is a reason to reconcile its
// handoff: most are taken, and their handoffs closed, before. Each supervisor reads those offers
// every standingInterval; if two of them do the same, it is harmless. The first sweep of a
// supervisor handles the offers that are older than it.
const (
	standingHold     = broker.AnnounceHold
	standingInterval = time.Second
	// standingMax bounds the offers that are read before their handoffs are reconciled.
	standingMax = 500
	// standingTimeout bounds the reading.
	standingTimeout = 30 * time.Second
)

// standingLoop reconciles the handoffs whose offers have long been in a queue, until ctx ends.
func (s *Supervisor) standingLoop(ctx context.Context) error {
	from := s.b.Now().Add(-standingHold)
	return everyTick(ctx, standingInterval, func() {
		for until := s.b.Now().Add(-standingHold); from.Before(until) && ctx.Err() == nil; {
			next, err := s.reconcileStanding(ctx, from, until)
			if from = next; err != nil {
				s.log.Debug("standing offers not read; trying again", "err", err)
				break
			}
		}
	})
}

// errStandingMax ends the reading of offers.
var errStandingMax = errors.New("enough offers")

// reconcileStanding reconciles the handoffs of offers that were queued in [from, until), or of the
// first standingMax of them. rest is the time of the first offer that it did not handle: until if
// it handled all, from after an error.
func (s *Supervisor) reconcileStanding(ctx context.Context, from, until time.Time) (rest time.Time, err error) {
	reading, cancel := context.WithTimeout(ctx, standingTimeout)
	defer cancel()
	var offers []broker.OfferKey
	var last time.Time
	rest = until
	err = s.engine.OffersBetween(reading, from, until, func(key broker.OfferKey, at time.Time) error {
		if len(offers) >= standingMax && at.After(last) { // offers of one instant are handled together
			rest = at
			return errStandingMax
		}
		offers, last = append(offers, key), at
		return nil
	})
	if err != nil && !errors.Is(err, errStandingMax) {
		return from, err
	}
	for _, key := range offers {
		s.enqueue(ctx, request{ticket: key.Ticket, standing: key.Sequence})
	}
	return rest, nil
}
