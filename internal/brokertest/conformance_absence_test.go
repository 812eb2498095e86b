package brokertest

import (
	"slices"
	"sync/atomic"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// testAbsenceReturns has an agent without a worker: its handoff goes to a person, and back when a
// worker is there, once, whichever supervisors see it. One that a person has taken stays.
func testAbsenceReturns(k *kit) {
	r := k.familyKit()
	coder := r.registerAgents(1)[0]
	soon := pkg("lead", coder)
	soon.Policy.AckTimeoutMS = new(int64(50))
	back, taken := r.submit(soon).Ticket, r.submit(soon).Ticket
	for _, ticket := range []string{back, taken} {
		r.until("the absence is noticed", func() bool { return r.decide(ticket).State.Agent == protocol.Human })
		if s := r.state(ticket); len(s.Absent) != 1 || s.Absent[0].Agent != coder || s.EscalationLevel != 1 {
			r.Fatalf("the absence of %v at level %d", s.Absent, s.EscalationLevel)
		}
	}
	person := protocol.Holder{ID: protocol.NewTicket(), Agent: protocol.Human, LeaseMS: 600_000, Slots: 1}
	r.must(r.b.Beat(r.ctx, person))
	claim, err := r.b.Take(r.ctx, taken, person, "")
	r.must(err)

	worker := k.holder(coder)
	r.must(r.b.Beat(r.ctx, worker))
	others := []*broker.Broker{r.b, k.brokerOver(r.Engine), k.brokerOver(r.Engine)}
	var moved atomic.Int32
	r.until("it goes back", func() bool {
		forEachParallel(len(others), func(i int) {
			for _, ticket := range []string{back, taken} {
				if _, appended, err := Update(r.ctx, others[i], ticket, decideAlone); err != nil {
					r.Error(err)
				} else if appended {
					moved.Add(1)
				}
			}
		})
		return r.state(back).Agent == coder
	})
	if moved.Load() != 1 {
		r.Errorf("supervisors made %d appends, want 1", moved.Load())
	}
	want := [][]protocol.EventType{
		{protocol.EventSubmitted, protocol.EventOffered},
		{protocol.EventTimedOut, protocol.EventEscalated, protocol.EventOffered},
		{protocol.EventRerouted, protocol.EventOffered},
	}
	if got := r.entries(back); !slices.EqualFunc(got, want, slices.Equal) {
		r.Errorf("its entries are %v, want %v", got, want)
	}
	if s := r.state(back); s.Absent != nil || s.EscalationLevel != 0 || s.Reroutes != 0 {
		r.Errorf("back, its state has the absence of %v, level %d and %d reroutes", s.Absent, s.EscalationLevel, s.Reroutes)
	}
	if s := r.state(taken); s.Agent != protocol.Human || s.Absent != nil {
		r.Errorf("taken by a person, it is with %s", s.Agent)
	}
	r.must(claim.Complete(r.ctx, protocol.Result{}))
	r.must(r.b.EnsureOffer(r.ctx, r.head(back)))
	r.must(r.accept(coder).Complete(r.ctx, protocol.Result{}))
	if s := r.state(back); s.Outcome != protocol.OutcomeSuccess {
		r.Errorf("it ends as %s", s.Outcome)
	}
}

// answerOffer pulls the next offer for an agent, and acknowledges it otherwise than by accepting it.
func (r *familyKit) answerOffer(agent string, ack protocol.Ack) {
	r.Helper()
	h := r.holder(agent)
	r.must(r.b.Beat(r.ctx, h))
	r.must(r.b.EnsureQueue(r.ctx, agent))
	offers, err := r.b.Pull(r.ctx, agent, 1, waitTimeout)
	if r.must(err); len(offers) != 1 {
		r.Fatalf("%d offers for %s", len(offers), agent)
	}
	_, err = offers[0].Acknowledge(r.ctx, h, ack, true)
	r.must(err)
}

// testDenialFinal denies a permission: that is the end, whatever comes beside it or after it, and
// another fit agent has no offer. Of a denial and a permission at one time one counts.
func testDenialFinal(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(2)
	coder, other := to[0], to[1]
	for _, agent := range to {
		r.must(r.b.PutProfile(r.ctx, protocol.Profile{ID: agent, Capabilities: []protocol.Capability{{ID: "cap-" + coder, Proficiency: 1}}}))
	}
	ask := func() string {
		p := pkg("lead", coder)
		p.RequiredCapabilities = []protocol.RequiredCapability{{ID: "cap-" + coder}}
		ticket := r.submit(p).Ticket
		r.answerOffer(coder, protocol.Ack{Status: protocol.AckConditional, NeedsPermission: []string{"to push"}})
		return ticket
	}
	deny := protocol.Answer{By: "lead", Question: 1, Deny: true, DenyReason: "not on a Friday"}
	ticket := ask()
	s, err := r.b.Answer(r.ctx, ticket, deny)
	r.must(err)
	if s.Outcome != protocol.OutcomeRejected || s.Reason != lifecycle.ReasonDenied || s.Denied != "lead" {
		r.Errorf("denied, it is %s (%s), denied by %q", s.Outcome, s.Reason, s.Denied)
	}
	entries := len(r.entries(ticket))
	if _, err := r.b.Answer(r.ctx, ticket, protocol.Answer{By: "lead", Question: 1, Permit: true}); err == nil {
		r.Error("a permission after the denial is taken")
	}
	if _, appended, err := Update(r.ctx, r.b, ticket, decideAlone); err != nil || appended {
		r.Errorf("a supervisor appends to what was denied: %v", err)
	}
	if got := len(r.entries(ticket)); got != entries {
		r.Errorf("%d entries, and %d when it was denied", got, entries)
	}
	r.noOffers(other)

	both := ask()
	brokers := []*broker.Broker{k.brokerOver(r.Engine), k.brokerOver(r.Engine)}
	var counted atomic.Int32
	forEachParallel(2, func(i int) {
		answer := deny
		if i == 1 {
			answer = protocol.Answer{By: "lead", Question: 1, Permit: true}
		}
		if _, err := brokers[i].Answer(r.ctx, both, answer); err == nil {
			counted.Add(1)
		}
	})
	if counted.Load() != 1 {
		r.Errorf("%d of a denial and a permission are taken, want 1", counted.Load())
	}
	switch s := r.state(both); {
	case s.Closed != (s.Denied != ""):
		r.Errorf("closed: %t, denied by %q", s.Closed, s.Denied)
	case !s.Closed:
		r.must(r.accept(coder).Complete(r.ctx, protocol.Result{}))
	}

	others := ask()
	deny.LetOthers = true
	_, err = r.b.Answer(r.ctx, others, deny)
	r.must(err)
	r.decide(others)
	if s := r.state(others); s.Agent != other || s.Denied != "" {
		r.Errorf("others may decide, and it is with %s", s.Agent)
	}
}
