package brokertest

import (
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// TestKeepOffers: an offer whose delivery is lost comes again after the longest lease of those who
// serve the queue, 2 s to 30 s; a shorter lease counts once no worker is there.
func TestKeepOffers(t *testing.T) {
	t.Parallel()
	n := startNode(t, embedded.Config{})
	ensure(t, n.ClientURL(), jetstream.Topology{})
	open := func() *kit {
		engine, err := jetstream.Dial(t.Context(), jetstream.DialConfig{URL: n.ClientURL()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = engine.Close() })
		return newKit(t, engine)
	}
	k, other := open(), open()
	js := jsAt(t, n.ClientURL())
	agent := k.agentWithQueue()
	want := func(wait time.Duration) {
		t.Helper()
		for _, lane := range protocol.Priorities {
			consumer, err := js.Consumer(k.ctx, jetstream.WorkStream, agent+"-"+string(lane))
			k.must(err)
			if got := consumer.CachedInfo().Config.AckWait; got != wait {
				t.Errorf("lane %s keeps an offer for %v, want %v", lane, got, wait)
			}
		}
	}
	want(broker.AckWait)
	k.must(k.KeepOffers(k.ctx, agent, time.Second))
	want(broker.AckWaitMin)
	key := k.offer(agent, protocol.Normal)
	k.pull(agent, 1) // and nothing is heard of it
	k.must(other.KeepOffers(k.ctx, agent, time.Second))
	if got := other.pull(agent, 1)[0].Key(); got != key {
		t.Errorf("got %v, want %v", got, key)
	}
	k.must(other.KeepOffers(k.ctx, agent, time.Hour))
	want(broker.AckWait)
	k.must(k.KeepOffers(k.ctx, agent, 5*time.Second)) // the other has an offer
	want(broker.AckWait)
	k.must(js.DeleteConsumer(k.ctx, jetstream.WorkStream, agent+"-normal"))
	k.must(k.EnsureQueue(k.ctx, agent)) // as this process was asked to keep them
	consumer, err := js.Consumer(k.ctx, jetstream.WorkStream, agent+"-normal")
	k.must(err)
	if got := consumer.CachedInfo().Config.AckWait; got != 5*time.Second {
		t.Errorf("made again, the lane keeps an offer for %v", got)
	}
}
