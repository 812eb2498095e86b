//go:build proof

package process

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// load has sources that submit continuously, and workers without faults: whatever happens to the
// engine, each handoff takes one attempt.
type load struct {
	t      *testing.T
	b      *broker.Broker
	ended  chan struct{} // one for each handoff that was seen to close
	mu     sync.Mutex
	acked  []string // tickets of submissions that returned
	closed int
}

// comesLater marks handoffs that the worker defers once: only a timer brings
// them back.
const comesLater = "come back later"

// steadyScript is the script of the workers: some answers take a while, so that an
// engine that dies finds claims under way.
func steadyScript(t *testing.T) string {
	t.Helper()
	seen := t.TempDir()
	return script(t, `if grep -q '`+comesLater+`' && mkdir '`+seen+`'/"$HANDOFF_TICKET" 2>/dev/null; then
	echo '{"status":"conditional","retry_after_ms":300,"reason":"busy"}' > "$HANDOFF_ACK_FILE"
	exit 77
fi
case "$HANDOFF_TICKET" in *[0-3]) sleep 0.3 ;; esac
echo done`)
}

const (
	loadSources = 8
	loadAhead   = 4 // handoffs of each source that are open at a time
)

// startLoad starts workers and sources. finish stops the sources and waits
// until everything that was acknowledged has closed.
func startLoad(t *testing.T, ctx context.Context, dev *engine) (l *load, finish func()) {
	t.Helper()
	l = &load{t: t, b: dial(t, dev.url), ended: make(chan struct{}, 1<<16)}
	path := steadyScript(t)
	for _, name := range []string{"worker 1", "worker 2"} {
		dev.work(ctx, name, path, "--agent", "steady", "--concurrency", "8")
	}
	sourcesCtx, stop := context.WithCancel(ctx)
	var sources sync.WaitGroup
	for i := range loadSources {
		sources.Go(func() { l.source(ctx, sourcesCtx.Done(), i) })
	}
	return l, func() {
		stop()
		sources.Wait()
	}
}

// source submits until it is told to stop, and then waits for what is open.
func (l *load) source(ctx context.Context, stop <-chan struct{}, number int) {
	var open []string
	for n := 0; ; n++ {
		select {
		case <-stop:
			for _, ticket := range open {
				l.await(ctx, ticket)
			}
			return
		case <-ctx.Done():
			return
		default:
		}
		if ticket, ok := l.submit(ctx, fmt.Sprintf("source %d, number %d", number, n), n%8 == 0); ok {
			open = append(open, ticket)
		}
		if len(open) == loadAhead {
			l.await(ctx, open[0])
			open = open[1:]
		}
	}
}

// submit repeats a submission until the engine has acknowledged it: the same package
// again is the same handoff.
func (l *load) submit(ctx context.Context, what string, later bool) (ticket string, ok bool) {
	if later {
		what += ", " + comesLater
	}
	prepared, err := l.b.Prepare(ctx, protocol.Package{Source: "lead", Target: protocol.Target{Agent: "steady"},
		Reason: "there is always more", Task: protocol.Task{Description: what}})
	if err != nil {
		l.t.Errorf("%s: %v", what, err)
		return "", false
	}
	err = l.retryUnreachable(ctx, func() error {
		_, err := l.b.Submit(ctx, prepared)
		return err
	})
	if err != nil {
		l.t.Errorf("submit %s (%s): %v", what, prepared.Ticket, err)
		return "", false
	}
	l.mu.Lock()
	l.acked = append(l.acked, prepared.Ticket)
	l.mu.Unlock()
	return prepared.Ticket, true
}

func (l *load) await(ctx context.Context, ticket string) {
	var state protocol.State
	err := l.retryUnreachable(ctx, func() (err error) {
		state, err = brokertest.Wait(ctx, l.b, ticket, brokertest.Closed)
		return err
	})
	if err != nil {
		l.t.Errorf("%s does not close: it is %s with %s, attempt %d, held by %q: %v", ticket, state.Phase, state.Agent, state.Attempt, state.Holder, err)
		return
	}
	l.mu.Lock()
	l.closed++
	l.mu.Unlock()
	select {
	case l.ended <- struct{}{}:
	default: // the channel is full: no test waits for so many
	}
}

// retryUnreachable repeats a call while the engine is unreachable. Any other error fails the
// test.
func (l *load) retryUnreachable(ctx context.Context, try func() error) error {
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for {
		err := try()
		if !errors.Is(err, broker.ErrUnreachable) && !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return err
		}
	}
}

// progress waits until n more handoffs have closed.
func (l *load) progress(ctx context.Context, n int) {
	l.t.Helper()
	for len(l.ended) > 0 { // of before
		<-l.ended
	}
	for i := range n {
		select {
		case <-l.ended:
		case <-ctx.Done():
			l.t.Fatalf("only %d of %d handoffs closed: %v", i, n, ctx.Err())
		}
	}
}

// check reads the ledger from its first entry and compares it with what was
// acknowledged: nothing lost, nothing closed twice, no attempt charged to
// workers that lived on.
func (l *load) check(ctx context.Context) {
	l.t.Helper()
	completions, last := map[string]int{}, map[string]protocol.State{}
	err := l.b.Entries(ctx, broker.From(1), func(e broker.Entry) error {
		change, err := broker.DecodeChange(e)
		if err != nil {
			return err
		}
		for _, event := range change.Record.Events {
			if event.EventType() == protocol.EventCompleted {
				completions[e.Ticket]++
			}
		}
		last[e.Ticket] = change.Record.State
		return nil
	})
	if err != nil {
		l.t.Fatal(err)
	}
	deferred := 0
	for _, ticket := range l.acked {
		state, there := last[ticket]
		if !there {
			l.t.Errorf("%s was acknowledged and is lost", ticket)
			continue
		}
		if completions[ticket] != 1 || state.Outcome != protocol.OutcomeSuccess {
			l.t.Errorf("%s completed %d times and is %s %s", ticket, completions[ticket], state.Phase, state.Outcome)
		}
		if state.AttemptsTotal != 1 || state.LeasesLost != 0 {
			l.t.Errorf("%s took %d attempts and lost %d leases, though no worker was harmed", ticket, state.AttemptsTotal, state.LeasesLost)
		}
		deferred += state.ConditionRounds
	}
	if len(last) != len(l.acked) {
		l.t.Errorf("the ledger has %d handoffs, %d were acknowledged", len(last), len(l.acked))
	}
	l.t.Logf("%d handoffs, %d of them deferred once", len(l.acked), deferred)
}

// TestKilledEngine kills the engine and its supervisor under load, again and
// again, and starts them on the same directory.
func TestKilledEngine(t *testing.T) {
	times := 3
	if long() {
		times = 20
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Duration(times)*15*time.Second)
	defer cancel()
	dev := startDev(t, ctx)
	l, finish := startLoad(t, ctx, dev)
	for range times {
		l.progress(ctx, 100)
		dev.Kill()
		killed := time.Now()
		dev.start(ctx)
		ready := time.Since(killed)
		l.progress(ctx, 1)
		t.Logf("ready %v after the kill, the next handoff closed after %v", ready.Round(time.Millisecond), time.Since(killed).Round(time.Millisecond))
	}
	l.progress(ctx, 100)
	finish()
	l.check(ctx)
}

// TestDeletedStreams deletes under load what is made again from the ledger, and from beats.
func TestDeletedStreams(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	dev := startDev(t, ctx)
	l, finish := startLoad(t, ctx, dev)
	js, err := jetstream.New(dialEngine(t, dev.url).Conn())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		for _, stream := range []string{handoffjs.WorkStream, handoffjs.TimerStream, "KV_" + handoffjs.HolderBucket} {
			l.progress(ctx, 100)
			deleted := time.Now()
			if err := js.DeleteStream(ctx, stream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
				t.Fatal(err)
			}
			l.progress(ctx, 1)
			t.Logf("%s deleted, the next handoff closed after %v", stream, time.Since(deleted).Round(time.Millisecond))
		}
	}
	l.progress(ctx, 100)
	finish()
	l.check(ctx)
	for _, stream := range []string{handoffjs.WorkStream, handoffjs.TimerStream, "KV_" + handoffjs.HolderBucket} {
		for { // the one that was deleted last is found missing within seconds
			_, err := js.Stream(ctx, stream)
			if err == nil {
				break
			}
			if !errors.Is(err, jetstream.ErrStreamNotFound) {
				t.Fatalf("stream %s: %v", stream, err)
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				t.Fatalf("stream %s: %v", stream, err)
			}
		}
	}
}
