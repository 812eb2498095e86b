package brokertest

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/internal/embedded"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// Among many consumers offers are removed by their sequence, which must do all
// that an acknowledgement does: the offer does not come again, and counts no more.
func TestRemovalAmongMany(t *testing.T) {
	const agents, offers = 26, 20
	k, n, js := newSingleNodeKit(t, embedded.Config{Fsync: embedded.FsyncInterval})
	nc, err := n.Conn()
	k.must(err)
	k.Cleanup(nc.Close)
	var bySequence atomic.Int64
	_, err = nc.Subscribe("$JS.API.STREAM.MSG.DELETE."+handoffjs.WorkStream, func(*nats.Msg) { bySequence.Add(1) })
	k.must(err)
	k.must(nc.Flush())
	agent := k.agentWithQueue()
	for range agents - 1 {
		k.agentWithQueue()
	}
	k.Reconnected(k.ctx) // it begins to look how the streams stand, as a worker has it do
	k.until("the question whether it may remove by sequence", func() bool { return bySequence.Load() == 1 })
	taken := map[string]bool{}
	k.until("removals by sequence", func() bool {
		for range offers {
			k.offer(agent, protocol.Normal)
		}
		for _, d := range k.pull(agent, offers) {
			if taken[d.Key().Ticket] {
				k.Errorf("%s came again", d.Key().Ticket)
			}
			taken[d.Key().Ticket] = true
			k.must(d.Remove())
			k.must(d.Remove()) // once more is harmless
		}
		return bySequence.Load() > offers
	})
	consumer, err := js.Consumer(k.ctx, handoffjs.WorkStream, agent+"-normal")
	k.must(err)
	k.until("the consumer has nothing in hands", func() bool {
		info, err := consumer.Info(k.ctx)
		k.must(err)
		return info.NumAckPending == 0 && info.NumPending == 0
	})
	k.awaitDepth(agent, 0)
	got, err := k.Pull(k.ctx, agent, 1, AckWait*3/2)
	k.must(err)
	if len(got) > 0 {
		k.Error("an offer came again")
	}
}

// The engine that has no room for a queue says so, and has made no part of it.
func TestNoRoomForAQueue(t *testing.T) {
	t.Parallel()
	n := startNode(t, embedded.Config{Fsync: embedded.FsyncInterval})
	js := jsAt(t, n.ClientURL())
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: handoffjs.WorkStream, Subjects: []string{"handoff.work.>"},
		Retention: jetstream.WorkQueuePolicy, FirstSeq: uint64(time.Now().UnixMicro()), MaxConsumers: 10, AllowDirect: true})
	if err != nil {
		t.Fatal(err)
	}
	ensure(t, n.ClientURL(), handoffjs.Topology{})
	k := newKit(t, dial(t, n.ClientURL()))
	first, second := k.agentWithQueue(), k.agentWithQueue()
	for range 3 {
		err := k.EnsureQueue(k.ctx, "third")
		var refused *protocol.Error
		if !errors.As(err, &refused) || refused.Code != protocol.CodeTooLarge || !strings.Contains(err.Error(), "nats consumer rm") {
			k.Fatalf("a queue too many: %v", err)
		}
		if got := k.stream(js, handoffjs.WorkStream).State.Consumers; got != 8 {
			k.Fatalf("%d consumers are there, want those of two queues", got)
		}
	}
	for _, agent := range []string{first, second} { // which are none the worse
		k.must(k.EnsureQueue(k.ctx, agent))
		k.offer(agent, protocol.High)
		k.takeOne(agent)
	}
}
