package brokertest

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// One test for each habit of the engine that package jetstream builds on. Where
// one fails after an upgrade, the engine has changed its mind, and the place
// that builds on it has to be thought over.

func newKit(t *testing.T, e broker.Engine) *kit {
	ctx, cancel := context.WithTimeout(t.Context(), 3*waitTimeout)
	t.Cleanup(cancel)
	return &kit{T: t, Engine: e, ctx: ctx}
}

// newSingleNodeKit returns a kit on a node of its own, and a view beside it.
func newSingleNodeKit(t *testing.T, cfg embedded.Config) (*kit, *embedded.Node, jetstream.JetStream) {
	t.Parallel()
	n := startNode(t, cfg)
	ensure(t, n.ClientURL(), handoffjs.Topology{AsyncWork: true})
	return newKit(t, dial(t, n.ClientURL())), n, jsAt(t, n.ClientURL())
}

func (k *kit) stream(js jetstream.JetStream, name string) *jetstream.StreamInfo {
	k.Helper()
	s, err := js.Stream(k.ctx, name)
	k.must(err)
	return s.CachedInfo()
}

// An acknowledgement names a stream, a consumer and a sequence, and nothing
// that tells one stream of that name from the next.
func TestTrapOldAckHitsReusedSequence(t *testing.T) {
	k, _, js := newSingleNodeKit(t, embedded.Config{})
	make := func(first uint64) jetstream.Consumer {
		_, err := js.CreateStream(k.ctx, jetstream.StreamConfig{Name: "TRAP", Subjects: []string{"trap"},
			Retention: jetstream.WorkQueuePolicy, FirstSeq: first})
		k.must(err)
		c, err := js.CreateConsumer(k.ctx, "TRAP", jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy})
		k.must(err)
		_, err = js.Publish(k.ctx, "trap", nil)
		k.must(err)
		return c
	}
	next := func(c jetstream.Consumer) jetstream.Msg {
		m, err := c.Next()
		k.must(err)
		return m
	}
	for _, test := range []struct {
		name   string
		first  uint64
		stands uint64
	}{{"sequences reused", 0, 0}, {"sequences that only grow", uint64(time.Now().UnixMicro()), 1}} {
		old := next(make(0))
		k.must(js.DeleteStream(k.ctx, "TRAP"))
		next(make(test.first)) // of another holder, in work
		// The old holder says it is done; no answer is the expected one where
		// it hits nothing.
		_ = old.DoubleAck(k.ctx)
		if n := k.stream(js, "TRAP").State.Msgs; n != test.stands {
			k.Errorf("%s: %d messages stand, want %d", test.name, n, test.stands)
		}
		k.must(js.DeleteStream(k.ctx, "TRAP"))
	}
}

// The fence of a work-queue offer is that its subject has no message; the
// engine forgets the subject with the message, at once.
func TestTrapOfferMayBePutAgainAtOnce(t *testing.T) {
	k, _, js := newSingleNodeKit(t, embedded.Config{})
	agent := k.agentWithQueue()
	key := k.offer(agent, protocol.Normal)
	for range 20 {
		k.must(k.pull(agent, 1)[0].Remove())
		k.until("the removal", func() bool { return k.stream(js, handoffjs.WorkStream).State.Msgs == 1 }) // the sentinel
		k.must(k.PutOffer(k.ctx, key, nil))
		if n := k.stream(js, handoffjs.WorkStream).State.Msgs; n != 2 {
			k.Fatal("the offer was swallowed as a duplicate")
		}
	}
}

// The schedule's instant is kept to the nanosecond, and the wake-up goes where
// the header says, having lost what was expected of it.
func TestTrapScheduleHeader(t *testing.T) {
	k, _, js := newSingleNodeKit(t, embedded.Config{})
	ticket := protocol.NewTicket()
	at := time.Now().UTC().Add(700 * time.Millisecond)
	k.must(k.Arm(k.ctx, ticket, 5, at))
	s, err := js.Stream(k.ctx, handoffjs.TimerStream)
	k.must(err)
	m, err := s.GetLastMsgForSubject(k.ctx, "handoff.timer."+ticket+".5")
	k.must(err)
	if got, want := m.Header.Get("Nats-Schedule"), "@at "+at.Format(time.RFC3339Nano); got != want {
		k.Errorf("schedule %q, want %q", got, want)
	}
	var fired *jetstream.RawStreamMsg
	k.until("the wake-up", func() bool {
		fired, err = s.GetLastMsgForSubject(k.ctx, "handoff.due."+ticket+".5")
		return err == nil
	})
	if fired.Time.Before(at) {
		k.Errorf("fired %v early", at.Sub(fired.Time))
	}
	if by := fired.Header.Get("Nats-Scheduler"); by != "handoff.timer."+ticket+".5" {
		k.Errorf("fired by %q", by)
	}
	_, err = s.GetLastMsgForSubject(k.ctx, "handoff.timer."+ticket+".5")
	k.wantErr(err, jetstream.ErrMsgNotFound) // the schedule is gone once it fired
}

// A message's own time to live works by publishing to the bucket's subject, is
// renewed by publishing again, and leaves a marker that watchers see.
func TestTrapPresenceByHeader(t *testing.T) {
	k, _, js := newSingleNodeKit(t, embedded.Config{})
	h := k.holder(k.agent())
	h.LeaseMS = 1000
	k.must(k.Beat(k.ctx, h))
	h.LeaseMS = 3000
	k.must(k.Beat(k.ctx, h)) // renewed, longer
	s, err := js.Stream(k.ctx, "KV_"+handoffjs.HolderBucket)
	k.must(err)
	m, err := s.GetLastMsgForSubject(k.ctx, "$KV."+handoffjs.HolderBucket+".holder."+h.ID)
	k.must(err)
	if ttl := m.Header.Get("Nats-TTL"); ttl != "3s" {
		k.Errorf("time to live %q, want 3s", ttl)
	}
	born := m.Time
	var marker *jetstream.RawStreamMsg
	k.until("the marker", func() bool {
		marker, err = s.GetLastMsgForSubject(k.ctx, "$KV."+handoffjs.HolderBucket+".holder."+h.ID)
		return err == nil && marker.Header.Get("Nats-Marker-Reason") == "MaxAge"
	})
	if lived := marker.Time.Sub(born); lived < 3*time.Second {
		k.Errorf("lived %v, want 3 s", lived)
	}
}

// A single node forgets the queue's consumers when it restarts, and keeps the
// offers: a pull makes the consumers again.
func TestTrapMemoryConsumersAreForgotten(t *testing.T) {
	dir := t.TempDir()
	k, n, _ := newSingleNodeKit(t, embedded.Config{Dir: dir, Port: freePort(t)})
	agent := k.agentWithQueue()
	key := k.offer(agent, protocol.Normal)
	port := portOf(t, n)
	k.must(n.Stop())
	n = startNode(t, embedded.Config{Dir: dir, Port: port})
	_, err := jsAt(t, n.ClientURL()).Consumer(k.ctx, handoffjs.WorkStream, agent+"-normal")
	k.wantErr(err, jetstream.ErrConsumerNotFound)
	k.until("the offer, with no EnsureQueue", func() bool {
		got, err := k.Pull(k.ctx, agent, 1, 5*time.Second)
		if err != nil {
			k.wantErr(err, broker.ErrUnreachable)
			return false
		}
		return len(got) == 1 && got[0].Key() == key
	})
}

// The ledger refuses every deletion.
func TestTrapLedgerKeeps(t *testing.T) {
	k, _, js := newSingleNodeKit(t, embedded.Config{})
	ticket := protocol.NewTicket()
	seq := k.append(ticket, 0, "one")
	s, err := js.Stream(k.ctx, handoffjs.LedgerStream)
	k.must(err)
	if s.Purge(k.ctx) == nil || s.DeleteMsg(k.ctx, seq) == nil {
		k.Error("an entry could be removed")
	}
	msg := nats.NewMsg("handoff.ledger." + ticket)
	msg.Header.Set("Nats-Rollup", "all")
	if _, err := js.PublishMsg(k.ctx, msg); err == nil {
		k.Error("a rollup was taken")
	}
	cfg := s.CachedInfo().Config
	cfg.DenyPurge = false
	if _, err := js.UpdateStream(k.ctx, cfg); err == nil {
		k.Error("the ledger could be opened for purges")
	}
	_, err = k.Last(k.ctx, ticket, seq)
	k.must(err)
}

// An offer for an abandoned pull is released at once: other workers must not wait for the ack wait,
// which is long here.
func TestAbandonedPullsRelease(t *testing.T) {
	t.Parallel()
	n := startNode(t, embedded.Config{})
	ensure(t, n.ClientURL(), handoffjs.Topology{AsyncWork: true})
	long := func() *handoffjs.Engine {
		e, err := handoffjs.Dial(t.Context(), handoffjs.DialConfig{URL: n.ClientURL()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		return e
	}
	k, other := newKit(t, long()), long()
	agent := k.agentWithQueue()
	for range 5 {
		for _, lane := range protocol.Priorities { // so that one offer is served by one request, the rest stand
			k.offer(agent, lane)
		}
		first, err := other.Pull(k.ctx, agent, 1, waitTimeout)
		k.must(err)
		if len(first) != 1 {
			k.Fatal("no offer")
		}
		k.must(first[0].Remove())
		for _, d := range k.pull(agent, 3) {
			k.must(d.Remove())
		}
		ctx, cancel := context.WithTimeout(k.ctx, 20*time.Millisecond)
		if got, err := other.Pull(ctx, agent, 4, time.Hour); err == nil {
			k.Errorf("got %d offers from an empty queue", len(got))
		}
		cancel() // its requests stand at the engine for 5 s
	}
	// Followers likewise: one that ends at its first entry leaves the rest.
	set, mu, is := ticketSet()
	f, stop := k.follow(is, func(uint64, int) bool { return true })
	k.awaitFollowing(set, mu, f)
	k.wantErr(stop(), context.Canceled)
	ticket := protocol.NewTicket()
	var head uint64
	for range 50 {
		head = k.append(ticket, head, "x")
	}
	ctx, cancel := context.WithCancel(k.ctx)
	defer cancel()
	err := other.Follow(ctx, func(broker.Entry, func()) { cancel() })
	k.wantErr(err, context.Canceled)
	mu.Lock()
	set[ticket] = true
	mu.Unlock()
	f, _ = k.follow(is, func(uint64, int) bool { return true })
	k.until("the entries that were released", func() bool { return f.count() >= 48 })
}
