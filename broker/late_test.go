package broker_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

var done = protocol.Result{Body: json.RawMessage(`"done"`)}

// A result counts as late where the handoff was taken from its holder, and
// only then: a result that is submitted twice is recognized, and one after the holder has let go is
// kept nowhere.
func TestParkLateKeepsWhatCameLate(t *testing.T) {
	ctx := t.Context()
	for name, end := range map[string]func(*broker.Broker, *broker.Claim) error{
		"still held": func(*broker.Broker, *broker.Claim) error { return nil },
		"completed":  func(_ *broker.Broker, c *broker.Claim) error { return c.Complete(ctx, done) },
		"failed": func(_ *broker.Broker, c *broker.Claim) error {
			return c.Fail(ctx, broker.Failure{Code: "x", Message: "x"})
		},
		"released": func(_ *broker.Broker, c *broker.Claim) error { return c.Release(ctx, "x", nil) },
		"refused": func(_ *broker.Broker, c *broker.Claim) error {
			return c.Acknowledge(ctx, protocol.Ack{Status: protocol.AckRejected, Reason: "x"}, false)
		},
		"escalated":   func(_ *broker.Broker, c *broker.Claim) error { return c.Escalate(ctx, "x", "") },
		"rolled back": func(_ *broker.Broker, c *broker.Claim) error { return c.RollBack(ctx, "x", nil) },
		"taken from it": func(b *broker.Broker, c *broker.Claim) error {
			_, err := b.Reroute(ctx, c.Ticket, protocol.Human, "human", "x", time.Time{})
			return err
		},
	} {
		b, claim, _ := claimed(t, brokertest.NewMemory())
		if err := end(b, claim); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := map[string]broker.Late{"taken from it": broker.LateKept, "completed": broker.LateRepeated}[name]
		for range 2 {
			if became, err := b.ParkLate(ctx, claim.Lease(), done); err != nil || became != want {
				t.Errorf("%s: %v (%v), want %v", name, became, err, want)
			}
		}
		if became, err := b.ParkLate(ctx, claim.Lease(), protocol.Result{Body: json.RawMessage(`"other"`)}); err != nil || became == broker.LateRepeated {
			t.Errorf("%s: another result: %v (%v)", name, became, err)
		}
		late, err := b.LateResults(ctx, claim.Ticket)
		if err != nil || (len(late) == 1) != (want == broker.LateKept) {
			t.Errorf("%s: %d late results (%v)", name, len(late), err)
		}
	}
}

// What there was of a result at a rollback, and a late one that was used, are
// the handoff's result.
func TestResultOfEveryKind(t *testing.T) {
	ctx := t.Context()
	b, claim, _ := claimed(t, brokertest.NewMemory())
	if err := claim.RollBack(ctx, "the spec is wrong", &protocol.Result{Status: protocol.Partial, Body: json.RawMessage(`"half"`)}); err != nil {
		t.Fatal(err)
	}
	if result, _, err := b.Result(ctx, claim.Ticket); err != nil || string(result.Body) != `"half"` {
		t.Errorf("after a rollback the result is %s, %v", result.Body, err)
	}

	b, claim, _ = claimed(t, brokertest.NewMemory())
	if _, err := b.Reroute(ctx, claim.Ticket, protocol.Human, protocol.Human, "", time.Time{}); err != nil {
		t.Fatal(err)
	}
	if kept, err := b.ParkLate(ctx, claim.Lease(), done); err != nil || kept != broker.LateKept {
		t.Fatalf("kept %v, %v", kept, err)
	}
	if _, _, err := brokertest.Update(ctx, b, claim.Ticket, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.StepOf(h.State, &protocol.LateResultUsed{Meta: protocol.Meta{At: q.Now}, Seq: h.State.LateSeq})
	}); err != nil {
		t.Fatal(err)
	}
	if result, state, err := b.Result(ctx, claim.Ticket); err != nil || string(result.Body) != `"done"` || state.Outcome != protocol.OutcomeSuccess {
		t.Errorf("a late result that was used is %s of %s, %v", result.Body, state.Outcome, err)
	}
}

// Whoever claims a redrive, and a redrive of that, reads what happened before.
func TestRedriveKeepsTheTrail(t *testing.T) {
	ctx := t.Context()
	b, first, holder := claimed(t, brokertest.NewMemory())
	ticket, words := first.Ticket, []string{"no ink"}
	if err := first.Fail(ctx, broker.Failure{Code: "x", Message: "no ink"}); err != nil {
		t.Fatal(err)
	}
	for _, next := range []string{"no paper", "no pen"} {
		if _, err := b.Cancel(ctx, ticket, "human", ""); err != nil {
			t.Fatal(err)
		}
		again, err := b.Redrive(ctx, ticket, "", "human", false)
		if err != nil {
			t.Fatal(err)
		}
		got := claim(t, b, holder)
		words = append(words, "redrive of "+ticket)
		var trail []string
		for _, entry := range got.Trail {
			trail = append(trail, entry.Words)
		}
		if got.Ticket != again.Ticket || !slices.Equal(trail, words) {
			t.Errorf("the trail is %q, want %q", trail, words)
		}
		if err := got.Fail(ctx, broker.Failure{Code: "x", Message: next}); err != nil {
			t.Fatal(err)
		}
		ticket, words = got.Ticket, append(words, next)
	}
}
