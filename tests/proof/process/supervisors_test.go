//go:build proof

package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/embedded"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// need is one way in which a handoff needs a supervisor before it completes.
type need struct {
	name   string
	target string
	change func(*protocol.Package)
	// events is how often each fact must stand in its ledger; of the others
	// there must be none.
	events map[protocol.EventType]int
}

var needs = []need{
	{"fails once", "taker", func(p *protocol.Package) { p.Policy.BackoffBaseMS = pointer(int64(200)) },
		map[protocol.EventType]int{protocol.EventOffered: 2, protocol.EventAccepted: 2, protocol.EventFailed: 1, protocol.EventRetryScheduled: 1}},
	{"is refused", "taker", nil,
		map[protocol.EventType]int{protocol.EventOffered: 2, protocol.EventAccepted: 2, protocol.EventRejected: 1, protocol.EventRerouted: 1}},
	{"is deferred", "taker", nil,
		map[protocol.EventType]int{protocol.EventOffered: 2, protocol.EventAccepted: 2, protocol.EventConditioned: 1}},
	{"takes too long", "taker", func(p *protocol.Package) {
		p.Policy.WorkTimeoutMS, p.Policy.BackoffBaseMS = pointer(int64(2000)), pointer(int64(200))
		p.Policy.ReminderPercent = pointer(0)
	}, map[protocol.EventType]int{protocol.EventOffered: 2, protocol.EventAccepted: 2, protocol.EventTimedOut: 1, protocol.EventRetryScheduled: 1}},
	{"is not heard", "absent", func(p *protocol.Package) { p.Policy.AckTimeoutMS = pointer(int64(200)) },
		map[protocol.EventType]int{protocol.EventOffered: 2, protocol.EventAccepted: 1, protocol.EventTimedOut: 1, protocol.EventEscalated: 1}},
}

// meetNeeds is what the workers do: the first time what the description says.
func meetNeeds(b *broker.Broker) worker.HandlerFunc {
	return func(ctx context.Context, h worker.Handoff) (protocol.Result, error) { return meetNeed(ctx, b, h) }
}

func meetNeed(ctx context.Context, b *broker.Broker, h worker.Handoff) (protocol.Result, error) {
	first := h.Attempt == 1 && h.Agent == "taker" && h.State().ConditionRounds == 0
	if !first {
		return done(), nil
	}
	switch h.Package.Task.Description {
	case "fails once":
		return protocol.Result{}, errors.New("no luck")
	case "is refused":
		return protocol.Result{}, worker.Reject("not mine", "spare")
	case "is deferred":
		return protocol.Result{}, worker.Defer("not now", 200*time.Millisecond)
	case "takes too long":
		// Sooner than the next beat would tell.
		_, err := brokertest.Wait(ctx, b, h.Ticket, func(s protocol.State) bool { return s.Fence != h.Fence })
		return protocol.Result{}, errors.Join(err, errors.New("gave up"))
	}
	return done(), nil
}

// TestKilledSupervisors: three supervisors share the work, and are killed and
// started again at random while handoffs fail, are refused, deferred, too slow,
// and unheard. Any supervisor may decide about each: nothing is lost,
// nothing is decided twice, and all of it closes.
func TestKilledSupervisors(t *testing.T) {
	for _, partitions := range []int{1, 4} {
		t.Run(fmt.Sprint(partitions), func(t *testing.T) { loseSupervisors(t, partitions) })
	}
}

func loseSupervisors(t *testing.T, partitions int) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	url := supervisedNode(t, partitions)
	b := dial(t, url)
	serveNeeds(t, b)
	supervisors := newSupervisors(t, ctx, url)
	killing, stop := context.WithTimeout(ctx, 6*time.Second)
	defer stop()
	var acked sync.Map // ticket to need
	var sources sync.WaitGroup
	for i := range 4 {
		sources.Go(func() { submitNeeds(t, ctx, killing.Done(), b, i, &acked) })
	}
	kills := supervisors.killUntil(ctx, killing.Done(), rand.New(rand.NewPCG(seed, 1)))
	sources.Wait()
	stopped := time.Now()
	total := awaitNeeds(t, ctx, b, &acked)
	t.Logf("%d handoffs, %d supervisors killed; the last closed %v after the last kill", total, kills, time.Since(stopped).Round(time.Millisecond))
	checkNeeds(t, ctx, b, &acked)
}

// serveNeeds registers the agents of the needs, and starts their workers.
func serveNeeds(t *testing.T, b *broker.Broker) {
	t.Helper()
	for _, agent := range []string{"taker", "spare", "absent"} {
		putAgent(t, b, protocol.Profile{ID: agent})
	}
	for _, agent := range []string{"taker", "spare", protocol.Human} {
		t.Cleanup(begin(t, newWorker(t, b, worker.Config{Agent: agent, Concurrency: 128}, meetNeeds(b))))
	}
}

// awaitNeeds waits until every handoff has closed, and counts them.
func awaitNeeds(t *testing.T, ctx context.Context, b *broker.Broker, acked *sync.Map) (total int) {
	t.Helper()
	acked.Range(func(ticket, kind any) bool {
		total++
		state, err := brokertest.Wait(ctx, b, ticket.(string), brokertest.Closed)
		if err != nil {
			t.Errorf("%s (%s) does not close: it is %s with %s, attempt %d, held by %q, stuck %q: %v", ticket, kind.(need).name,
				state.Phase, state.Agent, state.Attempt, state.Holder, state.StuckReason, err)
		}
		return ctx.Err() == nil
	})
	return total
}

// supervisedNode starts an engine for other processes. The consumers that the
// supervisors share are made here, to give up a dead one's share in 2 s instead
// of 30.
func supervisedNode(t *testing.T, partitions int) (url string) {
	t.Helper()
	node := listeningNode(t, embedded.Config{})
	nc, err := node.Conn()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	ensureTopology(t, nc, handoffjs.Topology{Partitions: partitions})
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	filters := map[string]string{handoffjs.TimerStream: "handoff.due.>"}
	for p := range partitions {
		stream, prefix := handoffjs.LedgerPartition(p)
		filters[stream] = prefix + ">"
		if p > 0 {
			filters[handoffjs.TimerStreams(partitions)[p]] = fmt.Sprintf("handoff.due-%d.>", p)
		}
	}
	for stream, filter := range filters {
		cfg := jetstream.ConsumerConfig{Durable: handoffjs.SupervisorConsumer, FilterSubject: filter, AckPolicy: jetstream.AckExplicitPolicy,
			AckWait: 2 * time.Second, MaxDeliver: -1, MaxAckPending: 50_000}
		if _, err := js.CreateConsumer(t.Context(), stream, cfg); err != nil {
			t.Fatal(err)
		}
	}
	return node.ClientURL()
}

// submitNeeds submits one of each in turn until it is told to stop.
func submitNeeds(t *testing.T, ctx context.Context, stop <-chan struct{}, b *broker.Broker, number int, acked *sync.Map) {
	pace := time.NewTicker(30 * time.Millisecond)
	defer pace.Stop()
	for n := number; ; n++ {
		kind := needs[n%len(needs)]
		pkg := protocol.Package{Source: "lead", Target: protocol.Target{Agent: kind.target}, Reason: "it is your turn",
			Task: protocol.Task{Description: kind.name}, Key: fmt.Sprintf("%d-%d", number, n)}
		if kind.change != nil {
			kind.change(&pkg)
		}
		prepared, err := b.Prepare(ctx, pkg)
		if err == nil {
			_, err = b.Submit(ctx, prepared)
		}
		if err != nil {
			t.Errorf("submit: %v", err)
			return
		}
		acked.Store(prepared.Ticket, kind)
		select {
		case <-pace.C:
		case <-stop:
			return
		}
	}
}

// supervisors are three processes beside an engine.
type supervisors struct {
	t   *testing.T
	url string
	all [3]*startedProcess
}

func newSupervisors(t *testing.T, ctx context.Context, url string) *supervisors {
	t.Helper()
	s := &supervisors{t: t, url: url}
	for i := range s.all {
		s.start(ctx, i)
	}
	return s
}

func (s *supervisors) start(ctx context.Context, i int) {
	s.t.Helper()
	s.all[i] = startHandoff(s.t, fmt.Sprintf("supervisor %d", i), []string{"NATS_URL=" + s.url}, "supervise")
	s.all[i].AwaitOutput(ctx, "supervising")
}

// killUntil kills one after another until it is told to stop, and leaves three behind.
func (s *supervisors) killUntil(ctx context.Context, stop <-chan struct{}, rng *rand.Rand) (kills int) {
	s.t.Helper()
	for {
		select {
		case <-time.After(time.Duration(50+rng.IntN(250)) * time.Millisecond):
		case <-stop:
			return kills
		}
		i := rng.IntN(len(s.all))
		s.all[i].Kill()
		kills++
		s.start(ctx, i)
	}
}

// checkNeeds compares the ledger with what was acknowledged.
func checkNeeds(t *testing.T, ctx context.Context, b *broker.Broker, acked *sync.Map) {
	t.Helper()
	facts, last := map[string]map[protocol.EventType]int{}, map[string]protocol.State{}
	err := b.Entries(ctx, broker.From(1), func(e broker.Entry) error {
		change, err := broker.DecodeChange(e)
		if err != nil {
			return err
		}
		if facts[e.Ticket] == nil {
			facts[e.Ticket] = map[protocol.EventType]int{}
		}
		for _, event := range change.Record.Events {
			facts[e.Ticket][event.EventType()]++
		}
		last[e.Ticket] = change.Record.State
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	acked.Range(func(ticket, kind any) bool {
		total++
		want := maps.Clone(kind.(need).events)
		want[protocol.EventSubmitted], want[protocol.EventCompleted] = 1, 1
		got, state := facts[ticket.(string)], last[ticket.(string)]
		delete(got, protocol.EventStarted) // comes with each acceptance
		if !maps.Equal(got, want) || state.Outcome != protocol.OutcomeSuccess {
			t.Errorf("%s (%s) closed as %s with %v, want success with %v", ticket, kind.(need).name, state.Outcome, got, want)
		}
		return true
	})
	if len(last) != total {
		t.Errorf("the ledger has %d handoffs, %d were acknowledged", len(last), total)
	}
}
