package natsgateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/embedded"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// A gateway that vanishes takes nothing along: what was accepted through it is reported
// through the other, once; what was not comes again.
func TestAGatewayVanishesInTheMiddle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder")
	first := w.open(natsgateway.Config{})
	began, finish := make(chan struct{}, 10), make(chan struct{})
	w.run(worker.New(w.client("coder"), worker.Config{Agent: "coder", Concurrency: 2, Lease: 3_000_000_000}, worker.HandlerFunc(
		func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			began <- struct{}{}
			select {
			case <-finish:
			case <-ctx.Done():
				return protocol.Result{}, context.Cause(ctx)
			}
			if err := h.Progress(ctx, protocol.Progress{Percent: 99}); err != nil {
				return protocol.Result{}, err
			}
			return protocol.Result{Body: h.Package.Context.Variables["it"]}, nil
		})))
	// One that is small, and one whose result goes in parts.
	tickets := []string{}
	for _, it := range []string{"small", strings.Repeat("large ", 200_000)} {
		tickets = append(tickets, w.submit("coder", func(p *protocol.Package) {
			p.Context.Variables = map[string]json.RawMessage{"it": text(it)}
		}))
	}
	for range tickets {
		<-began
	}
	second := w.open(natsgateway.Config{})
	first.kill()
	close(finish)
	for _, ticket := range tickets {
		state := w.until(ticket, brokertest.Closed)
		if state.Outcome != protocol.OutcomeSuccess || state.AttemptsTotal != 1 {
			t.Errorf("ended %s (%s), %d attempts", state.Outcome, state.Message, state.AttemptsTotal)
		}
	}
	// And what comes now goes through the second.
	w.until(w.submit("coder", nil), brokertest.Closed)
	_ = second
}

// Where the only gateway goes, workers wait for another one, and report then.
func TestWorkersWaitForAGateway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder")
	first := w.open(natsgateway.Config{})
	began, finish := make(chan struct{}), make(chan struct{})
	w.run(worker.New(w.client("coder"), worker.Config{Agent: "coder"}, worker.HandlerFunc(
		func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			close(began)
			<-finish
			return protocol.Result{Body: text("done")}, nil
		})))
	ticket := w.submit("coder", nil)
	<-began
	first.stop()
	close(finish)
	// Nobody is there to whom the worker could report.
	if _, err := w.hasty("coder").Status(w.ctx, ticket); !errors.Is(err, natsgateway.ErrNobody) {
		t.Errorf("without a gateway: %v", err)
	}
	if s := w.status(ticket); s.Closed {
		t.Errorf("closed without a gateway: %s", s.Outcome)
	}
	w.open(natsgateway.Config{})
	if s := w.until(ticket, brokertest.Closed); s.Outcome != protocol.OutcomeSuccess || s.AttemptsTotal != 1 {
		t.Errorf("ended %s, %d attempts", s.Outcome, s.AttemptsTotal)
	}
}

// An agent that is paused gets nothing, and goes on when it is resumed.
func TestPausedBehindAGateway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	paused := protocol.Profile{ID: "coder", Paused: true}
	if err := w.b.PutProfile(w.ctx, paused); err != nil {
		t.Fatal(err)
	}
	w.open(natsgateway.Config{})
	c := w.client("coder")
	registered, err := c.Register(w.ctx, api.Registration{Profile: protocol.Profile{ID: "coder"}})
	if err != nil || !registered.Profile.Paused {
		t.Fatalf("%+v, %v", registered, err)
	}
	ticket := w.submit("coder", nil)
	if claims, err := c.ClaimMany(w.ctx, api.ClaimMany{Agent: "coder", Key: key, Lease: time.Minute, Most: 1}); err != nil || !claims.Paused || len(claims.Held) != 0 {
		t.Errorf("%+v, %v", claims, err)
	}
	w.run(worker.New(c, worker.Config{Agent: "coder"}, worker.HandlerFunc(func(context.Context, worker.Handoff) (protocol.Result, error) {
		return protocol.Result{}, nil
	})))
	paused.Paused = false
	if err := w.b.PutProfile(w.ctx, paused); err != nil {
		t.Fatal(err)
	}
	w.until(ticket, brokertest.Closed)
}

// An engine that is restarted takes nothing along either: gateways and workers find
// it again by themselves.
func TestTheEngineIsRestarted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*patience)
	t.Cleanup(cancel)
	dir := t.TempDir()
	start := func(port int) *embedded.Node {
		t.Helper()
		n, err := embedded.Start(ctx, embedded.Config{Dir: dir, Port: port, Fsync: embedded.FsyncInterval})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = n.Stop() })
		return n
	}
	n := start(0)
	w := worldAt(t, ctx, n.ClientURL(), func(string) string { return n.ClientURL() })
	at, err := url.Parse(n.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(at.Port())
	if err != nil {
		t.Fatal(err)
	}
	w.open(natsgateway.Config{})
	began, finish := make(chan struct{}, 10), make(chan struct{})
	w.run(worker.New(w.client("coder"), worker.Config{Agent: "coder"}, worker.HandlerFunc(
		func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			began <- struct{}{}
			<-finish
			return protocol.Result{Body: text("done")}, nil
		})))
	w.registered("coder")
	ticket := w.submit("coder", nil)
	<-began
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	close(finish)
	start(port)
	if s := w.until(ticket, brokertest.Closed); s.Outcome != protocol.OutcomeSuccess || s.AttemptsTotal != 1 {
		t.Errorf("ended %s, %d attempts", s.Outcome, s.AttemptsTotal)
	}
	w.until(w.submit("coder", nil), brokertest.Closed)
}

// What comes for a claim that was given up goes back, as long as the client lives.
func TestAClaimThatIsGivenUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder")
	d := w.open(natsgateway.Config{})
	c := w.client("coder")
	if _, err := c.Present(w.ctx, api.Presence{Agent: "coder", Key: key, LeaseMS: 60_000, Slots: 1}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := c.ClaimMany(ctx, api.ClaimMany{Agent: "coder", Key: key, Lease: time.Minute, Most: 1, Wait: natsgateway.WaitMax, Accept: true})
		ended <- err
	}()
	w.eventually("a claim", func() bool { return d.Load().Requests > 0 })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	ticket := w.submit("coder", nil)
	if h := w.accept(w.client("coder"), "coder"); h.State.Ticket != ticket || h.State.AttemptsTotal > 1 {
		t.Errorf("%s, %d attempts", h.State.Ticket, h.State.AttemptsTotal)
	}
}

// A claim whose answer was lost is released, and nothing is charged for it; through another gateway
// its holder gets it again.
func TestAnAnswerWithAClaimIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ackWait = 2 * time.Second
	w.b = w.broker()
	w.register("coder")
	first := w.open(natsgateway.Config{})
	nc := w.conn("coder")
	if _, code := w.ask(nc, natsgateway.Subject("coder", "Present"), fmt.Sprintf(`{"agent":"coder","key":%q,"lease_ms":120000,"slots":1}`, key)); code != "" {
		t.Fatal(code)
	}
	ticket := w.submit("coder", nil)
	deaf := func() protocol.State { // claims until a claim gets the handoff, and hears no answer
		t.Helper()
		for {
			if err := nc.PublishMsg(&nats.Msg{Subject: natsgateway.SubjectAt("coder", first.ID(), "ClaimMany"), Reply: nc.NewInbox(), Header: nats.Header{"Handoff-Request": {"1"}}, Data: []byte(claimBody("coder", 5_000))}); err != nil {
				t.Fatal(err)
			}
			within, cancel := context.WithTimeout(w.ctx, 10*time.Second)
			s, err := brokertest.Wait(within, w.b, ticket, func(s protocol.State) bool { return s.Held() })
			if cancel(); err == nil {
				return s
			}
			if w.ctx.Err() != nil {
				t.Fatalf("no claim got it: %v", err)
			}
		}
	}
	deaf()
	if s := w.until(ticket, func(s protocol.State) bool { return !s.Held() }); s.AttemptsTotal != 0 {
		t.Errorf("released with %d attempts", s.AttemptsTotal)
	}
	lost := deaf()
	w.open(natsgateway.Config{})
	first.kill()
	if h := w.accept(w.client("coder"), "coder"); h.State.Ticket != ticket || h.State.Fence != lost.Fence {
		t.Errorf("%s under the fence %d, want %d", h.State.Ticket, h.State.Fence, lost.Fence)
	} else if err := h.Complete(w.ctx, protocol.Result{Body: text("done")}); err != nil {
		t.Error(err)
	}
}
