package brokertest

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// countRequests counts what is asked of the agent's queue from now on. asked
// returns the count once all that was sent before has been counted.
func (k *kit) countRequests(e *jetstream.Engine, n *embedded.Node, agent string) (asked func() int64) {
	k.Helper()
	nc, err := n.Conn()
	k.must(err)
	k.Cleanup(nc.Close)
	var count atomic.Int64
	for _, lane := range protocol.Priorities {
		subject := "$JS.API.CONSUMER.MSG.NEXT." + jetstream.WorkStream + "." + agent + "-" + string(lane)
		_, err = nc.Subscribe(subject, func(*nats.Msg) { count.Add(1) })
		k.must(err)
	}
	marks := make(chan struct{}, 1)
	_, err = nc.Subscribe("marks."+agent, func(*nats.Msg) { marks <- struct{}{} })
	k.must(err)
	k.must(nc.Flush())
	return func() int64 {
		k.Helper()
		k.must(e.Conn().Publish("marks."+agent, nil)) // after the requests, over the same connection
		receive(k, "the mark", marks)
		return count.Load()
	}
}

// Turns of empty lanes cost no requests: a process that always finds offers in one lane polls the
// others only every few seconds.
func TestTurnsCostNoRequests(t *testing.T) {
	const offers, reads = 480, 6 * 6 // a sweep and a standing request at three lanes, for 30 s
	k, n, _ := newSingleNodeKit(t, embedded.Config{Fsync: embedded.FsyncInterval})
	e := k.Engine.(*jetstream.Engine)
	for above, lane := range protocol.Priorities {
		for _, most := range []int{1, 16} {
			k := newKit(t, e)
			agent, ticket := k.agentWithQueue(), protocol.NewTicket()
			for i := range uint64(offers) {
				k.must(k.PutOffer(k.ctx, broker.OfferKey{Agent: agent, Lane: lane, Ticket: ticket, Sequence: i}, nil))
			}
			asked := k.countRequests(e, n, agent)
			for range offers / most {
				for _, d := range k.pull(agent, most) {
					k.must(d.Remove())
				}
			}
			without := int64(offers / most * (above + 1)) // each pull asks the more urgent lanes first
			if got := asked(); got > without+reads {
				k.Errorf("%s, %d at a time: %d requests for %d offers, want no more than %d and a few", lane, most, got, offers, without)
			}
		}
	}
}

// standing is how long a request of a pull stands.
const standing = 5 * time.Second

// A pull at an empty queue asks each lane once, and leaves a pending request at each.
func TestWaitingCostsEightRequests(t *testing.T) {
	k, n, _ := newSingleNodeKit(t, embedded.Config{Fsync: embedded.FsyncInterval})
	e := k.Engine.(*jetstream.Engine)
	for _, taken := range []int{0, broker.TurnEvery - 1} {
		agent := k.agentWithQueue()
		for range taken {
			k.offer(agent, protocol.Critical)
		}
		for _, d := range k.pull(agent, taken) {
			k.must(d.Remove())
		}
		asked := k.countRequests(e, n, agent)
		began := time.Now()
		pulled := make(chan []broker.Delivery, 1)
		go func() {
			got, _ := k.Pull(k.ctx, agent, 1, time.Minute) // what it got tells of an error, too
			pulled <- got
		}()
		k.until("the standing requests", func() bool { return asked() >= 8 })
		k.offer(agent, protocol.Low) // which ends the wait: what is asked up to then counts
		got, requests := receive(k, "the offer", pulled), asked()
		most := 8 * (1 + int64(time.Since(began)/standing)) // on a machine that stalls they have to be renewed
		if len(got) != 1 || requests < 8 || requests > most {
			k.Errorf("after %d offers, %d offers for %d requests, want one for 8 (%d at most)", taken, len(got), requests, most)
		}
	}
}

// A process with room to spare asks once for every few offers that come one by
// one, and one with a single slot once for each.
func TestFewRequestsForWhatComesSingly(t *testing.T) {
	const offers = 64
	k, n, _ := newSingleNodeKit(t, embedded.Config{Fsync: embedded.FsyncInterval})
	e := k.Engine.(*jetstream.Engine)
	for most, want := range map[int]int64{1: offers, 8: offers / 8, 64: offers / 8} {
		agent := k.agentWithQueue()
		pulled := make(chan broker.Delivery)
		ended := make(chan struct{})
		ctx, stop := context.WithCancel(k.ctx)
		go func() {
			defer close(ended)
			for ctx.Err() == nil {
				got, _ := k.Pull(ctx, agent, most, time.Minute) // what it got tells of an error, too
				for _, d := range got {
					pulled <- d
				}
			}
		}()
		asked := k.countRequests(e, n, agent)
		for range offers {
			k.offer(agent, protocol.Normal)
			k.must(receive(k, "the offer", pulled).Remove())
		}
		const first, renewed = 8, 4 * 6 // sweeps and standing requests; those of 30 s
		if got := asked(); got > want+first+renewed {
			k.Errorf("%d slots: %d requests for %d offers, want %d and a few", most, got, offers, want)
		}
		stop()
		<-ended
	}
}
