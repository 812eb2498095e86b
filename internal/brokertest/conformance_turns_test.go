package brokertest

import (
	"slices"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// turnCases hold an engine against the rule of broker.LaneOrder.
var turnCases = []conformanceCase{
	{"the first 7 pulls go by priority", testFirstPullsByPriority},
	{"with all lanes full each has its share", testLaneShares},
	{"a turn counts within a batch", testTurnsInBatch},
	{"a stream of critical offers starves no lane", testNoLaneStarves},
	{"what comes amid a stream of critical offers is taken", testTurnsAmidStream},
	{"a lower lane gets no more than its turns", testLowerLaneGetsTurnsOnly},
}

// takeOne pulls one offer and removes it.
func (k *kit) takeOne(agent string) broker.OfferKey {
	k.Helper()
	d := k.pull(agent, 1)[0]
	k.must(d.Remove())
	return d.Key()
}

func testFirstPullsByPriority(k *kit) {
	agent := k.agentWithQueue()
	for _, lane := range []protocol.Priority{protocol.Low, protocol.Normal, protocol.High} {
		k.offer(agent, lane)
	}
	for range broker.TurnEvery {
		k.offer(agent, protocol.Critical)
	}
	k.awaitDepth(agent, broker.TurnEvery+3)
	for i := range broker.TurnEvery - 1 {
		if lane := k.takeOne(agent).Lane; lane != protocol.Critical {
			k.Fatalf("offer %d is %s, with critical ones waiting", i+1, lane)
		}
	}
}

func testLaneShares(k *kit) {
	const rounds = 2
	agent := k.agentWithQueue()
	for range rounds * broker.TurnRound {
		for _, lane := range protocol.Priorities { // so that none of them ever runs out
			k.offer(agent, lane)
		}
	}
	k.awaitDepth(agent, rounds*broker.TurnRound*len(protocol.Priorities))
	for i := range rounds * broker.TurnRound {
		want := protocol.Critical
		switch i % broker.TurnRound {
		case 7:
			want = protocol.High
		case 15:
			want = protocol.Normal
		case 23:
			want = protocol.Low
		}
		if lane := k.takeOne(agent).Lane; lane != want {
			k.Fatalf("offer %d is %s, want %s", i+1, lane, want)
		}
	}
}

func testTurnsInBatch(k *kit) {
	agent := k.agentWithQueue()
	k.offer(agent, protocol.Low)
	for range broker.TurnRound {
		k.offer(agent, protocol.Critical)
	}
	k.awaitDepth(agent, broker.TurnRound+1)
	batch := func(n, low int) {
		k.Helper()
		for _, d := range k.pull(agent, n) {
			if d.Key().Lane == protocol.Low {
				low--
			}
			k.must(d.Remove())
		}
		if low != 0 {
			k.Fatalf("%d more low offers in a batch of %d", low, n)
		}
	}
	batch(5, 0)
	batch(5, 1) // its third is the eighth in all; high and normal, who have nothing, pass the turn on
	k.offer(agent, protocol.Low)
	k.awaitDepth(agent, broker.TurnRound-10+2)
	batch(broker.TurnEvery, 1) // some offer of these is the sixteenth
}

// saturate keeps critical offers in the agent's queue until each of keys was
// taken. It returns how many offers were taken up to and including each.
func (k *kit) saturate(agent string, keys ...broker.OfferKey) []int {
	k.Helper()
	at := make([]int, len(keys))
	for missing, taken := len(keys), 1; missing > 0; taken++ {
		if taken > 10*broker.TurnRound {
			k.Fatalf("after %d offers %d are still not taken: %v", taken-1, missing, at)
		}
		k.offer(agent, protocol.Critical)
		key := k.takeOne(agent)
		if i := slices.Index(keys, key); i >= 0 {
			at[i] = taken
			missing--
		} else if key.Lane != protocol.Critical {
			k.Fatalf("offer %d is %v", taken, key)
		}
	}
	return at
}

// lead is how many critical offers are there before the first is taken, so that
// the queue shows some, however late a replica shows the next.
const lead = 2 * broker.TurnRound

func (k *kit) offerLead(agent string) {
	for range lead {
		k.offer(agent, protocol.Critical)
	}
}

func testNoLaneStarves(k *kit) {
	agent := k.agentWithQueue()
	k.offerLead(agent)
	low, normal, high := k.offer(agent, protocol.Low), k.offer(agent, protocol.Normal), k.offer(agent, protocol.High)
	k.awaitDepth(agent, lead+3)
	if got, want := k.saturate(agent, high, normal, low), []int{8, 16, 24}; !slices.Equal(got, want) {
		k.Errorf("high, normal and low are taken %v, want %v", got, want)
	}
	agent = k.agentWithQueue() // alone, it need not wait for the turns of those who are not there
	k.offerLead(agent)
	low = k.offer(agent, protocol.Low)
	k.awaitDepth(agent, lead+1)
	if got := k.saturate(agent, low); got[0] != broker.TurnEvery {
		k.Errorf("the only low one is taken after %d, want %d", got[0], broker.TurnEvery)
	}
}

// By the time the others come their lanes were found empty at many a turn. How
// many turns pass until the engine shows a new offer is not said; here it has
// ten rounds of them.
func testTurnsAmidStream(k *kit) {
	agent := k.agentWithQueue()
	k.offerLead(agent)
	for range broker.TurnRound {
		k.offer(agent, protocol.Critical)
		if key := k.takeOne(agent); key.Lane != protocol.Critical {
			k.Fatalf("got %v", key)
		}
	}
	for _, lane := range []protocol.Priority{protocol.Low, protocol.Normal, protocol.High, protocol.Low} {
		k.saturate(agent, k.offer(agent, lane))
	}
}

// Offers come at any moment of a pull, to lanes that were just found empty:
// still they are taken in their turn alone.
func testLowerLaneGetsTurnsOnly(k *kit) {
	const takes = 5 * broker.TurnRound
	agent := k.agentWithQueue()
	for range takes {
		k.offer(agent, protocol.Critical)
	}
	k.awaitDepth(agent, takes)
	unused, ended := make(chan struct{}, takes), make(chan struct{})
	go func() {
		defer close(ended)
		for range unused {
			for _, lane := range protocol.Priorities[1:] {
				key := broker.OfferKey{Agent: agent, Lane: lane, Ticket: protocol.NewTicket(), Sequence: 7}
				if err := k.PutOffer(k.ctx, key, nil); err != nil {
					k.Error(err)
				}
			}
		}
	}()
	for i := range takes {
		turn := i%broker.TurnEvery == broker.TurnEvery-1
		switch lane := k.takeOne(agent).Lane; {
		case lane == protocol.Critical && turn:
			unused <- struct{}{}
		case lane != protocol.Critical && !turn:
			k.Errorf("offer %d is %s", i+1, lane)
		}
	}
	close(unused)
	receive(k, "the end of the others", ended)
}
