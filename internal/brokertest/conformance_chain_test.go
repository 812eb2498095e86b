package brokertest

import (
	"fmt"
	"slices"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// handOn completes the handoff that an agent accepts next, and goes to another.
func (r *familyKit) handOn(agent, to string) {
	r.Helper()
	r.must(r.accept(agent).Complete(r.ctx, protocol.Result{Body: []byte(`"by ` + agent + `"`), Tokens: 10, Command: goTo(to)}))
}

func goTo(agent string) *protocol.Command {
	return &protocol.Command{Goto: fmt.Appendf(nil, "%q", agent)}
}

// ensureEnd has two processes see to the end of a handoff, four times each.
func (r *familyKit) ensureEnd(ticket string) {
	r.Helper()
	two := []*broker.Broker{r.b, r.brokerOver(r.Engine)}
	head := r.head(ticket)
	forEachParallel(8, func(i int) {
		if err := two[i%2].EnsureReturn(r.ctx, head); err != nil {
			r.Error(err)
		}
	})
}

func testChainEndsOnce(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(5)
	for _, fails := range []bool{false, true} {
		origin := r.submit(delegated(pkg(to[0], to[1]))).Ticket
		for n := 1; n < 4; n++ {
			r.handOn(to[n], to[n+1])
			r.ensureEnd(origin)
			if s := r.state(origin); s.ReturnTicket != "" || s.ChainEnd != nil || !lifecycle.HasPendingDuties(s) {
				r.Fatalf("after agent %d the end is told: %+v", n, s.ChainEnd)
			}
		}
		if _, err := r.b.Return(r.ctx, origin); err == nil {
			r.Error("the return of a chain that has not ended is read")
		}
		last, err := r.b.LastOfChain(r.ctx, origin)
		r.must(err)
		claim := r.accept(to[4])
		if claim.Ticket != last.Ticket || claim.Ticket != protocol.ChildTicketN(protocol.ChildTicketN(protocol.ChildTicketN(origin, 0), 0), 0) {
			r.Fatalf("the last of the chain is %s, and %s has %s", last.Ticket, to[4], claim.Ticket)
		}
		outcome, phase := protocol.OutcomeSuccess, protocol.Complete
		if fails {
			outcome, phase = protocol.OutcomeFailed, protocol.PhaseFailed
			r.must(claim.Fail(r.ctx, broker.Failure{Code: "no", Message: "cannot be done"}))
			r.decide(claim.Ticket)
		} else {
			r.must(claim.Complete(r.ctx, protocol.Result{Body: []byte(`"the last word"`), Tokens: 10}))
		}
		if s := r.state(claim.Ticket); s.Phase != phase || s.ReturnTicket != "" || lifecycle.HasPendingDuties(s) {
			r.Errorf("the last of the chain is %s and owes %t", s.Phase, lifecycle.HasPendingDuties(s))
		}
		r.ensureEnd(origin)
		r.ensureEnd(origin)
		r.awaitDepth(to[0], 1)
		r.checkChainReturn(r.accept(to[0]), origin, claim.Ticket, to[4], outcome)
		r.ensureEnd(origin)
		ends := slices.Concat(r.entries(origin)...)
		if n := len(slices.DeleteFunc(ends, func(e protocol.EventType) bool { return e != protocol.EventChainEnded && e != protocol.EventReturned })); n != 2 {
			r.Errorf("the end was told %d times: %v", n, r.entries(origin))
		}
		if s := r.state(origin); s.Phase != protocol.PhaseReturned || s.Outcome != protocol.OutcomeSuccess || lifecycle.HasPendingDuties(s) {
			r.Errorf("the first of the chain is %s (%s)", s.Phase, s.Outcome)
		}
		r.noOffers(to[0])
	}
}

// checkChainReturn checks the return of a chain, which its source has in hand, and completes it.
func (r *familyKit) checkChainReturn(claim *broker.Claim, origin, last, agent string, outcome protocol.Outcome) {
	r.Helper()
	got, err := protocol.DecodePackage(claim.Package)
	r.must(err)
	ret := got.Returned
	if ret == nil || ret.HandoffID != origin || ret.LastID != last || ret.FromAgent != agent || ret.Outcome != outcome || ret.PackageDigest != r.state(origin).Digest {
		r.Fatalf("the return is %+v", ret)
	}
	if outcome == protocol.OutcomeSuccess && (string(ret.Result.Body) != `"the last word"` || ret.Audit.TokensConsumed != 40) {
		r.Errorf("the return has %s and %d tokens", ret.Result.Body, ret.Audit.TokensConsumed)
	}
	read, err := r.b.Return(r.ctx, origin)
	if r.must(err); read.LastID != last || read.Outcome != outcome {
		r.Errorf("the return is read as %+v", read)
	}
	r.must(claim.Complete(r.ctx, protocol.Result{}))
}

func testMembersEndWithTheirChains(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(3)
	for _, of := range []protocol.ReturnScope{"", protocol.ReturnOfHandoff} {
		p := pkg("lead", to[0], to[1])
		p.Return = &protocol.ReturnProtocol{Of: of}
		group := r.submit(p).Ticket
		r.handOn(to[0], to[2])
		r.must(r.accept(to[1]).Complete(r.ctx, protocol.Result{Body: []byte(`"plain"`)}))
		ended, err := r.ensureChildren(r.head(group))
		r.must(err)
		first := protocol.ChildTicketN(group, 0)
		if known := slices.ContainsFunc(ended, func(c protocol.ChildClosed) bool { return c.N == 0 }); known != (of == protocol.ReturnOfHandoff) {
			r.Errorf("return.of %q: the ends are %v", of, ended)
		}
		last := r.accept(to[2])
		r.must(last.Complete(r.ctx, protocol.Result{Body: []byte(`"reviewed"`)}))
		r.ensureEnd(first)
		if of == protocol.ReturnOfHandoff {
			continue
		}
		ended, err = r.ensureChildren(r.head(group))
		if r.must(err); len(ended) != 2 {
			r.Errorf("the ends are %v", ended)
		}
		members, err := r.b.Members(r.ctx, r.state(group))
		if r.must(err); members[0].Ticket != first || members[0].LastID != last.Ticket || members[0].Agent != to[2] || string(members[0].Result.Body) != `"reviewed"` {
			r.Errorf("the first member is %+v", members[0])
		}
	}
}
