package brokertest

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// After a crash a node empties its outbox streams, moves their sequences on and has
// them put back, all before anybody else is served. What a surviving worker
// acknowledges from before then hits nothing.
func TestUncleanStart(t *testing.T) {
	dir := t.TempDir()
	k, n, js := newSingleNodeKit(t, embedded.Config{Dir: dir, Port: freePort(t)})
	if n.Unclean() {
		t.Error("the first start counts as unclean")
	}
	agent, port := k.agentWithQueue(), portOf(t, n)
	keys := []broker.OfferKey{k.offer(agent, protocol.Normal), k.offer(agent, protocol.High)}
	old := k.pull(agent, 2)
	k.must(k.Arm(k.ctx, protocol.NewTicket(), 1, time.Now().Add(time.Hour)))
	ticket := protocol.NewTicket()
	dues := k.dueWakeUps(ticket)
	k.must(k.Arm(k.ctx, ticket, 1, time.Now()))
	receive(k, "a wake-up before the crash", dues).done()
	before := k.stream(js, jetstream.WorkStream).State
	timers := k.stream(js, jetstream.TimerStream).State
	k.must(n.Kill())

	refilled := false
	n = startNode(t, embedded.Config{Dir: dir, Port: port, Prepare: func(ctx context.Context, nc *nats.Conn, unclean bool) error {
		refilled = unclean
		if c, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), time.Second); err == nil {
			_ = c.Close()
			t.Error("others are served before the queue is filled")
		}
		e, err := jetstream.Open(k.ctx, nc, jetstream.Config{AckWait: AckWait})
		if err != nil {
			return err
		}
		defer func() { _ = e.Close() }()
		if n, err := e.QueueDepth(ctx, agent); err != nil || n != 0 {
			t.Errorf("depth %d, %v before the refill", n, err)
		}
		for _, key := range keys {
			if err := e.PutOffer(ctx, key, []byte("again")); err != nil {
				return err
			}
		}
		return nil
	}})
	if !refilled || !n.Unclean() {
		t.Fatalf("refilled %v, unclean %v", refilled, n.Unclean())
	}
	const push = 1_000_000
	js = jsAt(t, n.ClientURL()) // the other one may still be coming back
	if now := k.stream(js, jetstream.WorkStream).State; now.FirstSeq < before.LastSeq+push || now.Msgs != 3 {
		t.Errorf("work begins at %d with %d messages; it ended at %d", now.FirstSeq, now.Msgs, before.LastSeq)
	}
	if now := k.stream(js, jetstream.TimerStream).State; now.FirstSeq < timers.LastSeq+push || now.Msgs != 0 {
		t.Errorf("timers begin at %d with %d messages; they ended at %d", now.FirstSeq, now.Msgs, timers.LastSeq)
	}
	got := k.pullThroughOutage(agent, 2) // the consumers exist again, and have the new offers in hand
	for _, d := range old {
		k.must(d.Remove())
	}
	if n, err := k.QueueDepth(k.ctx, agent); err != nil || n != 2 {
		t.Errorf("depth %d, %v after old acknowledgements, want 2", n, err)
	}
	for _, d := range got {
		if string(d.Body()) != "again" {
			t.Errorf("an offer from before the crash: %q", d.Body())
		}
	}
	k.must(k.Arm(k.ctx, ticket, 2, time.Now())) // through a consumer that is older than the sequences
	if w := receive(k, "a wake-up after it", dues); w.seq != 2 {
		t.Errorf("%d fired", w.seq)
	}
	k.must(n.Stop())
	clean := startNode(t, embedded.Config{Dir: dir, Port: port})
	if clean.Unclean() {
		t.Error("a clean stop counts as unclean")
	}
}

// pullThroughOutage pulls through an outage.
func (k *kit) pullThroughOutage(agent string, n int) (all []broker.Delivery) {
	k.Helper()
	k.until("the offers", func() bool {
		got, err := k.Pull(k.ctx, agent, n-len(all), time.Second)
		if err != nil && !errors.Is(err, broker.ErrUnreachable) {
			k.Fatal(err)
		}
		all = append(all, got...)
		return len(all) == n
	})
	return all
}

// A crash before the streams were made leaves nothing to put back, and nothing
// in the way of making them.
func TestUncleanStartOfAnEmptyNode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := startNode(t, embedded.Config{Dir: dir}).Kill(); err != nil {
		t.Fatal(err)
	}
	n := startNode(t, embedded.Config{Dir: dir, Prepare: makeStreams})
	if !n.Unclean() {
		t.Error("the crash was not noticed")
	}
}

func makeStreams(ctx context.Context, nc *nats.Conn, _ bool) error {
	return jetstream.EnsureTopology(ctx, nc, jetstream.Topology{})
}

// A start that fails before anybody is served is no crash.
func TestFailedStartIsNoCrash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	refuse := func(context.Context, *nats.Conn, bool) error { return errors.New("no") }
	if _, err := embedded.Start(t.Context(), embedded.Config{Dir: dir, Prepare: refuse}); err == nil {
		t.Fatal("the node started")
	}
	if startNode(t, embedded.Config{Dir: dir}).Unclean() {
		t.Error("the next start counts as unclean")
	}
}

func TestDirectoryOfANodeIsItsOwn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startNode(t, embedded.Config{Dir: dir})
	_, err := embedded.Start(t.Context(), embedded.Config{Dir: dir})
	if !errors.Is(err, embedded.ErrInUse) || !strings.Contains(err.Error(), dir) {
		t.Errorf("the error does not say who has which directory: %v", err)
	}
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	startNode(t, embedded.Config{Dir: dir})
}

func TestPortInUse(t *testing.T) {
	t.Parallel()
	n := startNode(t, embedded.Config{})
	dir := t.TempDir()
	_, err := embedded.Start(t.Context(), embedded.Config{Dir: dir, Port: portOf(t, n)})
	if err == nil || !strings.Contains(err.Error(), strconv.Itoa(portOf(t, n))) {
		t.Errorf("the error does not name the port: %v", err)
	}
	startNode(t, embedded.Config{Dir: dir}) // the failed start left the directory free
}

func TestPurelyEmbedded(t *testing.T) {
	t.Parallel()
	n := startNode(t, embedded.Config{DontListen: true, Fsync: embedded.FsyncInterval})
	if n.ClientURL() != "" {
		t.Errorf("it listens at %s", n.ClientURL())
	}
	nc, err := n.Conn()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.FlushTimeout(waitTimeout); err != nil {
		t.Fatal(err)
	}
	if _, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir(), Fsync: "sometimes"}); err == nil {
		t.Error("an unknown fsync was taken")
	}
}
