package broker_test

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/brokertest"
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
	for _, ended := range []string{lease, forged} { // of both nobody can tell any more
		if _, err := b.Resume(ctx, ended); !errors.Is(err, broker.ErrLeaseLost) {
			t.Errorf("after the end: %v, want a lost lease", err)
		}
	}
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
