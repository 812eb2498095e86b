package broker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// weighing is an engine that counts the bytes of what it stores of handoffs.
type weighing struct {
	broker.Engine
	ledger, offers atomic.Int64
}

func (w *weighing) Append(ctx context.Context, ticket string, after uint64, id string, says lifecycle.Attention, body []byte) (uint64, error) {
	w.ledger.Add(int64(len(body)))
	return w.Engine.Append(ctx, ticket, after, id, says, body)
}

func (w *weighing) PutOffer(ctx context.Context, key broker.OfferKey, body []byte) error {
	w.offers.Add(int64(len(body)))
	return w.Engine.PutOffer(ctx, key, body)
}

// costs is what one handoff has cost, from its submission to its end.
type costs struct {
	requests       string
	ledger, offers int64
}

// fleetOfCosts is a coder and a tester, and what they ask of the engine.
type fleetOfCosts struct {
	*testing.T
	b      *broker.Broker
	counts *brokertest.CountingEngine
	bytes  *weighing
	holder protocol.Holder
	tester protocol.Holder
}

func newFleetOfCosts(t *testing.T) *fleetOfCosts {
	t.Helper()
	bytes := &weighing{Engine: brokertest.NewMemory()}
	f := &fleetOfCosts{T: t, counts: brokertest.NewCountingEngine(bytes), bytes: bytes}
	now := time.Now().Truncate(time.Second) // instants of one length
	b, err := broker.New(f.counts, broker.Config{Now: func() time.Time { return now }})
	f.b = b
	f.must(err)
	brokertest.Register(t, f.b, "lead", "coder", "tester")
	f.holder = brokertest.PutHolder(t, f.b, "coder", time.Minute)
	f.tester = brokertest.PutHolder(t, f.b, "tester", time.Minute)
	_, _, err = f.b.Fleet(t.Context()) // its settings are known for a while: a process asks a few times a second
	f.must(err)
	return f
}

func (f *fleetOfCosts) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// begin counts anew.
func (f *fleetOfCosts) begin() {
	f.counts.TakeCounts()
	f.bytes.ledger.Store(0)
	f.bytes.offers.Store(0)
}

func (f *fleetOfCosts) end() costs {
	return costs{f.counts.TakeCounts(), f.bytes.ledger.Load(), f.bytes.offers.Load()}
}

// one is a handoff from its submission to its end. between is what happens before it is offered.
func (f *fleetOfCosts) one(pkg protocol.Package, between func(ticket string)) (ticket string, _ costs) {
	f.Helper()
	f.begin()
	head := brokertest.Submit(f, f.b, pkg)
	if between != nil {
		between(head.Ticket)
	}
	f.must(claim(f.T, f.b, f.holder).Complete(f.Context(), protocol.Result{}))
	return head.Ticket, f.end()
}

// check compares what something costs with what it may.
func (f *fleetOfCosts) check(what string, is, plain costs, requests string, mostLedger, mostOffers int64) {
	f.Helper()
	ledger, offers := is.ledger-plain.ledger, is.offers-plain.offers
	f.Logf("%s: %s; %+d B of ledger, %+d B of offer", what, is.requests, ledger, offers)
	if is.requests != requests {
		f.Errorf("%s asks for: %s; it was: %s", what, is.requests, requests)
	}
	if ledger > mostLedger || offers > mostOffers {
		f.Errorf("%s: %d B more in the ledger and %d B in the offer, and may be %d and %d", what, ledger, offers, mostLedger, mostOffers)
	}
}

// TestGovernanceCosts: what a rule costs the handoffs that use it, in requests, and in bytes beside
// those of a handoff that uses none. docs/governance.md has the figures. What a breaker costs is in
// TestBreakerRequests.
func TestGovernanceCosts(t *testing.T) {
	f := newFleetOfCosts(t)
	five, tokens := int64(5), int64(10_000)
	const bare = "append 3, offer 1"
	_, plain := f.one(protocol.Package{}, nil)
	_, is := f.one(protocol.Package{}, nil)
	f.check("none", is, plain, bare, 0, 0)

	_, is = f.one(protocol.Package{Limits: &protocol.Limits{MaxHandoffs: &five, MaxTokens: &tokens}}, nil)
	f.check("limits", is, plain, bare, 360, 125)

	_, is = f.one(protocol.Package{Approval: &protocol.Approval{Required: true}}, func(ticket string) {
		_, err := f.b.Approve(t.Context(), ticket, broker.ApprovalAnswer{By: protocol.Human})
		f.must(err)
	})
	f.check("approval", is, plain, "append 4, directory 3, last 1, next 1, offer 1", 1_800, 250)

	_, is = f.one(protocol.Package{Context: protocol.Context{WorkflowID: "name"}}, nil)
	f.check("workflow that was not opened", is, plain, "append 3, directory 2, offer 1, workspace 1", 170, 75)
	_, err := f.b.OpenWorkspace(t.Context(), "w", protocol.WorkspaceLimits{}, protocol.Human)
	f.must(err)
	ticket, is := f.one(protocol.Package{Context: protocol.Context{WorkflowID: "w"}}, nil)
	f.check("workflow", is, plain, "append 4, append workspace 1, directory 2, last 1, next 1, offer 1, profile 1, workspace 3", 1_450, 185)
	head := headOf(t, f.b, ticket)
	f.begin()
	_, err = f.b.EnsureWorkspace(t.Context(), head)
	f.must(err)
	f.check("end of a place", f.end(), costs{}, "append workspace 1, workspace 1", 0, 0)
}

// TestGovernanceCostsOfChildren: what the limits of a lineage cost its children.
func TestGovernanceCostsOfChildren(t *testing.T) {
	f := newFleetOfCosts(t)
	tokens := int64(10_000)
	var free, freeBack costs
	for _, limits := range []*protocol.Limits{nil, nil, {MaxTokens: &tokens}} { // the first one reads profiles
		brokertest.Submit(t, f.b, protocol.Package{Limits: limits})
		parent := claim(t, f.b, f.holder)
		f.begin()
		child, err := parent.HandOff(t.Context(), broker.Child{Package: protocol.Package{
			Type: protocol.Delegation, Return: &protocol.ReturnProtocol{TimeoutMS: 60_000}, Target: protocol.Target{Agent: "tester"}, Reason: "the plan stands", Task: protocol.Task{Description: "write it"}}})
		f.must(err)
		f.must(claim(t, f.b, f.tester).Complete(t.Context(), protocol.Result{}))
		made := f.end()
		head := headOf(t, f.b, child)
		f.begin()
		f.must(f.b.EnsureReturn(t.Context(), head))
		ended := f.end()
		if limits == nil {
			free, freeBack = made, ended
		} else {
			f.check("child under limits", made, free, free.requests, 400, 70)
			f.check("its return", ended, freeBack, freeBack.requests, 500, 100)
		}
		t.Logf("made: %s; returned: %s", made.requests, ended.requests)
		f.must(claim(t, f.b, f.holder).Complete(t.Context(), protocol.Result{})) // of the return
		f.must(parent.Complete(t.Context(), protocol.Result{}))
	}
}
