package broker_test

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
)

// renamed is the lease with another agent's name in it, and all else as it was.
func renamed(t *testing.T, lease, agent, other string) string {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(lease, "lease_"))
	if err != nil {
		t.Fatal(err)
	}
	return "lease_" + base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(raw), agent, other, 1)))
}

// A lease that names another agent was never given out: whoever resumed it would
// beat, and accept, in that agent's name.
func TestResumeWithAnotherAgentsName(t *testing.T) {
	ctx := t.Context()
	b, claim, _ := claimed(t, brokertest.NewMemory())
	lease := claim.Lease()
	forged := renamed(t, lease, "coder", "ghost")
	var refused *protocol.Error
	if _, err := b.Resume(ctx, forged); !errors.As(err, &refused) || refused.Code != protocol.CodeLeaseInvalid {
		t.Errorf("forged: %v, want %s", err, protocol.CodeLeaseInvalid)
	}
	again, err := b.Resume(ctx, lease)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Complete(ctx, protocol.Result{}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Resume(ctx, lease); !errors.Is(err, broker.ErrLeaseLost) {
		t.Errorf("after the end: %v, want a lost lease", err)
	}
	if _, err := b.Resume(ctx, forged); !errors.As(err, &refused) || refused.Code != protocol.CodeLeaseInvalid {
		t.Errorf("forged, after the end: %v, want %s", err, protocol.CodeLeaseInvalid)
	}
}

// A made-up lease gets the same answer whether its handoff exists or not, open or
// ended, after the same number of reads.
func TestMadeUpLeaseTellsNothing(t *testing.T) {
	ctx := t.Context()
	engine := &countingReads{Engine: brokertest.NewMemory()}
	claimed(t, engine) // an offer before its own
	b, claim, _ := claimed(t, engine)
	token, err := broker.ParseLease(claim.Lease())
	if err != nil {
		t.Fatal(err)
	}
	answer := func(token broker.LeaseToken) (said string, reads int) {
		before := engine.reads
		_, err := b.Resume(ctx, token.String())
		reads = engine.reads - before
		var refused *protocol.Error
		if !errors.As(err, &refused) || refused.Code != protocol.CodeLeaseInvalid || errors.Is(err, broker.ErrLeaseLost) {
			t.Fatalf("%+v: %v", token, err)
		}
		ending, endingErr := b.EndingOf(ctx, token)
		kept, keptErr := b.ParkLate(ctx, token.String(), protocol.Result{Body: []byte("1")})
		if ending.Event != nil || ending.Fence != 0 || endingErr != nil || kept != broker.LateDropped || keptErr != nil {
			t.Errorf("%+v: %+v, %v; kept %v, %v", token, ending, endingErr, kept, keptErr)
		}
		return refused.Error(), reads
	}
	madeUp := map[string]func(*broker.LeaseToken){
		"another holder":               func(t *broker.LeaseToken) { t.Holder = protocol.NewTicket() },
		"another agent":                func(t *broker.LeaseToken) { t.Agent = "ghost" },
		"an earlier offer":             func(t *broker.LeaseToken) { t.Offer-- },
		"a later offer":                func(t *broker.LeaseToken) { t.Offer += 1 << 62 },
		"another holder and offer":     func(t *broker.LeaseToken) { t.Holder, t.Offer = protocol.NewTicket(), 1<<63 },
		"the slot of another, as well": func(t *broker.LeaseToken) { t.Holder, t.Slot = protocol.NewTicket(), true },
	}
	check := func(when string) {
		t.Helper()
		for what, change := range madeUp {
			there, nowhere := token, token
			change(&there)
			nowhere.Ticket = protocol.NewTicket()
			change(&nowhere)
			said, reads := answer(there)
			saidNowhere, readsNowhere := answer(nowhere)
			if said != saidNowhere {
				t.Errorf("%s, %s: an existing ticket says %q, another %q", when, what, said, saidNowhere)
			}
			if there.Offer != token.Offer && reads != readsNowhere {
				t.Errorf("%s, %s: an existing ticket costs %d reads, another %d", when, what, reads, readsNowhere)
			}
		}
	}
	check("held")
	if err := claim.Complete(ctx, protocol.Result{}); err != nil {
		t.Fatal(err)
	}
	check("ended")
	if _, err := b.Resume(ctx, token.String()); !errors.Is(err, broker.ErrLeaseLost) {
		t.Errorf("its holder is told %v, want a lost lease", err)
	}
}

// countingReads counts what is read of the ledger.
type countingReads struct {
	broker.Engine
	reads int
}

func (e *countingReads) Last(ctx context.Context, ticket string, min uint64) (broker.Entry, error) {
	e.reads++
	return e.Engine.Last(ctx, ticket, min)
}

func (e *countingReads) Next(ctx context.Context, ticket string, after uint64) (broker.Entry, error) {
	e.reads++
	return e.Engine.Next(ctx, ticket, after)
}

// How a holder let go is told to whoever has its lease, and to nobody else.
func TestEndingOf(t *testing.T) {
	ctx := t.Context()
	b, claim, _ := claimed(t, brokertest.NewMemory())
	lease, err := broker.ParseLease(claim.Lease())
	if err != nil || lease.String() != claim.Lease() || lease.Ticket != claim.Ticket || lease.Agent != claim.Agent {
		t.Fatalf("%+v, %v", lease, err)
	}
	if ending, err := b.EndingOf(ctx, lease); err != nil || ending.Event != nil {
		t.Errorf("before the end: %+v, %v", ending, err)
	}
	fence := claim.Fence()
	if err := claim.Complete(ctx, protocol.Result{}); err != nil {
		t.Fatal(err)
	}
	ending, err := b.EndingOf(ctx, lease)
	if _, completed := ending.Event.(*protocol.Completed); err != nil || !completed || ending.Fence != fence {
		t.Errorf("after it: %+v, %v", ending, err)
	}
	for _, other := range []broker.LeaseToken{
		{Ticket: lease.Ticket, Agent: "ghost", Offer: lease.Offer, Holder: lease.Holder},
		{Ticket: lease.Ticket, Agent: lease.Agent, Offer: lease.Offer + 1, Holder: lease.Holder},
		{Ticket: lease.Ticket, Agent: lease.Agent, Offer: lease.Offer, Holder: protocol.NewTicket()},
	} {
		if ending, err := b.EndingOf(ctx, other); err != nil || ending.Event != nil || ending.Fence != 0 {
			t.Errorf("%+v: %+v, %v", other, ending, err)
		}
	}
}
