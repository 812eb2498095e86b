package broker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
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
	if err := copyOfFirst.Release(ctx, "drain"); err != nil {
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
	b := brokertest.Over(t, engine)
	brokertest.Register(t, b, "coder")
	brokertest.Submit(t, b, protocol.Package{})
	holder := brokertest.PutHolder(t, b, "coder", 30*time.Second)
	return b, claim(t, b, holder), holder
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
