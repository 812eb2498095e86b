package brokertest

import (
	"fmt"
	"slices"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// registerBidders registers agents that make bids, with a capability of their own.
func (r *familyKit) registerBidders(n int) (capability string, names []string) {
	r.Helper()
	capability = "skill-" + protocol.NewTicket()[:8]
	names = make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("bidder%d-%s", i, protocol.NewTicket()[:8])
		r.must(r.b.PutProfile(r.ctx, protocol.Profile{ID: names[i], Bids: true, Capabilities: []protocol.Capability{{ID: capability, Proficiency: 1}}}))
	}
	r.until("the bidders are known", func() bool {
		d, err := r.b.Directory(r.ctx)
		r.must(err)
		return !slices.ContainsFunc(names, func(name string) bool { _, known := d.Agents[name]; return !known })
	})
	return capability, names
}

// ensureBids has two processes see to the bids for a handoff, four times each.
func (r *familyKit) ensureBids(ticket string) protocol.State {
	r.Helper()
	two := []*broker.Broker{r.b, r.brokerOver(r.Engine)}
	head := r.head(ticket)
	forEachParallel(8, func(i int) {
		if _, err := two[i%2].EnsureBids(r.ctx, head); err != nil {
			r.Error(err)
		}
	})
	return r.state(ticket)
}

func (r *familyKit) bid(agent string, body string) string {
	r.Helper()
	call := r.accept(agent)
	if call.State().CallOf == "" || call.State().Source != protocol.System {
		r.Fatalf("%s gets %s of %s, which is no call", agent, call.Ticket, call.State().Source)
	}
	r.must(call.Complete(r.ctx, protocol.Result{ContentType: "json", Body: []byte(body)}))
	return call.Ticket
}

// testBids: whatever processes see to it, agents are called once, one gets the handoff, and all that
// have made a bid are told.
func testBids(k *kit) {
	r := k.familyKit()
	capability, names := r.registerBidders(4)
	ticket := r.submit(protocol.Package{Source: names[3], Target: protocol.Target{Capability: capability}, Reason: "conformance",
		Task: protocol.Task{Description: "do it"}, Bids: &protocol.Bids{WindowMS: 600_000}}).Ticket
	if s := r.ensureBids(ticket); s.Phase != protocol.AwaitingApproval || s.Bidding == nil || len(s.Bidding.Calls) != 3 {
		r.Fatalf("it is %s, with the calls %+v", s.Phase, s.Bidding)
	}
	calls := map[string]string{names[0]: r.bid(names[0], `{"cost_micros":300}`), names[1]: r.bid(names[1], `{"cost_micros":100}`)}
	if s := r.ensureBids(ticket); s.Phase != protocol.AwaitingApproval {
		r.Fatalf("with two of three bids it is %s", s.Phase)
	}
	calls[names[2]] = r.bid(names[2], `{"cost_micros":200,"valid_ms":600000,"conditions":["the tests run"]}`)
	s := r.ensureBids(ticket)
	if s.Agent != names[1] || s.Phase != protocol.Pending || s.Bidding.Winner != names[1] || len(s.Bidding.Bids) != 3 {
		r.Fatalf("it is %s at %s, with %+v", s.Phase, s.Agent, s.Bidding)
	}
	r.ensureBids(ticket)
	if n := count(r.entries(ticket), protocol.EventAwarded); n != 1 {
		r.Errorf("it was awarded %d times: %v", n, r.entries(ticket))
	}
	for agent, call := range calls {
		forEachParallel(4, func(int) {
			if _, err := r.b.EnsureBids(r.ctx, r.head(call)); err != nil {
				r.Error(err)
			}
		})
		want := protocol.BidLost
		if agent == names[1] {
			want = protocol.BidWon
		}
		if s := r.state(call); s.BidAnswer != want || lifecycle.HasPendingDuties(s) || count(r.entries(call), protocol.EventBidAnswered) != 1 {
			r.Errorf("%s is told %q, in %v; want %q", agent, s.BidAnswer, r.entries(call), want)
		}
	}
	// The winner refuses, and the next bid follows.
	r.answerOffer(names[1], protocol.Ack{Status: protocol.AckRejected, Reason: "too much to do"})
	r.decide(ticket)
	if s := r.state(ticket); s.Agent != names[2] || s.Phase != protocol.Pending {
		r.Errorf("after a refusal it is %s at %s, want %s", s.Phase, s.Agent, names[2])
	}
	if claim := r.accept(names[2]); claim.Ticket != ticket {
		r.Errorf("%s gets %s, want %s", names[2], claim.Ticket, ticket)
	}
}

func count(entries [][]protocol.EventType, kind protocol.EventType) (n int) {
	for _, e := range slices.Concat(entries...) {
		if e == kind {
			n++
		}
	}
	return n
}

// testBidsInTime: with the end of the window the bids that are there count, the other calls are
// cancelled, and what is no bid is none.
func testBidsInTime(k *kit) {
	r := k.familyKit()
	capability, names := r.registerBidders(3)
	ticket := r.submit(protocol.Package{Source: "src", Target: protocol.Target{Capability: capability}, Reason: "conformance",
		Task: protocol.Task{Description: "do it"}, Bids: &protocol.Bids{WindowMS: 3_000}}).Ticket
	r.ensureBids(ticket)
	bid := r.bid(names[0], `{"cost_micros":300}`)
	held := r.accept(names[1])
	var s protocol.State
	r.until("the window is over", func() bool { s = r.ensureBids(ticket); return s.Phase != protocol.AwaitingApproval })
	if s.Agent != names[0] || s.Phase != protocol.Pending || s.Bidding.AwardedAt.Before(s.Bidding.Until) {
		r.Fatalf("it is %s at %s, with %+v", s.Phase, s.Agent, s.Bidding)
	}
	if s := r.state(bid); s.BidAnswer != protocol.BidWon {
		r.Errorf("the bidder is told %q", s.BidAnswer)
	}
	if s := r.state(held.Ticket); !s.CancelRequested {
		r.Errorf("the call in the hands of %s goes on: %s", names[1], s.Phase)
	}
	if s := r.state(protocol.CallTicket(ticket, slices.Index(r.state(ticket).Bidding.Calls, names[2]))); !s.Closed || s.Outcome != protocol.OutcomeCancelled {
		r.Errorf("the call that no agent took is %s", s.Phase)
	}
}

// testBidsCancelled: the calls of a handoff that closes while it waits for bids are cancelled.
func testBidsCancelled(k *kit) {
	r := k.familyKit()
	capability, names := r.registerBidders(2)
	ticket := r.submit(protocol.Package{Source: "src", Target: protocol.Target{Capability: capability}, Reason: "conformance",
		Task: protocol.Task{Description: "do it"}, Bids: &protocol.Bids{WindowMS: 600_000}}).Ticket
	bid := r.bid(names[0], `{"confidence":0.5}`)
	_, err := r.b.CancelTree(r.ctx, ticket, "src", "enough")
	r.must(err)
	r.decide(ticket)
	head := r.head(ticket)
	if !head.State.Closed {
		r.Fatalf("it is %s", head.State.Phase)
	}
	r.ensureBids(ticket)
	r.ensureBids(bid)
	if s := r.state(bid); s.BidAnswer != protocol.BidLost {
		r.Errorf("the bidder is told %q", s.BidAnswer)
	}
	for n := range head.State.Bidding.Calls {
		if s := r.state(protocol.CallTicket(ticket, n)); !s.Closed {
			r.Errorf("call %d is %s", n, s.Phase)
		}
	}
	_, err = r.trySubmit(protocol.Package{Source: "src", Target: protocol.Target{Capability: capability}, Reason: "conformance",
		Task: protocol.Task{Description: "do it"}, Bids: &protocol.Bids{Least: 3, Most: 3}})
	r.wantErr(err, &protocol.Error{Code: protocol.CodeNoAgent})
}
