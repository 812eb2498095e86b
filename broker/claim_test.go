package broker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// deaf is an engine whose leader does not answer reads while it is told so.
type deaf struct {
	broker.Engine
	silent bool
}

func (d *deaf) Last(ctx context.Context, ticket string, min uint64) (broker.Entry, error) {
	if d.silent {
		return broker.Entry{}, broker.ErrUnreachable
	}
	return d.Engine.Last(ctx, ticket, min)
}

// A claim that lost a race and then could not read who had won is still a
// claim: its next report goes through.
func TestClaimOutlivesAFailedRead(t *testing.T) {
	ctx := t.Context()
	engine := &deaf{Engine: brokertest.NewMemory()}
	b, claim, _ := claimed(t, engine)
	if _, err := b.Cancel(ctx, claim.Ticket, "human", "no longer needed"); err != nil { // moves the head on
		t.Fatal(err)
	}
	engine.silent = true
	if err := claim.Progress(ctx, protocol.Progress{Percent: 50}); !errors.Is(err, broker.ErrUnreachable) {
		t.Fatalf("progress while the leader is silent: %v", err)
	}
	if _, err := claim.Beat(ctx); !errors.Is(err, broker.ErrUnreachable) {
		t.Fatalf("beat while the leader is silent: %v", err)
	}
	engine.silent = false
	if err := claim.Progress(ctx, protocol.Progress{Percent: 60}); err != nil {
		t.Errorf("progress after it: %v", err)
	}
	if signal, err := claim.Beat(ctx); err != nil || !signal.CancelRequested {
		t.Errorf("beat after it: %+v, %v", signal, err)
	}
}

// A holder may lose a handoff and get it again. What remains of its first
// claim must not speak for the second.
func TestClaimKeepsItsFence(t *testing.T) {
	ctx := t.Context()
	b, first, holder := claimed(t, brokertest.NewMemory())
	copyOfFirst, err := b.Resume(ctx, first.Lease())
	if err != nil {
		t.Fatal(err)
	}
	if err := copyOfFirst.Release(ctx, "drain", nil); err != nil {
		t.Fatal(err)
	}
	second := claim(t, b, holder)
	if _, err := first.Beat(ctx); !errors.Is(err, broker.ErrLeaseLost) {
		t.Errorf("beat of the first claim: %v", err)
	}
	if err := first.Complete(ctx, protocol.Result{}); !errors.Is(err, broker.ErrLeaseLost) {
		t.Errorf("completion by the first claim: %v", err)
	}
	if err := second.Complete(ctx, protocol.Result{}); err != nil {
		t.Errorf("completion by the second claim: %v", err)
	}
}

// claimed submits a handoff and lets a new holder accept it.
func claimed(t *testing.T, engine broker.Engine) (*broker.Broker, *broker.Claim, protocol.Holder) {
	t.Helper()
	b, holder := offered(t, engine)
	return b, claim(t, b, holder), holder
}

// offered submits a handoff to an agent with one holder.
func offered(t *testing.T, engine broker.Engine) (*broker.Broker, protocol.Holder) {
	t.Helper()
	b := brokertest.Over(t, engine)
	brokertest.Register(t, b, "coder")
	brokertest.Submit(t, b, protocol.Package{})
	return b, brokertest.PutHolder(t, b, "coder", 30*time.Second)
}

func claim(t *testing.T, b *broker.Broker, holder protocol.Holder) *broker.Claim {
	t.Helper()
	offers, err := b.Pull(t.Context(), holder.Agent, 1, 0)
	if err != nil || len(offers) != 1 {
		t.Fatalf("pull: %d offers, %v", len(offers), err)
	}
	claim, err := offers[0].Acknowledge(t.Context(), holder, protocol.Ack{Status: protocol.AckAccepted}, true)
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

// lossy is an engine that stores an append and does not say so.
type lossy struct {
	broker.Engine
	silent bool
}

func (l *lossy) Append(ctx context.Context, ticket string, after uint64, id string, says lifecycle.Attention, body []byte) (uint64, error) {
	seq, err := l.Engine.Append(ctx, ticket, after, id, says, body)
	if l.silent {
		return 0, context.DeadlineExceeded
	}
	return seq, err
}

// A result whose append was stored without an answer is handed in again, and is
// neither lost nor late.
func TestResultHandedInTwice(t *testing.T) {
	ctx := t.Context()
	engine := &lossy{Engine: brokertest.NewMemory()}
	b, claim, _ := claimed(t, engine)
	engine.silent = true
	if err := claim.Complete(ctx, done); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("without an answer: %v", err)
	}
	engine.silent = false
	for range 2 {
		if err := claim.Complete(ctx, done); err != nil {
			t.Errorf("again: %v", err)
		}
	}
	if changes, err := b.History(ctx, claim.Ticket); err != nil || len(changes) != 3 {
		t.Errorf("%d entries, %v; want submitted, accepted, completed", len(changes), err)
	}
}

// An acceptance whose append was stored without an answer is repeated by its worker, or the
// offer is delivered again after the worker let it go: the worker gets the claim that stands.
func TestAcceptanceWithoutAnAnswer(t *testing.T) {
	for name, again := range map[string]func(t *testing.T, b *broker.Broker, offer *broker.Offer) *broker.Offer{
		"repeated": func(_ *testing.T, _ *broker.Broker, offer *broker.Offer) *broker.Offer { return offer },
		"delivered again": func(t *testing.T, b *broker.Broker, offer *broker.Offer) *broker.Offer {
			if err := offer.Release(); err != nil {
				t.Fatal(err)
			}
			return pullOne(t, b, offer.Agent)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			engine := &lossy{Engine: brokertest.NewMemory()}
			b, holder := offered(t, engine)
			offer := pullOne(t, b, holder.Agent)
			engine.silent = true
			if _, err := offer.Acknowledge(ctx, holder, protocol.Ack{Status: protocol.AckAccepted}, true); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("without an answer: %v", err)
			}
			engine.silent = false
			claim, err := again(t, b, offer).Acknowledge(ctx, holder, protocol.Ack{Status: protocol.AckAccepted}, true)
			if err != nil {
				t.Fatalf("again: %v", err)
			}
			if err := claim.Complete(ctx, done); err != nil {
				t.Errorf("complete: %v", err)
			}
			if changes, err := b.History(ctx, claim.Ticket); err != nil || len(changes) != 3 {
				t.Errorf("%d entries, %v; want submitted, accepted, completed", len(changes), err)
			}
		})
	}
}

// A holder that polls has its work by its lease: an offer that is delivered to it again is
// not given out twice.
func TestPollingHolderKeepsItsOneClaim(t *testing.T) {
	ctx := t.Context()
	engine := &lossy{Engine: brokertest.NewMemory()}
	b, holder := offered(t, engine)
	holder.Polling = true
	offer := pullOne(t, b, holder.Agent)
	engine.silent = true
	if _, err := offer.Acknowledge(ctx, holder, protocol.Ack{Status: protocol.AckAccepted}, true); err == nil {
		t.Fatal("an acceptance without an answer was confirmed")
	}
	engine.silent = false
	if err := offer.Release(); err != nil {
		t.Fatal(err)
	}
	if _, err := pullOne(t, b, holder.Agent).Acknowledge(ctx, holder, protocol.Ack{Status: protocol.AckAccepted}, true); !errors.Is(err, broker.ErrOfferGone) {
		t.Errorf("delivered again: %v, want %v", err, broker.ErrOfferGone)
	}
}

func pullOne(t *testing.T, b *broker.Broker, agent string) *broker.Offer {
	t.Helper()
	offers, err := b.Pull(t.Context(), agent, 1, 5*time.Second)
	if err != nil || len(offers) != 1 {
		t.Fatalf("pull: %d offers, %v", len(offers), err)
	}
	return offers[0]
}
