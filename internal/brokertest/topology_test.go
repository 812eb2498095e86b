package brokertest

import (
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/internal/embedded"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

func TestTopologyTwiceAtOnce(t *testing.T) {
	t.Parallel()
	n := startNode(t, embedded.Config{})
	js, k := jsAt(t, n.ClientURL()), newKit(t, nil)
	all, err := handoffjs.ShowTopology(k.ctx, js)
	k.must(err)
	for _, s := range all {
		if !s.Missing {
			t.Errorf("%s stands before it was made", s.Name)
		}
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := handoffjs.EnsureTopology(k.ctx, js.Conn(), handoffjs.Topology{AsyncWork: true}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	all, err = handoffjs.ShowTopology(k.ctx, js)
	k.must(err)
	async := map[string]bool{handoffjs.WorkStream: true, handoffjs.TimerStream: true, "KV_" + handoffjs.HolderBucket: true}
	for _, s := range all {
		if s.Missing || s.Replicas != 1 || (s.Persist == "async") != async[s.Name] {
			t.Errorf("%+v", s)
		}
	}
	if len(all) != 8 {
		t.Errorf("%d streams, want 8", len(all))
	}
	work := k.stream(js, handoffjs.WorkStream)
	if work.State.Msgs != 1 || work.State.FirstSeq < uint64(time.Now().Add(-time.Hour).UnixMicro()) || work.Config.MaxConsumers <= 1000 {
		t.Errorf("work begins at %d with %d messages, %d consumers at most", work.State.FirstSeq, work.State.Msgs, work.Config.MaxConsumers)
	}
	ledger := k.stream(js, handoffjs.LedgerStream).Config
	if !ledger.DenyDelete || !ledger.DenyPurge || ledger.AllowRollup || ledger.AllowMsgSchedules || ledger.Duplicates > time.Second {
		t.Errorf("the ledger is %+v", ledger)
	}
}

// What an operator made stronger, or set beside, stays.
func TestTopologyNeverWeakens(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	js, k := jsAt(t, c.URL()), newKit(t, dial(t, c.URL()))
	ticket := protocol.NewTicket()
	seq := k.append(ticket, 0, "one")
	cfg := k.stream(js, handoffjs.LedgerStream).Config
	cfg.MaxAge *= 2
	cfg.Description = "ours"
	_, err := js.UpdateStream(k.ctx, cfg)
	k.must(err)
	k.must(handoffjs.EnsureTopology(k.ctx, js.Conn(), handoffjs.Topology{Replicas: 1, AsyncWork: true}))
	got := k.stream(js, handoffjs.LedgerStream).Config
	if got.Replicas != 3 || got.MaxAge != cfg.MaxAge || got.Description != "ours" {
		t.Errorf("the ledger has %d replicas, keeps for %v, is %q", got.Replicas, got.MaxAge, got.Description)
	}
	if work := k.stream(js, handoffjs.WorkStream).Config; work.Replicas != 3 || work.PersistMode != jetstream.DefaultPersistMode {
		t.Errorf("work has %d replicas, persists %v", work.Replicas, work.PersistMode)
	}
	e, err := k.Last(k.ctx, ticket, seq)
	k.must(err)
	if string(e.Body) != "one" {
		t.Errorf("the ledger has %q", e.Body)
	}
	// One replica grows to three.
	k.must(js.DeleteStream(k.ctx, "KV_"+handoffjs.AgentBucket))
	_, err = js.CreateKeyValue(k.ctx, jetstream.KeyValueConfig{Bucket: handoffjs.AgentBucket})
	k.must(err)
	k.must(handoffjs.EnsureTopology(k.ctx, js.Conn(), handoffjs.Topology{Replicas: 3}))
	if got := k.stream(js, "KV_"+handoffjs.AgentBucket).Config.Replicas; got != 3 {
		t.Errorf("%d replicas, want 3", got)
	}
}

func TestTopologyRefusesAnothersStream(t *testing.T) {
	t.Parallel()
	n := startNode(t, embedded.Config{})
	js, k := jsAt(t, n.ClientURL()), newKit(t, nil)
	_, err := js.CreateStream(k.ctx, jetstream.StreamConfig{Name: handoffjs.WorkStream, Subjects: []string{"theirs"}})
	k.must(err)
	if err := handoffjs.EnsureTopology(k.ctx, js.Conn(), handoffjs.Topology{}); err == nil {
		t.Error("a stream of other retention was taken for ours")
	}
	if got := k.stream(js, handoffjs.WorkStream).Config; got.Subjects[0] != "theirs" {
		t.Errorf("its subjects are %v now", got.Subjects)
	}
}

// TestSpreadLeaders: a divided ledger's leaders are spread over three servers while it is used, and stay
// when they are spread.
func TestSpreadLeaders(t *testing.T) {
	c, err := embedded.StartCluster(t.Context(), 3, t.TempDir(), embedded.FsyncInterval)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Stop() })
	const partitions = 3
	ensure(t, c.URL(), handoffjs.Topology{Replicas: 3, Partitions: partitions})
	js := jsAt(t, c.URL())
	k := newKit(t, nil)
	k.Engine = dial(t, c.URL())
	led := func() map[string]int { // streams of the ledger, of queues and of timers, by the server that leads them
		all, err := handoffjs.ShowTopology(k.ctx, js)
		k.must(err)
		leads := map[string]int{}
		for _, s := range all {
			if base := handoffjs.BaseOf(s.Name); base == handoffjs.LedgerStream || base == handoffjs.WorkStream || base == handoffjs.TimerStream {
				leads[s.Leader]++
			}
		}
		return leads
	}
	k.until("each server to lead three streams", func() bool { // a replica that is not up to date yet gets none
		before := led()
		planned, err := handoffjs.SpreadLeaders(k.ctx, js.Conn(), true)
		k.must(err)
		if now := led(); !maps.Equal(now, before) {
			return false // an election of their own
		}
		moved, err := handoffjs.SpreadLeaders(k.ctx, js.Conn(), false)
		k.must(err)
		t.Logf("leaders: %v; %d moves are planned, %d made; then: %v", before, len(planned), len(moved), led())
		k.append(protocol.NewTicket(), 0, "x")
		return maps.Equal(led(), map[string]int{"n1": 3, "n2": 3, "n3": 3})
	})
	moved, err := handoffjs.SpreadLeaders(k.ctx, js.Conn(), false)
	k.must(err)
	if len(moved) > 0 {
		t.Errorf("the leaders were spread, and moved again: %v", moved)
	}
}
