//go:build proof

package process

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// outage is what an agent does that fails at times, and what it has seen of its breaker.
type outage struct {
	t      *testing.T
	mu     sync.Mutex
	down   bool
	probes int // since the agent changed last
	others int // attempts that were no probes
	now    int // probes that run
	most   int // of now, so far
}

// handle is one attempt. It fails while the agent is down.
func (o *outage) handle(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
	if h.Package.Task.Description == "poison" {
		return protocol.Result{}, errors.New("no agent can do this")
	}
	probe := h.State().Breaker == protocol.BreakerProbe
	down := o.begin(probe)
	if probe {
		time.Sleep(100 * time.Millisecond) // so that another probe, if there were one, would meet it
	}
	o.end(probe)
	if down {
		return protocol.Result{}, errors.New("out of order")
	}
	return done(), nil
}

func (o *outage) begin(probe bool) (down bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !probe {
		o.others++
		return o.down
	}
	o.probes++
	o.now++
	o.most = max(o.most, o.now)
	return o.down
}

func (o *outage) end(probe bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if probe {
		o.now--
	}
}

// turn changes the agent, and counts anew.
func (o *outage) turn(down bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.down, o.probes, o.others = down, 0, 0
}

func (o *outage) seen() (probes, others, running int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.probes, o.others, o.now
}

const (
	outages      = 3
	failedProbes = 2 // of an outage, at least
	freshLooks   = 25
)

// TestBreakerUnderKills: an agent fails and recovers, time and again, while two supervisors are
// killed in turn. While its breaker is open the agent gets probes alone, one at a time. The first one
// after its recovery closes the breaker. All handoffs complete, and one that no agent can do opens
// nothing.
func TestBreakerUnderKills(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // a killed supervisor's probe keeps its place for 30 s
	defer cancel()
	seed := uint64(time.Now().UnixNano())
	url := supervisedNode(t, 1)
	b := dial(t, url)
	putAgent(t, b, protocol.Profile{ID: "coder", Breaker: &protocol.Breaker{OpenMS: pointer(int64(1000)), OpenMaxMS: pointer(int64(1000))}})
	o := &outage{t: t}
	defer begin(t, newWorker(t, b, worker.Config{Agent: "coder", Concurrency: 16}, o.handle))()

	killing, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	kills := 0
	running.Go(func() { kills = killSupervisors(t, killing, url, rand.New(rand.NewPCG(seed, 1))) })
	defer running.Wait()
	defer stop()

	poison := submitWork(t, ctx, b, "poison", 10)
	if s := awaitClosed(t, ctx, b, poison); s.AttemptsTotal != 10 {
		t.Errorf("poison was tried %d times", s.AttemptsTotal)
	}
	if h := o.health(ctx, b); !h.OpenUntil.IsZero() {
		t.Errorf("one package that no agent can do has opened the breaker: %+v", h)
	}
	var tickets []string
	for n := range outages {
		o.turn(true)
		for i := range 12 {
			tickets = append(tickets, submitWork(t, ctx, b, fmt.Sprint(n, "-", i), 20))
		}
		o.awaitOpen(ctx, b)
		o.awaitProbes(ctx, b, failedProbes)
		o.turn(false)
		o.awaitRecovery(ctx, b)
	}
	for _, ticket := range tickets {
		if s := awaitClosed(t, ctx, b, ticket); s.Outcome != protocol.OutcomeSuccess {
			t.Errorf("%s ended as %s", ticket, s.Outcome)
		}
	}
	stop()
	running.Wait()
	if o.most > 1 {
		t.Errorf("%d probes ran at once", o.most)
	}
	t.Logf("seed %d: %d handoffs over %d outages, %d supervisors killed", seed, len(tickets), outages, kills)
}

func (o *outage) health(ctx context.Context, b *broker.Broker) protocol.Health {
	o.t.Helper()
	d, err := b.Directory(ctx)
	if err != nil {
		o.t.Fatal(err)
	}
	return d.Health["coder"].Health
}

// awaitOpen waits until the breaker is open and the offers from before have had their attempts.
// Since then the agent gets nothing but probes.
func (o *outage) awaitOpen(ctx context.Context, b *broker.Broker) {
	o.t.Helper()
	eventually(o.t, ctx, "the breaker to open", func() bool { return !o.health(ctx, b).OpenUntil.IsZero() })
	looks := 0 // a supervisor may have read the health shortly before
	eventually(o.t, ctx, "the offers from before to be tried", func() bool {
		standing := 0
		err := b.Heads(ctx, func(e broker.Entry) error {
			s, err := broker.StateOf(e)
			if err == nil && !s.Closed && s.Breaker == protocol.BreakerCounts && (s.Held() || s.Phase == protocol.Pending && s.Offer != 0) {
				standing++
			}
			return err
		})
		if err != nil || standing > 0 {
			looks = 0
			return false
		}
		looks++
		return looks > freshLooks
	})
	o.turn(true)
}

// awaitProbes waits until some probes have failed, and checks that nothing else was tried.
func (o *outage) awaitProbes(ctx context.Context, b *broker.Broker, most int) {
	o.t.Helper()
	eventually(o.t, ctx, "probes to fail", func() bool {
		probes, _, running := o.seen()
		return probes >= most && running == 0 && len(o.health(ctx, b).Probes) == 0
	})
	if _, others, _ := o.seen(); others != 0 {
		o.t.Errorf("%d attempts were made while the breaker was open", others)
	}
}

// awaitRecovery waits until the breaker is closed, and checks that one probe has closed it.
func (o *outage) awaitRecovery(ctx context.Context, b *broker.Broker) {
	o.t.Helper()
	eventually(o.t, ctx, "the breaker to close", func() bool { return o.health(ctx, b).OpenUntil.IsZero() })
	if probes, _, _ := o.seen(); probes != 1 {
		o.t.Errorf("the breaker has closed after %d probes", probes)
	}
}

// killSupervisors kills two supervisors in turn until it is told to stop.
func killSupervisors(t *testing.T, ctx context.Context, url string, chance *rand.Rand) (kills int) {
	env := []string{"NATS_URL=" + url}
	supervise := func() *startedProcess { return startHandoff(t, "supervisor", env, "supervise") }
	both := []*startedProcess{supervise(), supervise()}
	for {
		next := time.NewTimer(time.Duration(300+chance.IntN(900)) * time.Millisecond)
		select {
		case <-next.C:
			i := kills % 2
			both[i].Kill()
			both[i] = supervise()
			kills++
		case <-ctx.Done():
			next.Stop()
			for _, p := range both {
				p.Kill()
			}
			return kills
		}
	}
}

func submitWork(t *testing.T, ctx context.Context, b *broker.Broker, task string, attempts int) string {
	t.Helper()
	prepared := prepare(t, b, "coder", func(pkg *protocol.Package) {
		pkg.Task.Description = task
		pkg.Policy.MaxAttempts, pkg.Policy.BackoffBaseMS, pkg.Policy.BackoffCapMS = pointer(attempts), pointer(int64(50)), pointer(int64(200))
		pkg.Policy.OnExhausted = pointer(protocol.ExhaustedFail)
		pkg.Routing = &protocol.RoutingRules{OnOpen: protocol.OnOpenWait}
	})
	if _, err := b.Submit(ctx, prepared); err != nil {
		t.Fatal(err)
	}
	return prepared.Ticket
}

func awaitClosed(t *testing.T, ctx context.Context, b *broker.Broker, ticket string) protocol.State {
	t.Helper()
	s, err := brokertest.Wait(ctx, b, ticket, brokertest.Closed)
	if err != nil {
		t.Fatalf("%s does not close: it is %s with %s, attempt %d: %v", ticket, s.Phase, s.Agent, s.Attempt, err)
	}
	return s
}

// eventually waits until something holds.
func eventually(t *testing.T, ctx context.Context, what string, holds func() bool) {
	t.Helper()
	for !holds() {
		again := time.NewTimer(20 * time.Millisecond)
		select {
		case <-ctx.Done():
			t.Fatalf("waited for %s: %v", what, ctx.Err())
		case <-again.C:
		}
	}
}
