package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// watched is a Broker that counts what a supervisor does, and fails where it
// is told to.
type watched struct {
	*broker.Broker
	engine supervisor.Engine
	mu     sync.Mutex
	arms   int
	offers int
	fail   func(ticket string) error // of Arm; may be nil
}

// arming is the engine beside a watched broker.
type arming struct {
	supervisor.Engine
	w *watched
}

func (a *arming) Arm(ctx context.Context, ticket string, seq uint64, at time.Time) error {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	a.w.arms++
	if a.w.fail != nil {
		if err := a.w.fail(ticket); err != nil {
			return err
		}
	}
	return a.Engine.Arm(ctx, ticket, seq, at)
}

func (w *watched) EnsureOffer(ctx context.Context, head broker.Head) error {
	w.mu.Lock()
	w.offers++
	w.mu.Unlock()
	return w.Broker.EnsureOffer(ctx, head)
}

func (w *watched) PublishOutbox(ctx context.Context, all []broker.Outbox) []error {
	return oneByOne(ctx, w, w.engine, all)
}

// oneByOne publishes outbox entries through EnsureOffer and Arm.
func oneByOne(ctx context.Context, b supervisor.Broker, timers broker.Timers, all []broker.Outbox) []error {
	errs := make([]error, len(all))
	for i, h := range all {
		if h.Offer {
			errs[i] = b.EnsureOffer(ctx, h.Head)
		}
		errs[i] = errors.Join(errs[i], timers.Arm(ctx, h.Head.Ticket, h.Seq, h.At))
	}
	return errs
}

func (w *watched) counts() (arms, offers int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.arms, w.offers
}

func (w *world) superviseWatched(fail func(string) error) *watched {
	w.Helper()
	own := w.m.Connect()
	b := &watched{Broker: brokertest.Over(w.T, own), fail: fail}
	b.engine = &arming{own, b}
	w.superviseOver(own, b, b.engine, supervisor.Config{})
	return b
}

// Most handoffs close within a moment. They cost the supervisor no timer and
// no second offer.
func TestHandoffClosedWithinTheHoldCostsNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		b := w.superviseWatched(nil)
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		pass(time.Minute) // the sweeps of the beginning are over
		for range 100 {
			w.submit(nil)
			claim := w.work(coder)
			pass(400 * time.Millisecond)
			if err := claim.Progress(w.ctx, protocol.Progress{Percent: 50}); err != nil {
				t.Fatal(err)
			}
			pass(400 * time.Millisecond)
			w.complete(claim)
		}
		pass(time.Hour)
		if arms, offers := b.counts(); arms != 0 || offers != 0 {
			t.Errorf("%d timers and %d offers for 100 short handoffs, want none", arms, offers)
		}
	})
}

// A long handoff wakes a logarithmic number of times.
func TestLongHandoffWakesSeldom(t *testing.T) {
	inBubble(t, func(w *world) {
		b := w.superviseWatched(nil)
		w.agent("coder", nil)
		w.holder("coder", staying)
		w.submit(nil)
		pass(23 * time.Hour)
		arms, _ := b.counts()
		passes := int(23 * time.Hour / (5 * time.Minute)) // each arms once
		if own := arms - passes; own < 1 || own > 30 {
			t.Errorf("%d wake-ups beside %d passes in 23 hours", own, passes)
		}
	})
}

// Entries that nobody can read, or that the core cannot decide about, do not
// stall the others.
func TestPoisonStallsNobody(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		for i := range 100 {
			ticket := protocol.TicketForKey("poison", fmt.Sprint(i))
			if _, err := w.m.Append(w.ctx, ticket, 0, "x", "", []byte(`{"v":1,"events":"none"`)); err != nil {
				t.Fatal(err)
			}
		}
		ticket := w.submit(nil)
		w.fail(w.work(coder))
		w.complete(w.work(coder))
		w.want(ticket, "0s submitted offered", "0s accepted started", "0s failed", "0s retry_scheduled",
			"2s offered", "2s accepted started", "2s completed")
	})
}

// A state that cannot be is passed over, and counted: its handoff is stuck, and the
// supervisor goes on with the others. Nothing is appended to it.
func TestImpossibleStateIsStuck(t *testing.T) {
	inBubble(t, func(w *world) {
		watch := &watching{}
		w.supervise(supervisor.Config{Watch: watch})
		w.agent("coder", nil)
		ticket := protocol.NewTicket()
		body, err := record.Encode(protocol.Record{ID: "x", State: protocol.State{
			Ticket: ticket, Phase: protocol.Working, AcceptedAt: time.Now().UTC(), // held, and by nobody
			SubmittedAt: time.Now().UTC(), Policy: protocol.DefaultPolicy(),
			Summary: protocol.Summary{Deadline: time.Now().UTC().Add(staying)}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.m.Append(w.ctx, ticket, 0, "x", "", body); err != nil {
			t.Fatal(err)
		}
		pass(time.Hour) // over all sweeps
		watch.mu.Lock()
		known, failed := watch.unreadable, watch.failed
		watch.mu.Unlock()
		if known != 1 || failed != 0 {
			t.Errorf("%d are known to be unreadable, %d looks failed", known, failed)
		}
		if _, err := w.b.Status(w.ctx, ticket); !broker.Unreadable(err) {
			t.Errorf("its status is %v", err)
		}
		if last, err := w.b.Last(w.ctx, ticket, 0); err != nil || last.Seq != 1 {
			t.Errorf("entry %d follows, %v", last.Seq, err)
		}
		coder := w.holder("coder", staying)
		other := w.submit(nil)
		w.complete(w.work(coder))
		w.closed(other)
	})
}

// A reconciliation that fails five times is recorded as stuck, once; the others go on,
// and so does this one when what was wrong is mended.
func TestStuckAfterFiveTries(t *testing.T) {
	inBubble(t, func(w *world) {
		var bad string
		noRoom := errors.New("no room for timers")
		b := w.superviseWatched(func(ticket string) error {
			if ticket == bad {
				return noRoom
			}
			return nil
		})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		b.mu.Lock()
		bad = w.submit(nil)
		b.mu.Unlock()
		state := w.until(bad, func(s protocol.State) bool { return s.StuckReason != "" })
		if tried, _ := b.counts(); tried != 5 || state.StuckReason != noRoom.Error() {
			t.Errorf("stuck after %d tries for %q", tried, state.StuckReason)
		}
		pass(time.Hour)
		if plot := w.plot(bad); plot != "submitted offered, stuck" {
			t.Errorf("said more than once: %s", plot)
		}
		w.complete(w.work(coder))
		if state := w.closed(bad); state.Outcome != protocol.OutcomeSuccess {
			t.Errorf("closed as %s", state.Outcome)
		}
	})
}

const retriedPlot = "submitted offered, accepted started, failed, retry_scheduled, offered, accepted started, completed"

// failOnceThenComplete works on n handoffs: the first attempt of each fails.
func (w *world) failOnceThenComplete(h protocol.Holder, n int) {
	w.Helper()
	for done := 0; done < n; {
		if claim := w.work(h); claim.State().Attempt == 1 {
			w.fail(claim)
		} else {
			w.complete(claim)
			done++
		}
	}
}

// Doubled offers and wake-ups change nothing.
func TestDuplicatesAreHarmless(t *testing.T) {
	inBubble(t, func(w *world) {
		w.m.SetFaults(brokertest.Faults{
			DuplicateOffer: func(broker.OfferKey) bool { return true },
			DuplicateTimer: func(string, uint64) bool { return true },
		})
		w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		var tickets []string
		for range 50 {
			tickets = append(tickets, w.submit(nil))
		}
		w.failOnceThenComplete(coder, len(tickets))
		pass(time.Hour)
		for _, ticket := range tickets {
			if plot := w.plot(ticket); plot != retriedPlot {
				t.Errorf("%s: %s", ticket, plot)
			}
		}
	})
}

// Two supervisors share the work: nothing is said twice.
func TestTwoSupervisorsShare(t *testing.T) {
	inBubble(t, func(w *world) {
		_, stop := w.supervise(supervisor.Config{})
		w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		var tickets []string
		for range 50 {
			tickets = append(tickets, w.submit(nil))
		}
		w.failOnceThenComplete(coder, len(tickets)/2)
		stop()
		w.failOnceThenComplete(coder, len(tickets)-len(tickets)/2)
		for _, ticket := range tickets {
			if plot := w.plot(ticket); plot != retriedPlot {
				t.Errorf("%s: %s", ticket, plot)
			}
		}
	})
}

// A supervisor that takes its share and never looks holds nothing up for
// longer than the ack wait.
func TestFrozenSupervisorIsMadeUpFor(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{SweepInterval: staying})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		pass(time.Minute) // no sweep helps from here on
		frozen := w.m.Connect()
		w.running.Go(func() {
			_ = frozen.Due(w.ctx, func(broker.WakeUp, func()) {})
			_ = frozen.Close()
		})
		var tickets []string
		for range 20 {
			tickets = append(tickets, w.submit(nil))
		}
		w.failOnceThenComplete(coder, len(tickets))
		for _, ticket := range tickets {
			// What was noticed late is scheduled and offered in one append.
			plot := strings.Replace(w.plot(ticket), "retry_scheduled offered", "retry_scheduled, offered", 1)
			if plot != retriedPlot {
				t.Errorf("%s: %s", ticket, plot)
			}
		}
	})
}

// A supervisor that comes after another was cut off in the middle finds what
// that one had in its hands.
func TestSuccessorFindsWhatIsDue(t *testing.T) {
	inBubble(t, func(w *world) {
		own, _ := w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		ticket := w.submit(nil)
		w.fail(w.work(coder))
		w.until(ticket, func(s protocol.State) bool { return s.Phase == protocol.Retrying })
		own.Disconnect()
		pass(time.Minute)
		w.supervise(supervisor.Config{})
		w.complete(w.work(coder))
		w.want(ticket, "0s submitted offered", "0s accepted started", "0s failed", "0s retry_scheduled",
			"1m0s offered", "1m0s accepted started", "1m0s completed")
	})
}
