package brokertest

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	m := NewMemoryAckWait(AckWait)
	t.Cleanup(func() { _ = m.Close() })
	Run(t, func(*testing.T) broker.Engine { return m.Connect() })
}

// TestMemoryPartitions checks a ledger of four partitions.
func TestMemoryPartitions(t *testing.T) {
	t.Parallel()
	m := NewMemoryAckWait(AckWait).Divide(4)
	t.Cleanup(func() { _ = m.Close() })
	Run(t, func(*testing.T) broker.Engine { return m.Connect() })
}

func TestJetStreamSingleNode(t *testing.T) {
	n := startNode(t, embedded.Config{})
	ensure(t, n.ClientURL(), handoffjs.Topology{AsyncWork: true})
	Run(t, func(t *testing.T) broker.Engine { return dial(t, n.ClientURL()) })
}

// TestJetStreamPartitions checks a ledger of four partitions.
func TestJetStreamPartitions(t *testing.T) {
	n := startNode(t, embedded.Config{})
	ensure(t, n.ClientURL(), handoffjs.Topology{AsyncWork: true, Partitions: 4})
	Run(t, func(t *testing.T) broker.Engine { return dial(t, n.ClientURL()) })
}

func TestJetStreamThreeNodes(t *testing.T) {
	c := startCluster(t)
	run(t, true, func(t *testing.T) broker.Engine { return dial(t, c.URL()) })
}

func startNode(t testing.TB, cfg embedded.Config) *embedded.Node {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	n, err := embedded.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Stop() }) // a test may have stopped it
	return n
}

func startCluster(t testing.TB) *embedded.Cluster {
	t.Helper()
	c, err := embedded.StartCluster(t.Context(), 3, t.TempDir(), embedded.FsyncInterval)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	ensure(t, c.URL(), handoffjs.Topology{Replicas: 3})
	return c
}

// ensure makes the streams.
func ensure(t testing.TB, url string, topology handoffjs.Topology) {
	t.Helper()
	if err := handoffjs.EnsureTopology(t.Context(), jsAt(t, url).Conn(), topology); err != nil {
		t.Fatal(err)
	}
}

// jsAt is a view of the engine beside the one under test.
func jsAt(t testing.TB, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url, handoffjs.ConnectOptions("test")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func dial(t testing.TB, url string) *handoffjs.Engine {
	t.Helper()
	cfg := handoffjs.DialConfig{URL: url, Name: t.Name(), Config: handoffjs.Config{AckWait: AckWait}}
	e, err := handoffjs.Dial(t.Context(), cfg)
	for range 5 {
		if !errors.Is(err, broker.ErrUnreachable) {
			break
		}
		// A machine that does much else may need longer than the timeout.
		e, err = handoffjs.Dial(t.Context(), cfg)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}
