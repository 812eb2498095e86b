package brokertest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// handOn completes the handoff that an agent accepts next, and goes to another.
func (r *familyKit) handOn(agent, to string) {
	r.Helper()
	r.must(r.accept(agent).Complete(r.ctx, protocol.Result{Body: []byte(`"by ` + agent + `"`), Usage: &protocol.Usage{Tokens: 10}, Command: goTo(to)}))
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
			r.must(claim.Complete(r.ctx, protocol.Result{Body: []byte(`"the last word"`), Usage: &protocol.Usage{Tokens: 10}}))
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

func testPreviousResult(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(4)
	large := []byte(`"` + strings.Repeat("x ", protocol.PreviousBodyBytesMax) + `password=swordfish7"`)
	results := []protocol.Result{
		{Body: []byte(`"first"`), Summary: "one", Artifacts: protocol.Artifacts{List: []protocol.Artifact{{Path: "a.md"}}}},
		{Body: []byte(`{"n":2}`)},
		{Body: large},
	}
	r.submit(pkg("lead", to[0]))
	claim := r.accept(to[0])
	for n, result := range results {
		result.Command = goTo(to[n+1])
		r.must(claim.Complete(r.ctx, result))
		next := r.accept(to[n+1])
		got, err := protocol.DecodePackage(next.Package)
		r.must(err)
		stored, _, err := r.b.Result(r.ctx, claim.Ticket)
		r.must(err)
		want := protocol.Previous{Agent: to[n], Ticket: claim.Ticket, Summary: result.Summary, Body: result.Body, Artifacts: result.Artifacts}
		if n == 2 {
			want.Body, want.BodyDigest, want.BodyBytes = nil, protocol.Digest(stored.Body), int64(len(stored.Body))
		}
		if p := got.Context.Previous; p == nil || !reflect.DeepEqual(*p, want) {
			r.Errorf("after agent %d the previous result is %+v, want %+v", n, p, want)
		}
		claim = next
	}
}

// testCancelGroupOfChains: the open end of a member's chain is cancelled with the group, or as one
// that it needs no more.
func testCancelGroupOfChains(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(3)
	mark := func(group string) {
		ended, err := r.ensureChildren(r.head(group))
		r.must(err)
		_, _, err = Update(r.ctx, r.b, group, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
			return lifecycle.MarkChildren(h.State, q, ended)
		})
		r.must(err)
	}
	for _, decided := range []bool{false, true} {
		p := pkg("lead", to[0], to[1])
		p.Return = &protocol.ReturnProtocol{Aggregation: protocol.AggregateAny, CancelRest: true}
		group := r.submit(p).Ticket
		r.handOn(to[0], to[2])
		if decided {
			r.must(r.accept(to[1]).Complete(r.ctx, protocol.Result{}))
			mark(group)
			head := r.head(group)
			if !head.State.Closed || !lifecycle.DutiesOf(head.State).CancelChildren {
				r.Fatalf("the group is %s, and does not cancel the rest", head.State.Phase)
			}
			r.must(r.b.CancelChildren(r.ctx, head, lifecycle.By, "the group needs it no more"))
		} else {
			_, err := r.b.CancelTree(r.ctx, group, "lead", "no longer needed")
			r.must(err)
		}
		first := protocol.ChildTicketN(group, 0)
		if s := r.state(first); s.Outcome != protocol.OutcomeSuccess {
			r.Errorf("decided %t: the first of the chain is %s, and it was done", decided, s.Outcome)
		}
		if s := r.state(protocol.ChildTicketN(first, 0)); s.Outcome != protocol.OutcomeCancelled {
			r.Errorf("decided %t: the open end of the chain is %s (%s)", decided, s.Phase, s.Outcome)
		}
		r.ensureEnd(first)
		mark(group)
		if s := r.state(first); s.ChainEnd == nil || s.ChainEnd.Outcome != protocol.OutcomeCancelled {
			r.Errorf("decided %t: the chain ended as %+v", decided, s.ChainEnd)
		}
		if s := r.state(group); !s.Children.Cancelled.Has(0) || lifecycle.HasPendingDuties(s) {
			r.Errorf("decided %t: the group knows %+v, and owes %t", decided, s.Children, lifecycle.HasPendingDuties(s))
		}
	}
}
