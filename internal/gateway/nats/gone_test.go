package natsgateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/embedded"
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
	w.run(worker.NewOver(w.client("coder"), worker.Config{Agent: "coder", Concurrency: 2, Lease: 3_000_000_000}, worker.HandlerFunc(
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
		state := w.until(ticket, broker.Closed)
		if state.Outcome != protocol.OutcomeSuccess || state.AttemptsTotal != 1 {
			t.Errorf("ended %s (%s), %d attempts", state.Outcome, state.Message, state.AttemptsTotal)
		}
	}
	// And what comes now goes through the second.
	w.until(w.submit("coder", nil), broker.Closed)
	_ = second
}

// What is offered through a gateway that vanishes before it is accepted is another's
// to take after the ack wait, and gone for whom it was offered to.
func TestAnOfferIsGoneWithItsGateway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder")
	first := w.open(natsgateway.Config{})
	c := w.client("coder")
	holder := w.holder(c, "coder")
	ticket := w.submit("coder", nil)
	offer := w.pull(c, "coder")
	w.open(natsgateway.Config{})
	first.kill()
	if err := offer.Extend(); err == nil {
		t.Error("extended at a gateway that is gone")
	}
	if claim, err := offer.Acknowledge(w.ctx, holder, protocol.Ack{Status: protocol.AckAccepted}, true); claim != nil || !errors.Is(err, broker.ErrOfferGone) {
		t.Errorf("accepted: %v", err)
	}
	if s := w.status(ticket); s.Phase != protocol.Pending || s.Held() {
		t.Errorf("%+v", s)
	}
}

// A gateway that is told to end releases at once what no worker has accepted.
func TestAGatewayThatEndsReleasesOffers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder")
	first := w.open(natsgateway.Config{})
	c := w.client("coder")
	ticket := w.submit("coder", nil)
	if offer := w.pull(c, "coder"); offer.Ticket() != ticket {
		t.Fatal(offer.Ticket())
	}
	first.stop()
	w.open(natsgateway.Config{})
	if offer := w.pull(c, "coder"); offer.Ticket() != ticket {
		t.Error(offer.Ticket())
	}
}

// Where the only gateway goes, workers wait for another one, and report then.
func TestWorkersWaitForAGateway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder")
	first := w.open(natsgateway.Config{})
	began, finish := make(chan struct{}), make(chan struct{})
	w.run(worker.NewOver(w.client("coder"), worker.Config{Agent: "coder"}, worker.HandlerFunc(
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
	if s := w.until(ticket, broker.Closed); s.Outcome != protocol.OutcomeSuccess || s.AttemptsTotal != 1 {
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
	profile, err := c.Register(w.ctx, protocol.Profile{ID: "coder"}, worker.LeaseDefault)
	if err != nil || !profile.Paused || !c.Paused(w.ctx, "coder") {
		t.Fatalf("%+v, %v", profile, err)
	}
	ticket := w.submit("coder", nil)
	if offers, err := c.Pull(w.ctx, "coder", 1, 0); err != nil || len(offers) != 0 {
		t.Errorf("%d offers, %v", len(offers), err)
	}
	w.run(worker.NewOver(c, worker.Config{Agent: "coder"}, worker.HandlerFunc(func(context.Context, worker.Handoff) (protocol.Result, error) {
		return protocol.Result{}, nil
	})))
	paused.Paused = false
	if err := w.b.PutProfile(w.ctx, paused); err != nil {
		t.Fatal(err)
	}
	w.until(ticket, broker.Closed)
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
	w.run(worker.NewOver(w.client("coder"), worker.Config{Agent: "coder"}, worker.HandlerFunc(
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
	if s := w.until(ticket, broker.Closed); s.Outcome != protocol.OutcomeSuccess || s.AttemptsTotal != 1 {
		t.Errorf("ended %s, %d attempts", s.Outcome, s.AttemptsTotal)
	}
	w.until(w.submit("coder", nil), broker.Closed)
}

// What comes for a pull that was given up goes back, as long as the client lives.
func TestAPullThatIsGivenUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder")
	d := w.open(natsgateway.Config{})
	c := w.client("coder")
	ctx, cancel := context.WithCancel(w.ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := c.Pull(ctx, "coder", 1, natsgateway.WaitMax)
		ended <- err
	}()
	w.eventually("a pull", func() bool { return d.Load().Requests > 0 })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	ticket := w.submit("coder", nil)
	if offer := w.pull(w.client("coder"), "coder"); offer.Ticket() != ticket {
		t.Error(offer.Ticket())
	}
}
