//go:build proof

package process

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// startNode starts one node that serves this process alone, with all streams.
func startNode(t *testing.T, dir string, fsync embedded.Fsync) *embedded.Node {
	t.Helper()
	node, err := embedded.Start(t.Context(), embedded.Config{Dir: dir, DontListen: true, Fsync: fsync})
	if err != nil {
		t.Fatal(err)
	}
	nc, err := node.Conn()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	ensureTopology(t, nc, jetstream.Topology{AsyncWork: true})
	return node
}

// listeningNode starts one node for other processes, with a directory of its own, until the test ends.
func listeningNode(t *testing.T, cfg embedded.Config) *embedded.Node {
	t.Helper()
	cfg.Dir, cfg.Fsync = t.TempDir(), embedded.FsyncInterval
	node, err := embedded.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Stop(); err != nil {
			t.Error(err)
		}
	})
	return node
}

func ensureTopology(t *testing.T, nc *nats.Conn, topology jetstream.Topology) {
	t.Helper()
	if err := jetstream.EnsureTopology(t.Context(), nc, topology); err != nil {
		t.Fatal(err)
	}
}

// nodeBroker opens a broker over a connection of its own to a node in this
// process. close ends both.
func nodeBroker(t *testing.T, node *embedded.Node, cfg broker.Config) (b *broker.Broker, close func()) {
	t.Helper()
	engine, close := nodeEngine(t, node)
	return brokerOver(t, engine, cfg), close
}

func nodeEngine(t *testing.T, node *embedded.Node) (engine *jetstream.Engine, close func()) {
	t.Helper()
	nc, err := node.Conn()
	if err != nil {
		t.Fatal(err)
	}
	engine, err = jetstream.Open(t.Context(), nc, jetstream.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return engine, func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
		nc.Close()
	}
}

func brokerOver(t *testing.T, engine broker.Engine, cfg broker.Config) *broker.Broker {
	t.Helper()
	b, err := broker.New(engine, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// dial opens a broker over TCP, as another process would.
func dial(t *testing.T, url string) *broker.Broker {
	t.Helper()
	return brokerOver(t, dialEngine(t, url), broker.Config{})
}

func dialEngine(t *testing.T, url string) *jetstream.Engine {
	t.Helper()
	engine, err := jetstream.Dial(t.Context(), jetstream.DialConfig{URL: url, Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	return engine
}

// runner is a component with a Run that ends with its context.
type runner interface {
	Run(ctx context.Context) error
}

// begin runs a component until stop, which joins it and may be called twice.
func begin(t *testing.T, r runner) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%T ended: %v", r, err)
		}
	})
}

// newSupervisor makes a supervisor with a connection of its own to a node.
func newSupervisor(t *testing.T, node *embedded.Node, cfg broker.Config) *supervisor.Supervisor {
	t.Helper()
	nc, err := node.Conn()
	if err != nil {
		t.Fatal(err)
	}
	engine, err := jetstream.Open(t.Context(), nc, jetstream.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close(); nc.Close() }) // the node may have stopped before
	s, err := supervisor.New(brokerOver(t, engine, cfg), engine, supervisor.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newWorker(t *testing.T, b *broker.Broker, cfg worker.Config, handle worker.HandlerFunc) *worker.Worker {
	t.Helper()
	w, err := worker.New(api.Direct(b, cfg.Agent), cfg, handle)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// putAgent registers an agent whose worker is still to come.
func putAgent(t *testing.T, b *broker.Broker, profile protocol.Profile) {
	t.Helper()
	if err := b.PutProfile(t.Context(), profile); err != nil {
		t.Fatal(err)
	}
}

// prepare makes a small package ready.
func prepare(t *testing.T, b *broker.Broker, target string, change func(*protocol.Package)) broker.Prepared {
	t.Helper()
	pkg := protocol.Package{Source: "lead", Target: protocol.Target{Agent: target}, Reason: "it is your turn",
		Task: protocol.Task{Description: "do your part"}}
	if change != nil {
		change(&pkg)
	}
	prepared, err := b.Prepare(t.Context(), pkg)
	if err != nil {
		t.Fatal(err)
	}
	return prepared
}

func submit(t *testing.T, b *broker.Broker, target string, change func(*protocol.Package)) string {
	t.Helper()
	prepared := prepare(t, b, target, change)
	if _, err := b.Submit(t.Context(), prepared); err != nil {
		t.Fatal(err)
	}
	return prepared.Ticket
}

// closed waits for the end of a handoff, which must be a success.
func closed(t *testing.T, ctx context.Context, b *broker.Broker, ticket string) protocol.State {
	t.Helper()
	state, err := brokertest.Wait(ctx, b, ticket, brokertest.Closed)
	if err != nil {
		t.Fatalf("wait for %s (%s, attempt %d): %v", ticket, state.Phase, state.Attempt, err)
	}
	if state.Outcome != protocol.OutcomeSuccess {
		t.Fatalf("%s closed as %s (%s): %s", ticket, state.Outcome, state.Reason, state.Message)
	}
	return state
}

// done is the result of work that there is nothing to say about.
func done() protocol.Result { return protocol.Result{Body: []byte(`"done"`)} }
