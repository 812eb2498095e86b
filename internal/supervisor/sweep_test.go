package supervisor_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// A worker that vanishes loses its claim the moment its presence lapses, and
// the next one takes it up as attempt 2.
func TestDepartureLosesTheLeaseAtOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		pass(time.Minute)
		ticket := w.submit(nil)
		gone := w.work(w.holder("coder", 10*time.Second))
		next := w.work(w.holder("coder", staying))
		if next.State().Attempt != 2 {
			t.Errorf("attempt %d, want 2", next.State().Attempt)
		}
		if err := gone.Progress(w.ctx, protocol.Progress{Percent: 50}); !errors.Is(err, broker.ErrLeaseLost) {
			t.Errorf("the zombie reports and is told %v, want ErrLeaseLost", err)
		}
		w.complete(next)
		w.want(ticket, "1m0s submitted offered", "1m0s accepted started", "1m10s lease_lost offered",
			"1m10s accepted started", "1m10s completed")
	})
}

// Work that kills every worker it meets is not offered for ever.
func TestCrashLoopEnds(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		pass(time.Minute)
		ticket := w.submit(func(p *protocol.Package) { p.Policy.OnExhausted = new(protocol.ExhaustedFail) })
		for range 3 {
			w.work(w.holder("coder", 20*time.Second))
		}
		if state := w.closed(ticket); state.Reason != "crash_loop" || state.LeasesLost != 3 {
			t.Errorf("closed for %q after %d lost leases, want crash_loop after 3", state.Reason, state.LeasesLost)
		}
		w.want(ticket, "1m0s submitted offered", "1m0s accepted started", "1m20s lease_lost offered", "1m20s accepted started",
			"1m40s lease_lost offered", "1m40s accepted started", "2m0s lease_lost closed")
	})
}

// When an agent's last worker leaves, its queued handoffs wait for the
// acknowledge timeout and then go elsewhere.
func TestLastDepartureEmptiesTheQueue(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		ticket := w.submit(nil)
		pass(10 * time.Minute)
		if err := w.b.RemoveHolder(w.ctx, coder.ID); err != nil {
			t.Fatal(err)
		}
		w.until(ticket, func(s protocol.State) bool { return s.Agent == protocol.Human })
		w.want(ticket, "0s submitted offered", "10m30.2s timed_out escalated offered")
	})
}

// A departure counts for a handoff, too, that no sweep has seen.
func TestDepartureRightAfterASubmission(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		pass(10 * time.Minute)
		ticket := w.submit(nil)
		if err := w.b.RemoveHolder(w.ctx, coder.ID); err != nil {
			t.Fatal(err)
		}
		w.until(ticket, func(s protocol.State) bool { return s.Agent == protocol.Human })
		w.want(ticket, "10m0s submitted offered", "10m30s timed_out escalated offered")
	})
}

// An agent whose worker died with the handoff in its hands is given twice the
// time to come back, after each departure.
func TestDepartureAfterALostLease(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		pass(time.Minute)
		ticket := w.submit(nil)
		w.work(w.holder("coder", 10*time.Second))
		busy := w.holder("coder", staying)
		pass(10 * time.Minute)
		if err := w.b.RemoveHolder(w.ctx, busy.ID); err != nil {
			t.Fatal(err)
		}
		w.until(ticket, func(s protocol.State) bool { return s.Agent == protocol.Human })
		w.want(ticket, "1m0s submitted offered", "1m0s accepted started", "1m10s lease_lost offered",
			"12m0.2s timed_out escalated offered")
	})
}

// The check after a departure does not put off the handoff's own clocks.
func TestDepartureKeepsOtherClocks(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		ticket := w.submit(func(p *protocol.Package) {
			p.Policy.QueueTimeoutMS = ptr(int64(610_000))
		})
		pass(10 * time.Minute)
		if err := w.b.RemoveHolder(w.ctx, coder.ID); err != nil {
			t.Fatal(err)
		}
		w.until(ticket, func(s protocol.State) bool { return s.Agent == protocol.Human })
		w.want(ticket, "0s submitted offered", "10m10s timed_out escalated offered")
	})
}

// Whoever was cut off may not judge others absent: a worker that was cut off
// with the supervisor keeps its claim, and one that died loses it once the
// supervisor has been connected for a lease.
func TestJudgeMustBeConnected(t *testing.T) {
	inBubble(t, func(w *world) {
		own, _ := w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		pass(time.Minute)
		lives, dies := w.submit(nil), w.submit(nil)
		first, second := w.holder("coder", 30*time.Second), w.holder("coder", 30*time.Second)
		byTicket := map[string]*broker.Claim{}
		for _, h := range []protocol.Holder{first, second} {
			claim := w.work(h)
			byTicket[claim.Ticket] = claim
		}
		own.Disconnect()
		pass(time.Minute) // both presences lapse
		own.Reconnect()
		back := byTicket[lives].Holder
		for range 12 {
			if err := w.b.Beat(w.ctx, back); err != nil {
				t.Fatal(err)
			}
			pass(10 * time.Second)
		}
		if state, err := w.b.Status(w.ctx, lives); err != nil || state.Holder != back.ID || state.LeasesLost != 0 {
			t.Errorf("the worker that came back lost its claim: holder %q, %v", state.Holder, err)
		}
		const wantPlot = "submitted offered, accepted started, lease_lost offered"
		if plot := w.plot(dies); plot != wantPlot {
			t.Fatalf("of the worker that died: %s; want %s", plot, wantPlot)
		}
		changes, err := w.b.History(w.ctx, dies)
		if err != nil {
			t.Fatal(err)
		}
		lost := changes[2].Record.Events[0].When().Sub(w.begun)
		if reconnected := 2 * time.Minute; lost < reconnected+30*time.Second || lost > reconnected+32*time.Second {
			t.Errorf("lost at %v, want one lease after the supervisor came back at %v", lost, reconnected)
		}
	})
}

// Offers that never reached the queue are put there by a reconciliation.
func TestLostOffersAreMadeAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		dropped := 0
		w.m.SetFaults(brokertest.Faults{DropOffer: func(broker.OfferKey) bool { dropped++; return dropped <= 4 }})
		w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		ticket := w.submit(nil)
		w.complete(w.work(coder))
		if state := w.closed(ticket); state.AttemptsTotal != 1 {
			t.Errorf("%d attempts, want 1", state.AttemptsTotal)
		}
		if dropped != 5 {
			t.Errorf("%d offers were put, want 5", dropped)
		}
	})
}

// The work stream may be deleted at any time: a sweep fills it again.
func TestDeletedWorkIsFilledAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		tickets := []string{w.submit(nil), w.submit(nil), w.submit(nil)}
		pass(time.Hour)
		w.m.DeleteWork()
		for range tickets {
			w.complete(w.work(coder))
		}
		for _, ticket := range tickets {
			w.want(ticket, "0s submitted offered", "1h0m0s accepted started", "1h0m0s completed")
		}
	})
}

// With no timer ever firing, the sweeps alone keep things going.
func TestLostTimersAreMadeUpForByPasses(t *testing.T) {
	inBubble(t, func(w *world) {
		w.m.SetFaults(brokertest.Faults{DropTimer: func(string, uint64) bool { return true }})
		w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		pass(time.Minute) // the sweep that comes when the supervisor may judge is over
		ticket := w.submit(nil)
		w.fail(w.work(coder))
		w.complete(w.work(coder))
		w.want(ticket, "1m0s submitted offered", "1m0s accepted started", "1m0s failed", "1m0s retry_scheduled",
			"5m0s offered", "5m0s accepted started", "5m0s completed")
	})
}

// Timers that were deleted are armed again when the connection tells of it.
func TestDeletedTimersAreArmedAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{SweepInterval: staying})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		ticket := w.submit(func(p *protocol.Package) {
			p.Policy.BackoffBaseMS = ptr(int64(3_600_000))
			p.Policy.BackoffCapMS = ptr(int64(3_600_000))
		})
		w.fail(w.work(coder))
		pass(10 * time.Minute)
		w.m.DeleteTimers()
		w.complete(w.work(coder))
		w.want(ticket, "0s submitted offered", "0s accepted started", "0s failed", "0s retry_scheduled",
			"1h0m0s offered", "1h0m0s accepted started", "1h0m0s completed")
	})
}

// Refill decides nothing: it only puts offers and wake-ups where they belong.
func TestRefill(t *testing.T) {
	inBubble(t, func(w *world) {
		w.agent("coder", nil)
		overdue := w.submit(func(p *protocol.Package) { p.Constraints.Deadline = time.Now().UTC().Add(time.Minute) })
		waits := w.submit(nil)
		pass(time.Hour)
		w.m.DeleteWork()
		w.m.DeleteTimers()
		if err := supervisor.Refill(w.ctx, w.b, w.m, nil); err != nil {
			t.Fatal(err)
		}
		if depth, err := w.b.QueueDepth(w.ctx, "coder"); err != nil || depth != 2 {
			t.Errorf("%d offers stand, %v; want 2", depth, err)
		}
		for _, ticket := range []string{overdue, waits} {
			w.want(ticket, "0s submitted offered")
		}
	})
}

// A sweep that nothing calls for takes its time over many open handoffs, and one
// that makes up for lost outbox entries does not.
func TestPassAtIntervalIsSpread(t *testing.T) {
	inBubble(t, func(w *world) {
		w.agent("coder", nil)
		w.holder("coder", staying)
		const n = 1_000
		for range n {
			w.submit(nil)
		}
		watch := &sweepsTook{took: map[string]time.Duration{}}
		w.supervise(supervisor.Config{Watch: watch})
		pass(10 * time.Minute)
		watch.mu.Lock()
		defer watch.mu.Unlock()
		if took := watch.took["start"]; took > 10*time.Millisecond {
			t.Errorf("the pass at the start took %v", took)
		}
		if took := watch.took["interval"]; took < 380*time.Millisecond || took > 420*time.Millisecond {
			t.Errorf("the pass at an interval over %d open handoffs took %v, want 400 ms", n, took)
		}
	})
}

// What is lost while such a sweep takes its time is made up for at once.
func TestPassAtIntervalGivesWay(t *testing.T) {
	inBubble(t, func(w *world) {
		w.agent("coder", nil)
		w.holder("coder", staying)
		const n = 1_000
		for range n {
			w.submit(nil)
		}
		watch := &sweepsTook{took: map[string]time.Duration{}}
		own, _ := w.supervise(supervisor.Config{Watch: watch})
		pass(5*time.Minute + 100*time.Millisecond)
		own.Disconnect()
		own.Reconnect()
		pass(50 * time.Millisecond)
		watch.mu.Lock()
		defer watch.mu.Unlock()
		if _, made := watch.took["reconnected"]; !made {
			t.Error("no pass was made after the connection came back")
		}
		if took, whole := watch.took["interval"]; whole {
			t.Errorf("the other one went on for %v", took)
		}
	})
}

// sweepsTook notes how long each kind of sweep took at last.
type sweepsTook struct {
	mu   sync.Mutex
	took map[string]time.Duration
}

func (*sweepsTook) Followed(broker.Entry, protocol.Record) {}
func (*sweepsTook) Due(time.Time)                          {}
func (*sweepsTook) Unreadable(int)                         {}

func (*sweepsTook) Reconciled(error) {}
func (*sweepsTook) Tripped(string)   {}

func (p *sweepsTook) Swept(why string, _, _ int, took time.Duration, _ error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.took[why] = took
}

// barren is a broker that cannot offer one handoff, whose package is gone, say.
type barren struct {
	supervisor.Broker
	timers broker.Timers
	ticket string
	why    error
}

func (b *barren) EnsureOffer(ctx context.Context, head broker.Head) error {
	if head.Ticket == b.ticket {
		return b.why
	}
	return b.Broker.EnsureOffer(ctx, head)
}

func (b *barren) PublishOutbox(ctx context.Context, all []broker.Outbox) []error {
	return oneByOne(ctx, b, b.timers, all)
}

// One handoff that cannot be offered must not keep an engine from starting
// after a crash: the others are put back all the same.
func TestRefillPassesOverWhatCannotBeOffered(t *testing.T) {
	inBubble(t, func(w *world) {
		w.agent("coder", nil)
		first := w.submit(nil)
		w.submit(nil)
		w.m.DeleteWork()
		for _, why := range []error{broker.ErrNotFound, errors.New("maximum payload exceeded")} {
			if err := supervisor.Refill(w.ctx, &barren{Broker: w.b, timers: w.m, ticket: first, why: why}, w.m, nil); err != nil {
				t.Fatal(err)
			}
			if depth, err := w.b.QueueDepth(w.ctx, "coder"); err != nil || depth != 1 {
				t.Errorf("%d offers stand, %v; want that of the other handoff", depth, err)
			}
		}
		w.m.Disconnect()
		if err := supervisor.Refill(w.ctx, w.b, w.m, nil); !errors.Is(err, broker.ErrUnreachable) {
			t.Errorf("with the engine away: %v, want ErrUnreachable", err)
		}
	})
}

// What cannot be offered is called stuck, and its clocks run on.
func TestDeadlineOfWhatCannotBeOffered(t *testing.T) {
	inBubble(t, func(w *world) {
		w.agent("coder", nil)
		w.holder("coder", staying)
		ticket := w.submit(func(p *protocol.Package) {
			p.Constraints.Deadline, p.Policy.OnDeadline = time.Now().UTC().Add(10*time.Minute), new(protocol.DeadlineClose)
		})
		own := w.m.Connect()
		w.superviseOver(own, &barren{Broker: brokertest.Over(t, own), timers: own, ticket: ticket, why: broker.ErrNotFound}, own, supervisor.Config{SweepInterval: staying})
		if state := w.until(ticket, func(s protocol.State) bool { return s.StuckReason != "" }); state.Closed {
			t.Error("it is closed already")
		}
		if state := w.closed(ticket); state.ClosedAt.Sub(w.begun) != 10*time.Minute {
			t.Errorf("closed at %v, want the deadline after 10m", state.ClosedAt.Sub(w.begun))
		}
	})
}

// A supervisor that comes when it is all overdue decides as soon as it has been
// connected for long enough to judge, and not at some later reconciliation.
func TestJudgesAsSoonAsItMay(t *testing.T) {
	inBubble(t, func(w *world) {
		w.agent("coder", nil)
		w.agent("absent", nil)
		held := w.submit(func(p *protocol.Package) { p.Policy.WorkTimeoutMS = ptr(int64(86_400_000)) })
		w.work(w.holder("coder", 10*time.Minute))
		unheard := w.submit(func(p *protocol.Package) {
			p.Target.Agent, p.Policy.AckTimeoutMS = "absent", ptr(int64(5000))
		})
		pass(50 * time.Minute)
		w.supervise(supervisor.Config{SweepInterval: staying})
		w.holder("coder", staying)
		pass(15 * time.Minute)
		w.want(unheard, "0s submitted offered", "50m5s timed_out escalated offered")
		w.want(held, "0s submitted offered", "0s accepted started", "1h0m0s lease_lost offered")
	})
}

// slow is an engine whose ledger takes a second to read.
type slow struct {
	supervisor.Engine
	passes int
}

func (s *slow) Heads(ctx context.Context, fn func(broker.Entry) error) error {
	s.begin()
	return s.Engine.Heads(ctx, fn)
}

func (s *slow) Entries(ctx context.Context, from broker.Cursor, fn func(broker.Entry) error) error {
	s.begin()
	return s.Engine.Entries(ctx, from, fn)
}

func (s *slow) begin() {
	s.passes++
	time.Sleep(time.Second) // the bubble's clock
}

// Agents that poll come and go. Their departures must not keep a supervisor
// reading all heads without a break.
func TestManyDeparturesCostFewPasses(t *testing.T) {
	inBubble(t, func(w *world) {
		own := w.m.Connect()
		b := &slow{Engine: own}
		w.superviseOver(own, brokertest.Over(t, own), b, supervisor.Config{SweepInterval: staying})
		pass(time.Minute)
		before := b.passes
		for range 1000 {
			if err := w.b.RemoveHolder(w.ctx, w.holder("coder", staying).ID); err != nil {
				t.Fatal(err)
			}
			pass(100 * time.Millisecond)
		}
		if passes := b.passes - before; passes < 9 || passes > 11 {
			t.Errorf("%d passes of a second in 100 s of polling, want one in 10 s", passes)
		}
	})
}
