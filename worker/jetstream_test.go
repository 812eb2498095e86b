//go:build unix

package worker_test

import (
	"context"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// node starts a real engine in this process.
func node(t testing.TB) *embedded.Node { return nodeIn(t, t.TempDir(), 0) }

func nodeIn(t testing.TB, dir string, port int) *embedded.Node {
	t.Helper()
	n, err := embedded.Start(t.Context(), embedded.Config{Dir: dir, Port: port})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Stop() })
	nc, err := n.Conn()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := jetstream.EnsureTopology(t.Context(), nc, jetstream.Topology{AsyncWork: true}); err != nil {
		t.Fatal(err)
	}
	return n
}

func dial(t testing.TB, n *embedded.Node) *broker.Broker {
	t.Helper()
	return brokertest.Over(t, dialEngine(t, n))
}

func dialEngine(t testing.TB, n *embedded.Node) *jetstream.Engine {
	t.Helper()
	engine, err := jetstream.Dial(t.Context(), jetstream.DialConfig{URL: n.ClientURL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	return engine
}

// start runs a worker until drain is called.
func start(t testing.TB, b *broker.Broker, cfg worker.Config, h worker.Handler) (w *worker.Worker, drain func() error) {
	t.Helper()
	w, err := worker.New(sessionOf(b), cfg, h)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	return w, func() error {
		cancel()
		return <-ended
	}
}

func waitFor(t testing.TB, b *broker.Broker, ticket string, until func(protocol.State) bool) protocol.State {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	state, err := brokertest.Wait(ctx, b, ticket, until)
	if err != nil {
		t.Fatalf("wait: %v; state %+v", err, state)
	}
	return state
}

func isWorking(s protocol.State) bool { return s.Phase == protocol.Working }

// Real programs, on the real engine.
func TestProgramsOnJetStream(t *testing.T) {
	n := node(t)
	b := dial(t, n)
	e := execOf(t, worker.ExecConfig{Command: []string{script(t, `echo "attempt $HANDOFF_ATTEMPT: $(wc -c) bytes"`)}})
	if err := b.PutProfile(t.Context(), protocol.Profile{ID: "coder"}); err != nil {
		t.Fatal(err)
	}
	w, drain := start(t, dial(t, n), worker.Config{Agent: "coder", Concurrency: 3}, e)
	var tickets []string
	for range 12 {
		tickets = append(tickets, submitTo(t, b, nil))
	}
	large := submitTo(t, b, func(p *protocol.Package) { p.Context.Summary = strings.Repeat("long ", 100_000) })
	for _, ticket := range append(tickets, large) {
		state := waitFor(t, b, ticket, brokertest.Closed)
		result, _, err := b.Result(t.Context(), ticket)
		if err != nil || state.Outcome != protocol.OutcomeSuccess || state.Attempt != 1 || !strings.Contains(string(result.Body), "attempt 1: ") {
			t.Errorf("%+v: %s, %v", state, result.Body, err)
		}
	}
	if err := drain(); err != nil {
		t.Error(err)
	}
	if stats := w.Stats(); stats.Completed != 13 || stats.Slots != 3 || stats.Busy != 0 {
		t.Errorf("stats %+v", stats)
	}
	if depth, err := b.QueueDepth(t.Context(), "coder"); err != nil || depth != 0 {
		t.Errorf("%d offers left, %v", depth, err)
	}
	if _, err := b.Holder(t.Context(), w.Holder()); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("the worker's presence: %v", err)
	}
}

// A cancel ends the program and all its children.
func TestCancelEndsTheProgram(t *testing.T) {
	n := node(t)
	b := dial(t, n)
	if err := b.PutProfile(t.Context(), protocol.Profile{ID: "coder"}); err != nil {
		t.Fatal(err)
	}
	l := newLifeline(t)
	e := execOf(t, worker.ExecConfig{Command: []string{script(t, family(l, true))}, KillGrace: 100 * time.Millisecond})
	_, drain := start(t, dial(t, n), worker.Config{Agent: "coder", Lease: worker.LeaseMin}, e)
	ticket := submitTo(t, b, nil)
	if line := l.next(t); line != "ready" {
		t.Fatalf("the script said %q", line)
	}
	if _, err := b.Cancel(t.Context(), ticket, "lead", "changed my mind"); err != nil {
		t.Fatal(err)
	}
	if line := l.next(t); line != "" {
		t.Errorf("the script said %q", line)
	}
	if state := waitFor(t, b, ticket, brokertest.Closed); state.Outcome != protocol.OutcomeCancelled || state.AttemptsTotal != 0 {
		t.Errorf("state %+v", state)
	}
	if err := drain(); err != nil {
		t.Error(err)
	}
}

// A program that cannot run ends its worker and charges no attempt; another
// worker takes the handoff at once.
func TestUnfitWorker(t *testing.T) {
	n := node(t)
	b := dial(t, n)
	if err := b.PutProfile(t.Context(), protocol.Profile{ID: "coder"}); err != nil {
		t.Fatal(err)
	}
	unfit := execOf(t, worker.ExecConfig{Command: []string{script(t, `no_such_model --answer`)}})
	w, err := worker.New(sessionOf(dial(t, n)), worker.Config{Agent: "coder"}, unfit)
	if err != nil {
		t.Fatal(err)
	}
	ticket := submitTo(t, b, nil)
	if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no_such_model") || !strings.Contains(err.Error(), "127") {
		t.Errorf("ended by %v", err)
	}
	_, drain := start(t, dial(t, n), worker.Config{Agent: "coder"}, done)
	if state := waitFor(t, b, ticket, brokertest.Closed); state.Attempt != 1 || state.AttemptsTotal != 1 {
		t.Errorf("state %+v", state)
	}
	if err := drain(); err != nil {
		t.Error(err)
	}
}

// The engine dies and comes back on the same directory and address while a
// handler works: nothing is charged, and the work counts.
func TestEngineRestartsMeanwhile(t *testing.T) {
	dir := t.TempDir()
	n := nodeIn(t, dir, 0)
	b := dial(t, n)
	if err := b.PutProfile(t.Context(), protocol.Profile{ID: "coder"}); err != nil {
		t.Fatal(err)
	}
	h := newWorking()
	_, drain := start(t, dial(t, n), worker.Config{Agent: "coder", Concurrency: 2}, h)
	first := submitTo(t, b, nil)
	waitFor(t, b, first, isWorking)
	address, err := url.Parse(n.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(address.Port())
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	nodeIn(t, dir, port)
	second := submitTo(t, b, nil) // the queue's consumers were forgotten
	<-h.began
	<-h.began
	h.end <- nil
	h.end <- nil
	for _, ticket := range []string{first, second} {
		if state := waitFor(t, b, ticket, brokertest.Closed); state.Outcome != protocol.OutcomeSuccess || state.AttemptsTotal != 1 {
			t.Errorf("state %+v", state)
		}
	}
	if err := drain(); err != nil {
		t.Error(err)
	}
}
