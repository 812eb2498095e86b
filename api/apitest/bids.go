package apitest

import (
	"errors"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// testBids: two agents are asked for bids, each by a handoff of its own, and the cheaper one gets the
// work.
func testBids(t *testing.T, w *world) {
	bidders := []string{"coder", "stranger"}
	for _, agent := range bidders {
		w.must(w.Broker.PutProfile(w.ctx, protocol.Profile{ID: agent, Bids: true, Capabilities: []protocol.Capability{{ID: "translate", Proficiency: 1}}}))
	}
	lead, pkg := w.Source(t, "lead"), newPackage("", "bids")
	pkg.Target.Capability, pkg.Bids = "translate", &protocol.Bids{WindowMS: timeout.Milliseconds(), Least: 3}
	_, err := lead.Submit(w.ctx, pkg)
	w.wantCode("bids of three agents, where two bid", err, protocol.CodeNoAgent)
	pkg.Bids.Least = len(bidders)
	state, err := lead.Submit(w.ctx, pkg)
	for errors.Is(err, &protocol.Error{Code: protocol.CodeNoAgent}) && w.ctx.Err() == nil { // a gateway hears of profiles a moment later
		time.Sleep(10 * time.Millisecond)
		state, err = lead.Submit(w.ctx, pkg)
	}
	w.must(err)
	ticket := state.Ticket
	if state.Gate == nil || state.Bidding == nil || len(state.Bidding.Calls) != len(bidders) {
		t.Fatalf("it waits for %+v, of %+v", state.Gate, state.Bidding)
	}
	cost := map[string]int64{"coder": 10, "stranger": 20}
	for _, agent := range bidders {
		h := w.Holder(t, agent)
		held, err := h.Claim(w.ctx, api.Claim{Agent: agent, Wait: timeout, Lease: lease, Accept: true})
		w.must(err)
		called, err := protocol.DecodePackage(held.Package)
		w.must(err)
		call, err := protocol.ReadCall(called)
		w.must(err)
		if held.State.CallOf != ticket || call.Ticket != ticket || call.Description != pkg.Task.Description {
			t.Errorf("%s is asked %+v, for %s", agent, call, held.State.CallOf)
		}
		price := cost[agent]
		bid, err := protocol.Marshal(protocol.Bid{CostMicros: &price})
		w.must(err)
		_, err = h.Complete(w.ctx, held.Lease, protocol.Result{Status: protocol.Success, Body: bid})
		w.must(err)
	}
	head, err := w.Broker.Head(w.ctx, ticket, 0)
	w.must(err)
	_, err = w.Broker.EnsureBids(w.ctx, head) // as a supervisor does
	w.must(err)
	if state, err = lead.Status(w.ctx, ticket); err != nil || state.Bidding.Winner != "coder" || state.Agent != "coder" {
		t.Errorf("%v, the winner is %q, and it goes to %q", err, state.Bidding.Winner, state.Agent)
	}
	if held := w.claim(w.Holder(t, "coder")); held.State.Ticket != ticket {
		t.Errorf("the winner gets %s, want %s", held.State.Ticket, ticket)
	}
}
