//go:build proof

package bench

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// Of a million open handoffs whose work and timer streams are deleted, the issue
// asks that all have an offer and a wake-up again in
const (
	refillTimeMax        = 120 * time.Second
	refillMemoryBytesMax = 300 << 20 // of the supervisor's process, at its peak
	refillTimeout        = 15 * time.Minute
)

// TestRefillMillion deletes the outbox streams under a supervisor in a process
// of its own, and waits until every open handoff has its offer and its wake-up.
func TestRefillMillion(t *testing.T) {
	n := handoffs(t)
	dir := stored(t, "open", n, func(url string) { writeOpen(t, url, n) })
	url, engine := startEngine(t, dir)
	conn, b, err := dial(t.Context(), url, "watcher")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	busyAgents(t, b)
	js, err := jetstream.New(conn.Conn())
	if err != nil {
		t.Fatal(err)
	}
	keeper := start(t, "supervisor", url)
	began := time.Now()
	awaitOutbox(t, js, n, keeper)
	t.Logf("at a start: all there after %v", time.Since(began).Round(100*time.Millisecond))
	keeper.reportMemory("after a start")
	engine.reportMemory("after a start")

	keeper.forgetPeak()
	engineHad, keeperHad := engine.cpu(), keeper.cpu()
	began = time.Now()
	deleteOutboxStreams(t, js)
	t.Logf("deleted in %v", time.Since(began).Round(100*time.Millisecond))
	awaitOutbox(t, js, n, keeper)
	took := time.Since(began)
	t.Logf("all %d have an offer and a wake-up again after %v (wanted: in %v); %.1f µs each of the supervisor's processor time, %.1f µs of the engine's", n,
		took.Round(100*time.Millisecond), refillTimeMax, float64((keeper.cpu()-keeperHad).Microseconds())/float64(n), float64((engine.cpu()-engineHad).Microseconds())/float64(n))
	engine.reportMemory("after the refill")
	if peak := keeper.reportMemory("after the refill"); peak > refillMemoryBytesMax {
		t.Errorf("the supervisor had %d MB at its peak, wanted up to %d MB", peak>>20, refillMemoryBytesMax>>20)
	}
	if took > refillTimeMax {
		t.Errorf("it took %v, wanted up to %v", took, refillTimeMax)
	}
}

// writeOpen puts n unclaimed handoffs into the ledger.
func writeOpen(t *testing.T, url string, n int) {
	t.Helper()
	l := newLedger(n)
	l.open = true
	l.fill(t, url, n)
}

// TestRefill is the same with a few handoffs and everything in one process, and
// checks each: one offer, one wake-up.
func TestRefill(t *testing.T) {
	const n = 2_000
	node, err := openEngine(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Stop() })
	writeOpen(t, node.ClientURL(), n)
	conn, b, err := dial(t.Context(), node.ClientURL(), "supervisor")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	busyAgents(t, b)
	js, err := jetstream.New(conn.Conn())
	if err != nil {
		t.Fatal(err)
	}
	watch := &sweepCounter{}
	s, err := supervisor.New(b, conn, supervisor.Config{Watch: watch})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer running.Wait()
	defer stop()
	awaitOutbox(t, js, n, nil)
	checkOutbox(t, js, n)
	for range 2 {
		before := watch.reconnected.Load()
		deleteOutboxStreams(t, js)
		awaitOutbox(t, js, n, nil)
		checkOutbox(t, js, n)
		checkOutboxUnchanged(t, js, 4*time.Second) // for longer than the identity of the streams goes unchecked
		// One for each stream, should the loss of the first be seen before the second is lost.
		if made := watch.reconnected.Load() - before; made < 1 || made > 2 {
			t.Errorf("%d passes were made for it, want 1", made)
		}
	}
	if put := watch.failed.Load(); put != 0 {
		t.Errorf("%d looks failed", put)
	}
}

// sweepCounter counts what a supervisor does.
type sweepCounter struct{ reconnected, failed atomic.Int64 }

func (*sweepCounter) Followed(broker.Entry, protocol.Record) {}
func (*sweepCounter) Due(time.Time)                          {}

func (*sweepCounter) Unreadable(int) {}

func (p *sweepCounter) Reconciled(err error) {
	if err != nil {
		p.failed.Add(1)
	}
}

func (*sweepCounter) Tripped(string) {}

func (p *sweepCounter) Swept(why string, _, _ int, _ time.Duration, _ error) {
	if why == "reconnected" {
		p.reconnected.Add(1)
	}
}

// busyAgents are there, and busy with something else, so that nothing is to be
// decided about what waits for them.
func busyAgents(t *testing.T, b *broker.Broker) {
	t.Helper()
	for _, agent := range newLedger(0).agents {
		if err := b.PutProfile(t.Context(), protocol.Profile{ID: agent}); err != nil {
			t.Fatal(err)
		}
		if err := b.Beat(t.Context(), protocol.Holder{ID: agent + "-1", Agent: agent, LeaseMS: time.Hour.Milliseconds(), Slots: 1}); err != nil {
			t.Fatal(err)
		}
	}
}

func deleteOutboxStreams(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	for _, name := range []string{handoffjs.WorkStream, handoffjs.TimerStream} {
		if err := js.DeleteStream(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
}

// checkOutbox reads which tickets have an offer and a wake-up.
func checkOutbox(t *testing.T, js jetstream.JetStream, n int) {
	t.Helper()
	for name, filter := range map[string]string{handoffjs.WorkStream: "handoff.work.*.*.*.*", handoffjs.TimerStream: "handoff.timer.>"} {
		stream, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(filter))
		if err != nil {
			t.Fatal(err)
		}
		tickets := map[string]bool{}
		for subject, messages := range info.State.Subjects {
			words := strings.Split(subject, ".")
			tickets[words[len(words)-2]] = true
			if messages != 1 {
				t.Errorf("%s has %d messages", subject, messages)
			}
		}
		if len(tickets) != n || len(info.State.Subjects) != n {
			t.Errorf("%s is of %d tickets in %d subjects, want %d of each", name, len(tickets), len(info.State.Subjects), n)
		}
	}
}

// checkOutboxUnchanged waits, and finds as many offers and wake-ups as before.
func checkOutboxUnchanged(t *testing.T, js jetstream.JetStream, d time.Duration) {
	t.Helper()
	offers, wakeUps := messages(t, js, handoffjs.WorkStream), messages(t, js, handoffjs.TimerStream)
	<-time.After(d)
	if o, w := messages(t, js, handoffjs.WorkStream), messages(t, js, handoffjs.TimerStream); o != offers || w != wakeUps {
		t.Errorf("%d offers and %d wake-ups became %d and %d", offers, wakeUps, o, w)
	}
}

// awaitOutbox waits until as many offers and wake-ups stand as there are handoffs.
func awaitOutbox(t *testing.T, js jetstream.JetStream, n int, keeper *process) {
	t.Helper()
	began, told := time.Now(), time.Now()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		offers, wakeUps := messages(t, js, handoffjs.WorkStream), messages(t, js, handoffjs.TimerStream)
		if offers > n && wakeUps >= n { // a sentinel is among the offers
			if offers > n+1 || wakeUps > n {
				t.Errorf("%d offers and %d wake-ups stand for %d handoffs", offers-1, wakeUps, n)
			}
			return
		}
		if time.Since(told) > 10*time.Second {
			t.Logf("  %v: %d offers, %d wake-ups", time.Since(began).Round(time.Second), offers-1, wakeUps)
			if keeper != nil {
				keeper.reportMemory("meanwhile")
			}
			told = time.Now()
		}
		if time.Since(began) > refillTimeout {
			t.Fatalf("%d offers and %d wake-ups after %v", offers-1, wakeUps, refillTimeout)
		}
		<-tick.C
	}
}

// messages are how many a stream has; 0 of one that is not there.
func messages(t *testing.T, js jetstream.JetStream, name string) int {
	t.Helper()
	stream, err := js.Stream(t.Context(), name)
	if err != nil {
		return 0
	}
	return int(stream.CachedInfo().State.Msgs)
}
