package broker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// behind is an engine whose leader was just elected and has not caught up: it
// refuses appends to what it does not know yet, and reads old heads.
type behind struct {
	broker.Engine
	conflicts int                     // that it still answers with
	old       map[string]broker.Entry // heads as it has them; others are up to date
}

func (b *behind) Append(ctx context.Context, ticket string, after uint64, id string, says lifecycle.Attention, body []byte) (uint64, error) {
	if b.conflicts > 0 {
		b.conflicts--
		return 0, broker.ErrConflict
	}
	return b.Engine.Append(ctx, ticket, after, id, says, body)
}

func (b *behind) Last(ctx context.Context, ticket string, min uint64) (broker.Entry, error) {
	if e, ok := b.old[ticket]; ok && e.Seq >= min {
		return e, nil
	}
	return b.Engine.Last(ctx, ticket, min)
}

// A conflict after which the head has not moved, and will not, must not leave a
// report waiting for a successor: the holder lives, so nobody else would end it.
func TestReportAfterAConflictWithoutASuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := &behind{Engine: brokertest.NewMemory()}
		b, claim, _ := claimed(t, engine)
		engine.conflicts = 1
		if _, err := b.Cancel(t.Context(), claim.Ticket, "human", "enough"); err != nil {
			t.Fatal(err)
		}
		engine.conflicts = 1
		if err := claim.Complete(t.Context(), protocol.Result{}); err != nil {
			t.Fatal(err)
		}
	})
}

// After a power cut a ledger that was not synced may lack what a claim rests on.
func TestReportToALedgerThatLostItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := &behind{Engine: brokertest.NewMemory()}
		_, claim, _ := claimed(t, engine)
		submitted, err := engine.Next(t.Context(), claim.Ticket, 0)
		if err != nil {
			t.Fatal(err)
		}
		after := brokertest.NewMemory()
		if _, err := after.Append(t.Context(), claim.Ticket, 0, uuid.NewString(), "", submitted.Body); err != nil {
			t.Fatal(err)
		}
		engine.Engine = after
		if err := claim.Complete(t.Context(), protocol.Result{}); !errors.Is(err, broker.ErrLeaseLost) {
			t.Errorf("completion of what the ledger forgot: %v, want ErrLeaseLost", err)
		}
	})
}

// An offer newer than the head that is read is current for all this leader
// knows: it is let go, not removed.
func TestOfferIsNotDroppedByAnOldHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		engine := &behind{Engine: brokertest.NewMemory(), old: map[string]broker.Entry{}}
		b, first, holder := claimed(t, engine)
		submitted, err := engine.Next(ctx, first.Ticket, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := first.Release(ctx, "drain", nil); err != nil { // offered anew
			t.Fatal(err)
		}
		offers, err := b.Pull(ctx, holder.Agent, 1, 0)
		if err != nil || len(offers) != 1 {
			t.Fatalf("pull: %d offers, %v", len(offers), err)
		}
		engine.conflicts, engine.old[first.Ticket] = 1, submitted
		accept := protocol.Ack{Status: protocol.AckAccepted}
		if _, err := offers[0].Acknowledge(ctx, holder, accept, true); !errors.Is(err, broker.ErrOfferGone) {
			t.Fatalf("acknowledged by an old head: %v, want ErrOfferGone", err)
		}
		clear(engine.old)
		again, err := b.Pull(ctx, holder.Agent, 1, 2*broker.AckWait)
		if err != nil || len(again) != 1 || again[0].Sequence != offers[0].Sequence {
			t.Fatalf("the offer does not come again: %d offers, %v", len(again), err)
		}
		if _, err := again[0].Acknowledge(ctx, holder, accept, true); err != nil {
			t.Error(err)
		}
	})
}

// full is an engine that cannot store anything for a while.
type full struct {
	broker.Engine
	refusals int
}

func (f *full) Append(ctx context.Context, ticket string, after uint64, id string, says lifecycle.Attention, body []byte) (uint64, error) {
	if f.refusals > 0 {
		f.refusals--
		return 0, errors.New("no space left on device")
	}
	return f.Engine.Append(ctx, ticket, after, id, says, body)
}

// A result that is refused fails the attempt. Until the ledger has taken that
// nobody must read the refusal as the end of it.
func TestRefusedResultThatCouldNotBeReported(t *testing.T) {
	engine := &full{Engine: brokertest.NewMemory()}
	b, claim, _ := claimed(t, engine)
	engine.refusals = 1
	var refused *protocol.Error
	if err := claim.Complete(t.Context(), protocol.Result{Status: "odd"}); err == nil || errors.As(err, &refused) {
		t.Errorf("while nothing can be stored: %v, want an error worth another try", err)
	}
	if err := claim.Complete(t.Context(), protocol.Result{Status: "odd"}); !errors.As(err, &refused) {
		t.Errorf("then: %v, want the refusal", err)
	}
	if state, err := b.Status(t.Context(), claim.Ticket); err != nil || state.Phase != protocol.PhaseFailed {
		t.Errorf("the attempt is %s, %v; want failed", state.Phase, err)
	}
}

// waiting begins a wait for the end of a handoff, and tells how that ends.
func waiting(t *testing.T, b *broker.Broker, ticket string) <-chan error {
	waited := make(chan error, 1)
	go func() {
		_, err := brokertest.Wait(t.Context(), b, ticket, brokertest.Closed)
		waited <- err
	}()
	synctest.Wait()
	return waited
}

// A wait outlives an engine that is away for a while, but one that was never
// reached is an error.
func TestWaitRidesOutAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := brokertest.NewMemory()
		b, claim, _ := claimed(t, engine)
		waited := waiting(t, b, claim.Ticket)
		engine.Disconnect()
		if _, err := brokertest.Wait(t.Context(), b, claim.Ticket, brokertest.Closed); !errors.Is(err, broker.ErrUnreachable) {
			t.Errorf("a first read with the engine away: %v, want ErrUnreachable", err)
		}
		time.Sleep(time.Minute) // the bubble's clock: nothing waits
		engine.Reconnect()
		if err := claim.Complete(t.Context(), protocol.Result{}); err != nil {
			t.Fatal(err)
		}
		if err := <-waited; err != nil {
			t.Error(err)
		}
	})
}

// Nobody waits on a broker whose engine this process has closed.
func TestWaitEndsWithItsEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := brokertest.NewMemory()
		b, claim, _ := claimed(t, engine)
		waited := waiting(t, b, claim.Ticket)
		if err := engine.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-waited; !errors.Is(err, broker.ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
	})
}
