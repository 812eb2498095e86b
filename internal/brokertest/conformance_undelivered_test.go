package brokertest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// nowhere is an agent that no case registers.
func nowhere() string { return "nowhere-" + protocol.NewTicket()[:8] }

// testUndeliveredKept hands on with a result to an agent that is not there: the work stays done,
// once, and the hand-off stands with the authority of its source, which sends it on.
func testUndeliveredKept(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(3)
	lead, coder, tester := to[0], to[1], to[2]
	r.must(r.b.PutProfile(r.ctx, protocol.Profile{ID: coder, EscalatesTo: lead}))
	parent := r.submit(pkg("lead", coder))
	claim := r.accept(coder)
	command := &protocol.Command{Goto: fmt.Appendf(nil, "%q", nowhere())}
	r.must(claim.Complete(r.ctx, protocol.Result{Body: []byte(`"done"`), Command: command}, broker.Child{Package: pkg("", tester)}))

	s := r.state(parent.Ticket)
	if s.Outcome != protocol.OutcomeSuccess || s.AttemptsTotal != 1 || !slices.Equal(s.Children.Undelivered.Numbers(), []int{1}) {
		r.Fatalf("outcome %s after %d attempts, undelivered %v", s.Outcome, s.AttemptsTotal, s.Children.Undelivered.Numbers())
	}
	result, _, err := r.b.Result(r.ctx, parent.Ticket)
	r.must(err)
	if string(result.Body) != `"done"` {
		r.Errorf("the result is %s", result.Body)
	}
	r.must(r.accept(tester).Complete(r.ctx, protocol.Result{})) // the other got its own

	child := protocol.ChildTicketN(parent.Ticket, 1)
	c := r.state(child)
	if c.Agent != lead || c.EscalationLevel != 1 || c.Reason != lifecycle.ReasonUndelivered {
		r.Fatalf("with %s at level %d for %q", c.Agent, c.EscalationLevel, c.Reason)
	}
	r.awaitDepth(lead, 1)
	r.ensureAgain(parent.Ticket)
	if got := r.entries(child); len(got) != 1 {
		r.Errorf("entries %v", got)
	}
	_, err = r.b.Reroute(r.ctx, child, tester, lead, "", time.Time{})
	r.must(err)
	r.must(r.accept(tester).Complete(r.ctx, protocol.Result{}))
	if c := r.state(child); c.Outcome != protocol.OutcomeSuccess {
		r.Errorf("sent on, it is %s", c.Outcome)
	}
	r.noOffers(lead)
}

// ensureAgain is what every supervisor does that comes to it: nothing is doubled.
func (r *familyKit) ensureAgain(ticket string) {
	r.Helper()
	forEachParallel(4, func(int) {
		if _, err := r.ensureChildren(r.head(ticket)); err != nil {
			r.Error(err)
		}
	})
}

// testUndeliveredPromised kills the worker between its result and the submission of what that hands
// on: another process submits it, as undelivered for the same reason.
func testUndeliveredPromised(k *kit) {
	r := k.familyKit()
	coder := r.registerAgents(1)[0]
	parent := r.submit(pkg("lead", coder))
	child := protocol.ChildTicketN(parent.Ticket, 0)
	dying := k.brokerOver(&failingAppends{Engine: r.Engine, lives: func(ticket string) bool { return ticket != child }})
	claim := r.acceptOver(dying, coder)
	_ = claim.Complete(r.ctx, protocol.Result{Command: &protocol.Command{Goto: fmt.Appendf(nil, "%q", nowhere())}})
	r.noHandoff(child)
	r.ensureAgain(parent.Ticket)
	c := r.state(child)
	if c.Agent != protocol.Human || c.Reason != lifecycle.ReasonUndelivered || !strings.Contains(c.Message, "no agent is called") {
		r.Errorf("with %s for %q: %s", c.Agent, c.Reason, c.Message)
	}
}

// testUndeliveredPolicies: the policy of what is handed on says what becomes of it.
func testUndeliveredPolicies(k *kit) {
	r := k.familyKit()
	coder := r.registerAgents(1)[0]
	for policy, want := range map[protocol.OnNoTaker]protocol.Outcome{
		protocol.NoTakerQueue: "", protocol.NoTakerReturn: protocol.OutcomeRolledBack, protocol.NoTakerClose: protocol.OutcomeRejected,
	} {
		parent := r.submit(pkg("lead", coder))
		next := pkg("", nowhere())
		next.Policy.OnNoTaker = &policy
		r.must(r.accept(coder).Complete(r.ctx, protocol.Result{}, broker.Child{Package: next}))
		c := r.state(protocol.ChildTicketN(parent.Ticket, 0))
		if p := r.state(parent.Ticket); p.Outcome != protocol.OutcomeSuccess || c.Outcome != want || c.Offer != 0 {
			r.Errorf("%s: the work is %s, what it hands on is %q (%s), offer %d", policy, p.Outcome, c.Outcome, c.Reason, c.Offer)
		}
	}
}

// testUndeliveredMember: a member of a group that is handed on stands with an authority, and the
// others go to their agents.
func testUndeliveredMember(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(2)
	parent := r.submit(pkg("lead", to[0]))
	group := pkg("", to[1], nowhere())
	group.Return = &protocol.ReturnProtocol{Expected: true}
	r.must(r.accept(to[0]).Complete(r.ctx, protocol.Result{}, broker.Child{Package: group}))
	ticket := protocol.ChildTicketN(parent.Ticket, 0)
	r.ensureAgain(ticket)
	there, gone := r.state(protocol.ChildTicketN(ticket, 0)), r.state(protocol.ChildTicketN(ticket, 1))
	if there.Agent != to[1] || gone.Agent != protocol.Human || gone.Reason != lifecycle.ReasonUndelivered {
		r.Errorf("members with %s and %s (%s)", there.Agent, gone.Agent, gone.Reason)
	}
}

// testBarredBeforeUndelivered: an agent whose handoffs are off hands off nothing, and no group either
// of which a member is not there.
func testBarredBeforeUndelivered(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(2)
	r.must(r.b.PutProfile(r.ctx, protocol.Profile{ID: to[0], Handoffs: protocol.HandoffsOff}))
	parent := r.submit(pkg("lead", to[0]))
	r.must(r.accept(to[0]).Complete(r.ctx, protocol.Result{}, broker.Child{Package: pkg("", to[1], nowhere())}))
	s := r.state(parent.Ticket)
	if s.Outcome != protocol.OutcomePartial || s.Barred == nil || s.Barred.Code != protocol.CodeHandoffsOff || s.Children != nil {
		r.Errorf("outcome %s, barred %+v, children %+v", s.Outcome, s.Barred, s.Children)
	}
}

// testMalformedKept: a malformed result is kept and not repeated; one that comes after its lease is
// lost is kept as other late ones are.
func testMalformedKept(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(1)[0]
	text := `{"body": "half`
	malformed := protocol.ResultFromText([]byte(text))
	malformed.Malformed = "line 1, column 15: it is no JSON"
	parent := r.submit(pkg("lead", to))
	wantCode(k, r.accept(to).Complete(r.ctx, malformed), protocol.CodeBadResult)
	s := r.decide(parent.Ticket).State
	if !s.Closed || s.Outcome != protocol.OutcomeFailed || s.AttemptsTotal != 1 {
		r.Errorf("%s, %s after %d attempts", s.Phase, s.Outcome, s.AttemptsTotal)
	}
	if result, _, err := r.b.Result(r.ctx, parent.Ticket); err != nil || string(result.Body) != fmt.Sprintf("%q", text) || result.Malformed == "" {
		r.Errorf("the result is %+v, %v", result, err)
	}

	for name, handIn := range map[string]func(*broker.Claim) error{
		"by its claim": func(c *broker.Claim) error { return c.Complete(r.ctx, malformed) },
		"by a command that cannot be followed": func(c *broker.Claim) error {
			return c.Complete(r.ctx, protocol.Result{Command: &protocol.Command{Goto: fmt.Appendf(nil, "%q", to)}})
		},
		"by its lease": func(c *broker.Claim) error {
			if kept, err := r.b.ParkLate(r.ctx, c.Lease(), malformed); err != nil || kept != broker.LateKept {
				return fmt.Errorf("kept %v: %w", kept, err)
			}
			return broker.ErrLeaseLost
		},
	} {
		late := pkg("lead", to)
		use := protocol.LateUse
		late.Policy.LateResult = &use
		head := r.submit(late)
		claim := r.accept(to)
		_, err := r.b.Reroute(r.ctx, head.Ticket, protocol.Human, protocol.Human, "", time.Time{})
		r.must(err)
		for range 2 { // handed in again, it is kept once
			if err := handIn(claim); name != "by its lease" || err == nil {
				r.wantErr(err, broker.ErrLeaseLost)
			}
		}
		kept, err := r.b.LateResults(r.ctx, head.Ticket)
		r.must(err)
		if s := r.state(head.Ticket); len(kept) != 1 || kept[0].Result.Malformed == "" || s.LateSeq != 0 {
			r.Errorf("%s: kept %+v; %d would be used", name, kept, s.LateSeq)
		}
	}
}
