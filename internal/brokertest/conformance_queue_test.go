package brokertest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

var queueCases = []conformanceCase{
	{"ensuring a queue twice is harmless", queueTwice},
	{"offers put before the queue was made are kept", queueLater},
	{"a delivery carries key and body", deliveryWhole},
	{"the caller may use the buffer of an offer again", offerBuffer},
	{"an offer that stands is not put again, delivered or not", offerOnce},
	{"an offer that was removed may be put again", offerGhost},
	{"pull returns nothing when there is nothing", pullNothing},
	{"pull takes the most urgent lane first", pullLanes},
	{"pull takes no more than asked for", pullMost},
	{"a waiting pull wakes up", pullWakes},
	{"pulls at the same time share the offers", pullShare},
	{"queues are apart", queuesApart},
	{"what is released comes again at once", releaseAtOnce},
	{"what is neither extended nor ended comes again", redelivery},
	{"what is extended stays away", extend},
	{"what is removed never comes again", remove},
	{"an offer is removed by its name, delivered or not", removeOffer},
	{"all offers that stand are listed", offersListed},
	{"the offers that stand are read by when they were put", offersBetween},
	{"depth counts what stands, delivered or not", depth},
	{"queues tell of every lane that has any", queuesLanes},
	{"the status of queues includes agents without a pull", queuesUnpulled},
	{"the oldest offer of a lane is the oldest that stands", queuesOldest},
	{"pull ends with its context", pullContext},
}

// awaitDepth waits until the queue shows n offers: on replicas an offer may be seen
// a moment after it was put.
func (k *kit) awaitDepth(agent string, n int) {
	k.Helper()
	k.until("the depth of the queue", func() bool {
		got, err := k.QueueDepth(k.ctx, agent)
		k.must(err)
		return got == n
	})
}

func queueTwice(k *kit) {
	agent := k.agentWithQueue()
	key := k.offer(agent, protocol.Normal)
	k.must(k.EnsureQueue(k.ctx, agent))
	if got := k.pull(agent, 1); got[0].Key() != key {
		k.Errorf("got %v, want %v", got[0].Key(), key)
	}
}

func queueLater(k *kit) {
	agent := k.agent()
	key := k.offer(agent, protocol.Normal)
	k.must(k.EnsureQueue(k.ctx, agent))
	if got := k.pull(agent, 1); got[0].Key() != key {
		k.Errorf("got %v, want %v", got[0].Key(), key)
	}
}

func deliveryWhole(k *kit) {
	agent := k.agentWithQueue()
	key := k.offer(agent, protocol.High)
	d := k.pull(agent, 1)[0]
	if d.Key() != key || string(d.Body()) != "body of "+key.Ticket {
		k.Errorf("delivered %v %q", d.Key(), d.Body())
	}
}

func offerBuffer(k *kit) {
	key := broker.OfferKey{Agent: k.agentWithQueue(), Lane: protocol.Normal, Ticket: protocol.NewTicket(), Sequence: 1}
	body := []byte("kept")
	k.must(k.PutOffer(k.ctx, key, body))
	copy(body, "gone")
	if d := k.pull(key.Agent, 1)[0]; string(d.Body()) != "kept" {
		k.Errorf("stored %q", d.Body())
	}
}

func offerOnce(k *kit) {
	agent := k.agentWithQueue()
	key := k.offer(agent, protocol.Normal)
	k.must(k.PutOffer(k.ctx, key, []byte("again")))
	d := k.pull(agent, 1)[0]
	k.must(k.PutOffer(k.ctx, key, []byte("while held")))
	k.awaitDepth(agent, 1)
	k.must(d.Remove())
	k.awaitDepth(agent, 0)
	k.noDelivery(agent)
}

func offerGhost(k *kit) {
	agent := k.agentWithQueue()
	key := k.offer(agent, protocol.Normal)
	k.must(k.pull(agent, 1)[0].Remove())
	k.until("the offer being put again", func() bool { // once the removal has been done
		k.must(k.PutOffer(k.ctx, key, []byte("again")))
		n, err := k.QueueDepth(k.ctx, agent)
		k.must(err)
		return n == 1
	})
	k.until("the ghost", func() bool {
		k.must(k.PutOffer(k.ctx, key, []byte("again")))
		got, err := k.Pull(k.ctx, agent, 1, 10*time.Millisecond)
		k.must(err)
		return len(got) == 1 && string(got[0].Body()) == "again"
	})
}

func pullNothing(k *kit) {
	agent := k.agentWithQueue()
	for _, wait := range []time.Duration{0, 10 * time.Millisecond} {
		got, err := k.Pull(k.ctx, agent, 4, wait)
		k.must(err)
		if len(got) != 0 {
			k.Errorf("got %v", got[0].Key())
		}
	}
	k.offer(agent, protocol.Normal)
	got, err := k.Pull(k.ctx, agent, 0, time.Hour) // no slot, no offer, no wait
	k.must(err)
	if len(got) != 0 {
		k.Error("got an offer for no slot")
	}
	k.pull(agent, 1)
}

func pullLanes(k *kit) {
	agent := k.agentWithQueue()
	var want []broker.OfferKey
	for _, lane := range []protocol.Priority{protocol.Low, protocol.Normal, protocol.High, protocol.Critical} {
		a, b := k.offer(agent, lane), k.offer(agent, lane)
		want = append([]broker.OfferKey{a, b}, want...)
	}
	k.awaitDepth(agent, len(want))
	for len(want) > 0 {
		most := min(3, len(want))
		got := k.pull(agent, most)
		for i, d := range got {
			if d.Key() != want[i] {
				k.Fatalf("got %v, want %v", d.Key(), want[i])
			}
			k.must(d.Remove())
		}
		want = want[most:]
	}
}

func pullMost(k *kit) {
	agent := k.agentWithQueue()
	for range 10 {
		k.offer(agent, protocol.Normal)
	}
	got, err := k.Pull(k.ctx, agent, 4, waitTimeout)
	k.must(err)
	if len(got) == 0 || len(got) > 4 {
		k.Errorf("%d offers, asked for 4", len(got))
	}
	k.pull(agent, 10-len(got))
	k.noDelivery(agent)
}

func pullWakes(k *kit) {
	agent := k.agentWithQueue()
	got := make(chan broker.Delivery, 1)
	go func() { got <- k.pull(agent, 1)[0] }()
	k.noDelivery(agent) // by then the other waits, or soon will
	key := k.offer(agent, protocol.Low)
	if d := receive(k, "the offer", got); d.Key() != key {
		k.Errorf("got %v, want %v", d.Key(), key)
	}
}

func pullShare(k *kit) {
	const offers, pullers = 40, 4
	agent := k.agentWithQueue()
	var mu sync.Mutex
	seen := map[broker.OfferKey]int{}
	var wg sync.WaitGroup
	all := make(chan struct{})
	for range pullers {
		wg.Go(func() {
			for {
				got, err := k.Pull(k.ctx, agent, 3, 100*time.Millisecond)
				if err != nil {
					k.Error(err)
					return
				}
				mu.Lock()
				for _, d := range got {
					seen[d.Key()]++
					if err := d.Remove(); err != nil {
						k.Error(err)
					}
				}
				if len(seen) == offers {
					select {
					case <-all:
					default:
						close(all)
					}
				}
				mu.Unlock()
				select {
				case <-all:
					return
				case <-k.ctx.Done():
					return
				default:
				}
			}
		})
	}
	for i := range offers {
		k.offer(agent, protocol.Priorities[i%len(protocol.Priorities)])
	}
	receive(k, "all offers", all)
	wg.Wait()
	for key, n := range seen {
		if n != 1 {
			k.Errorf("%v came %d times", key, n)
		}
	}
}

func queuesApart(k *kit) {
	a, b := k.agentWithQueue(), k.agentWithQueue()
	key := k.offer(a, protocol.Normal)
	k.noDelivery(b)
	if got := k.pull(a, 1)[0].Key(); got != key {
		k.Errorf("got %v, want %v", got, key)
	}
}

func releaseAtOnce(k *kit) {
	agent := k.agentWithQueue()
	key := k.offer(agent, protocol.Normal)
	for range 5 {
		d := k.pull(agent, 1)[0]
		if d.Key() != key {
			k.Fatalf("got %v, want %v", d.Key(), key)
		}
		k.must(d.Release())
	}
}

func redelivery(k *kit) {
	agent := k.agentWithQueue()
	key := k.offer(agent, protocol.Normal)
	k.pull(agent, 1)
	k.noDelivery(agent)
	if got := k.pull(agent, 1)[0].Key(); got != key {
		k.Errorf("got %v, want %v", got, key)
	}
}

func extend(k *kit) {
	agent := k.agentWithQueue()
	key := k.offer(agent, protocol.Normal)
	tick := time.NewTicker(AckWait / 5)
	defer tick.Stop()
	d := k.pull(agent, 1)[0]
	extended := time.Now()
	for end := extended.Add(AckWait * 2); time.Now().Before(end); {
		<-tick.C
		k.must(d.Extend())
		late := time.Since(extended) > AckWait/2
		extended = time.Now()
		got, err := k.Pull(k.ctx, agent, 1, 0)
		k.must(err)
		switch {
		case len(got) == 0:
		case late: // the machine was too busy to extend in time: begin anew
			d, end = got[0], time.Now().Add(AckWait*2)
		default:
			k.Fatal("it came again while it was extended")
		}
	}
	if got := k.pull(agent, 1)[0].Key(); got != key {
		k.Errorf("got %v, want %v", got, key)
	}
}

func remove(k *kit) {
	agent := k.agentWithQueue()
	k.offer(agent, protocol.Normal)
	d := k.pull(agent, 1)[0]
	k.must(d.Remove())
	k.must(d.Remove()) // once more is harmless
	got, err := k.Pull(k.ctx, agent, 1, AckWait*3/2)
	k.must(err)
	if len(got) > 0 {
		k.Error("it came again")
	}
}

func depth(k *kit) {
	agent := k.agent()
	check := func(want int) { k.Helper(); k.awaitDepth(agent, want) }
	check(0)
	for _, lane := range protocol.Priorities {
		k.offer(agent, lane)
	}
	check(4) // of a queue without a pull
	k.must(k.EnsureQueue(k.ctx, agent))
	check(4)
	got := k.pull(agent, 2)
	check(4)
	k.must(got[0].Remove())
	check(3)
	k.must(got[1].Release())
	check(3)
}

func removeOffer(k *kit) {
	agent := k.agentWithQueue()
	waits, held, stays := k.offer(agent, protocol.Low), k.offer(agent, protocol.Critical), k.offer(agent, protocol.Low)
	k.awaitDepth(agent, 3)
	d := k.pull(agent, 1)[0]
	if d.Key() != held {
		k.Fatalf("pulled %v, want %v", d.Key(), held)
	}
	for _, key := range []broker.OfferKey{waits, held, waits, {Agent: agent, Lane: protocol.Low, Ticket: protocol.NewTicket(), Sequence: 7}} {
		k.must(k.RemoveOffer(k.ctx, key))
	}
	k.awaitDepth(agent, 1)
	k.must(d.Extend()) // whose holder has yet to hear of it
	k.must(d.Remove())
	k.awaitQueueStatus(agent, broker.QueueStatus{Lane: protocol.Low, Depth: 1})
	if got := k.pull(agent, 1)[0]; got.Key() != stays {
		k.Errorf("got %v, want %v", got.Key(), stays)
	}
	k.noDelivery(agent)
}

func offersListed(k *kit) {
	agent, other := k.agentWithQueue(), k.agent() // which has no consumer
	want := map[broker.OfferKey]bool{k.offer(agent, protocol.Low): true, k.offer(agent, protocol.High): true, k.offer(other, protocol.Normal): true}
	k.pull(agent, 1)
	got := map[broker.OfferKey]bool{}
	k.must(k.Offers(k.ctx, "", func(key broker.OfferKey) error {
		if key.Agent == agent || key.Agent == other {
			got[key] = true
		}
		return nil
	}))
	if !maps.Equal(got, want) {
		k.Errorf("listed %v, want %v", got, want)
	}
	clear(got)
	k.must(k.Offers(k.ctx, agent, func(key broker.OfferKey) error { got[key] = true; return nil }))
	maps.DeleteFunc(want, func(key broker.OfferKey, _ bool) bool { return key.Agent != agent })
	if !maps.Equal(got, want) {
		k.Errorf("listed %v of one agent, want %v", got, want)
	}
	enough := errors.New("enough")
	k.wantErr(k.Offers(k.ctx, "", func(broker.OfferKey) error { return enough }), enough)
}

func offersBetween(k *kit) {
	agent := k.agentWithQueue()
	before := k.Now().Add(-time.Minute) // the engine's clock is known to within a part of that
	want := []broker.OfferKey{k.offer(agent, protocol.Low), k.offer(agent, protocol.High), k.offer(agent, protocol.Normal)}
	removed := k.offer(agent, protocol.Low)
	k.must(k.RemoveOffer(k.ctx, removed))
	k.pull(agent, 1)
	read := func(from, until time.Time) (keys []broker.OfferKey, at []time.Time) {
		k.must(k.OffersBetween(k.ctx, from, until, func(key broker.OfferKey, put time.Time) error {
			if key.Agent == agent {
				keys, at = append(keys, key), append(at, put)
			}
			return nil
		}))
		return keys, at
	}
	keys, at := read(before, before.Add(time.Hour))
	if !slices.Equal(keys, want) || !slices.IsSortedFunc(at, time.Time.Compare) {
		k.Fatalf("offers %v, put at %v, want %v in their order", keys, at, want)
	}
	if at[0].Before(at[2]) { // the first instant is in, the last is out
		if keys, _ := read(at[0], at[2]); len(keys) == 3 || len(keys) == 0 || keys[0] != want[0] {
			k.Errorf("offers %v of those put before the last", keys)
		}
	}
	if keys, _ := read(at[2].Add(time.Nanosecond), before.Add(time.Hour)); len(keys) > 0 {
		k.Errorf("offers %v were put later than the last", keys)
	}
	enough := errors.New("enough")
	k.wantErr(k.OffersBetween(k.ctx, before, before.Add(time.Hour), func(broker.OfferKey, time.Time) error { return enough }), enough)
}

func pullContext(k *kit) {
	agent := k.agentWithQueue()
	ctx, cancel := context.WithCancel(k.ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := k.Pull(ctx, agent, 1, time.Hour)
		ended <- err
	}()
	k.noDelivery(agent)
	cancel()
	k.wantErr(receive(k, "the end of the pull", ended), context.Canceled)
	key := k.offer(agent, protocol.Normal)
	if got := k.pull(agent, 1)[0].Key(); got != key {
		k.Errorf("got %v, want %v", got, key)
	}
}

// awaitQueueStatus waits until the lanes of an agent stand as they should; oldest is
// looked at elsewhere.
func (k *kit) awaitQueueStatus(agent string, want ...broker.QueueStatus) []broker.QueueStatus {
	k.Helper()
	var got []broker.QueueStatus
	k.until("the lanes of the queue", func() bool {
		all, err := k.Queues(k.ctx)
		if errors.Is(err, broker.ErrUnreachable) {
			return false // three nodes on a machine that does more besides take their time
		}
		k.must(err)
		got = slices.DeleteFunc(all, func(q broker.QueueStatus) bool { return q.Agent != agent })
		return slices.EqualFunc(got, want, func(a, b broker.QueueStatus) bool {
			return a.Lane == b.Lane && a.Depth == b.Depth && a.Delivered == b.Delivered && !a.Oldest.IsZero()
		})
	})
	return got
}

func queuesLanes(k *kit) {
	agent := k.agentWithQueue()
	k.awaitQueueStatus(agent)
	k.offer(agent, protocol.Low)
	k.offer(agent, protocol.Low)
	k.offer(agent, protocol.Critical)
	k.awaitQueueStatus(agent, broker.QueueStatus{Lane: protocol.Critical, Depth: 1}, broker.QueueStatus{Lane: protocol.Low, Depth: 2})
	first := k.pull(agent, 1)[0]
	k.awaitQueueStatus(agent, broker.QueueStatus{Lane: first.Key().Lane, Depth: 1, Delivered: 1}, broker.QueueStatus{Lane: protocol.Low, Depth: 2})
	k.must(first.Remove())
	for _, d := range k.pull(agent, 2) {
		k.must(d.Remove())
	}
	k.awaitQueueStatus(agent)
}

func queuesUnpulled(k *kit) {
	agent := k.agent()
	k.must(k.PutProfile(k.ctx, protocol.Profile{ID: agent}))
	k.offer(agent, protocol.High)
	k.offer(agent, protocol.Normal)
	k.awaitQueueStatus(agent, broker.QueueStatus{Lane: protocol.High, Depth: 1}, broker.QueueStatus{Lane: protocol.Normal, Depth: 1})
}

func queuesOldest(k *kit) {
	agent := k.agentWithQueue()
	k.offer(agent, protocol.Normal)
	second := k.offer(agent, protocol.Normal)
	k.offer(agent, protocol.Normal)
	before := k.awaitQueueStatus(agent, broker.QueueStatus{Lane: protocol.Normal, Depth: 3})
	if !before[0].Waiting.Equal(before[0].Oldest) {
		k.Errorf("the oldest was put at %v, none was delivered, and the longest wait began at %v", before[0].Oldest, before[0].Waiting)
	}
	first := k.pull(agent, 1)[0]
	held := k.awaitQueueStatus(agent, broker.QueueStatus{Lane: protocol.Normal, Depth: 3, Delivered: 1})
	if !held[0].Oldest.Equal(before[0].Oldest) || !held[0].Waiting.After(held[0].Oldest) {
		k.Errorf("with the oldest in hand, put at %v, the one that waits longest was put at %v", held[0].Oldest, held[0].Waiting)
	}
	k.must(first.Remove())
	after := k.awaitQueueStatus(agent, broker.QueueStatus{Lane: protocol.Normal, Depth: 2})
	if !after[0].Oldest.After(before[0].Oldest) {
		k.Errorf("the oldest was put at %v, and when that was gone at %v", before[0].Oldest, after[0].Oldest)
	}
	if age := time.Since(after[0].Oldest); age < 0 || age > time.Hour {
		k.Errorf("the oldest was put %v ago", age)
	}
	k.must(k.RemoveOffer(k.ctx, second)) // and another comes, so that the lane has the same numbers
	k.offer(agent, protocol.Normal)
	k.until("the age of the offer behind it", func() bool {
		return k.awaitQueueStatus(agent, broker.QueueStatus{Lane: protocol.Normal, Depth: 2})[0].Oldest.After(after[0].Oldest)
	})
}
