package brokertest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// TestDiagnose: an engine as Handoff makes it shows nothing amiss, and what is
// done to it shows.
func TestDiagnose(t *testing.T) {
	t.Parallel()
	n := startNode(t, embedded.Config{})
	ensure(t, n.ClientURL(), handoffjs.Topology{AsyncWork: true})
	e := dial(t, n.ClientURL())
	if err := e.EnsureQueue(t.Context(), "clerk"); err != nil {
		t.Fatal(err)
	}
	following, stop := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- e.Follow(following, func(_ broker.Entry, done func()) { done() }) }()
	go func() {
		ended <- e.Due(following, func(broker.WakeUp, func()) {})
	}()
	ledgerFollowed := func(d handoffjs.Diagnosis) handoffjs.ConsumerFacts {
		return consumerOf(t, d, handoffjs.LedgerStream, handoffjs.SupervisorConsumer)
	}
	var d handoffjs.Diagnosis
	for d = diagnose(t, e.Conn()); ledgerFollowed(d).Waiting == 0 || consumerOf(t, d, handoffjs.TimerStream, handoffjs.SupervisorConsumer).Waiting == 0; {
		d = diagnose(t, e.Conn()) // until both followers pull
	}
	if len(d.Unanswered) > 0 || d.Server.Version == "" || d.Server.RTT <= 0 || d.Server.Within <= 0 || d.Server.Ahead.Abs() > time.Minute {
		t.Errorf("server: %+v, unanswered: %v", d.Server, d.Unanswered)
	}
	for _, s := range d.Streams {
		if s.Missing || len(s.Weaker) > 0 || len(s.Behind) > 0 || s.Leaderless || s.Memory || s.Sealed || !s.Synced {
			t.Errorf("stream: %+v", s)
		}
	}
	if len(d.Streams) != 8 || len(d.Consumers) != 6 {
		t.Errorf("%d streams and %d consumers, want 8 and 6", len(d.Streams), len(d.Consumers))
	}
	for _, c := range d.Consumers {
		if c.Missing || len(c.Odd) > 0 || c.Paused {
			t.Errorf("consumer: %+v", c)
		}
	}

	stop()
	for range 2 {
		<-ended
	}
	js, err := jetstream.New(e.Conn())
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(js.DeleteConsumer(t.Context(), handoffjs.LedgerStream, handoffjs.SupervisorConsumer))
	must(js.DeleteStream(t.Context(), handoffjs.TimerStream))
	must(js.DeleteConsumer(t.Context(), handoffjs.WorkStream, "clerk-low"))
	_, err = js.CreateConsumer(t.Context(), handoffjs.WorkStream, jetstream.ConsumerConfig{
		Durable: "clerk-low", FilterSubject: "handoff.work.clerk.low.>", AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 3,
	})
	must(err)
	ledger, err := js.Stream(t.Context(), handoffjs.LedgerStream)
	must(err)
	cfg := ledger.CachedInfo().Config
	cfg.MaxAge, cfg.MaxBytes, cfg.AllowAtomicPublish = time.Hour, 1<<30, false
	_, err = js.UpdateStream(t.Context(), cfg)
	must(err)

	d = diagnose(t, e.Conn())
	if d.Consumers[0].Stream == handoffjs.LedgerStream || !consumerOf(t, d, handoffjs.TimerStream, handoffjs.SupervisorConsumer).Missing {
		t.Errorf("consumers: %+v", d.Consumers)
	}
	low := consumerOf(t, d, handoffjs.WorkStream, "clerk-low")
	if low.Agent != "clerk" || low.Lane != protocol.Low || !slices.Contains(low.Odd, "max_deliver is 3 and should be -1") {
		t.Errorf("lane: %+v", low)
	}
	for _, s := range d.Streams {
		switch s.Name {
		case handoffjs.TimerStream:
			if !s.Missing {
				t.Errorf("stream: %+v", s)
			}
		case handoffjs.LedgerStream:
			if len(s.Weaker) != 2 || !strings.Contains(strings.Join(s.Weaker, ", "), "allow_atomic is") || s.BytesMax != 1<<30 || !s.Drops {
				t.Errorf("stream: %+v", s)
			}
		}
	}
}

// TestDiagnoseWithoutJetStream: what cannot be asked is said, and nothing waits
// for it.
func TestDiagnoseWithoutJetStream(t *testing.T) {
	t.Parallel()
	n := startNode(t, embedded.Config{})
	nc, err := nats.Connect(n.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	d := diagnose(t, nc) // no streams yet
	for _, s := range d.Streams {
		if !s.Missing {
			t.Errorf("stream: %+v", s)
		}
	}
	if err := d.Unanswered["clock"]; err == nil {
		t.Error("the clock was told by a ledger that is not there")
	}
	nc.Close()
	if d := diagnose(t, nc); !errors.Is(d.Unanswered["account"], nats.ErrConnectionClosed) {
		t.Errorf("over a closed connection: %+v", d.Unanswered)
	}
}

func diagnose(t *testing.T, nc *nats.Conn) handoffjs.Diagnosis {
	t.Helper()
	d, err := handoffjs.Diagnose(t.Context(), nc)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func consumerOf(t *testing.T, d handoffjs.Diagnosis, stream, name string) handoffjs.ConsumerFacts {
	t.Helper()
	for _, c := range d.Consumers {
		if c.Stream == stream && c.Name == name {
			return c
		}
	}
	t.Fatalf("nothing is known of consumer %s of %s", name, stream)
	panic("unreachable")
}
