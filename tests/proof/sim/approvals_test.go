//go:build proof

package sim

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/tests/verify"
)

const (
	approvalReused bug = "an approval of one agent used for another"
	silenceOffers  bug = "silence taken for an approval"
	gateForgotten  bug = "an offer where a gate had to stand"
	silencePasses  bug = "a handoff without a risk past the gate of a profile"
)

func init() { bugs = append(bugs, silencePasses) }

// watched is an agent whose profile has every handoff approved first that is not known to be low.
const watched = "c"

// planRisk gives most packages a low risk, some another one, and some none.
func (l *simulation) planRisk(p *protocol.Package, about ...any) {
	risks := []protocol.Risk{"", protocol.RiskMedium, protocol.RiskHigh, protocol.RiskLow}
	p.Audit.RiskLevel = risks[min(3, dice(l.seed, append([]any{"risk"}, about...)...)%20)]
}

// askApproval has some packages approved first, by an authority or a person; some end where they
// are not answered.
func (l *simulation) askApproval(pkg *protocol.Package, source string, i int) {
	d := dice(l.seed, "approval", source, i)
	if d%6 != 0 {
		return
	}
	pkg.Approval = &protocol.Approval{Required: true, By: []string{"", "lead", protocol.Human}[d>>8%3], TimeoutMS: 10_000 + int64(d>>16%40_000)}
	if d>>40%4 == 0 {
		pkg.Approval.OnTimeout = protocol.ApprovalClose
	}
}

// approveAll plays those who are asked: they approve, deny, or do not answer while there are faults, and
// die in the middle of it.
func (l *simulation) approveAll() {
	for round := 0; l.ctx.Err() == nil; round++ {
		l.sleep(time.Duration(2_000_000+dice(l.seed, "approve", round)%8_000_000) * time.Microsecond)
		p, e, b, ctx := l.process("approver")
		l.raiseSome(ctx, b, round)
		for _, s := range l.judge.gatedBy(protocol.GateApproval) {
			by := s.Gate.Approver
			what := dice(l.seed, "verdict", s.Ticket, s.Gate.Agent) % 6
			switch {
			case !l.faultsOn():
				by = protocol.Human
			case what < 2: // silent
				continue
			}
			answer := broker.ApprovalAnswer{By: by, Agent: s.Gate.Agent, Any: what == 3, Reason: "no"}
			decide := b.Approve
			if what == 2 {
				decide = b.Deny
			} else {
				l.judge.approves(s.Ticket, s.Gate.Agent, answer.Any)
			}
			_, err := decide(ctx, s.Ticket, answer)
			var refused *protocol.Error
			if err != nil && !errors.Is(err, broker.ErrUnreachable) && !errors.As(err, &refused) && ctx.Err() == nil {
				l.judge.fault("%s decides about %s: %v", by, s.Ticket, err)
			}
		}
		l.closeProcess(p, e)
	}
}

// gatedBy are the handoffs that wait at a gate of a kind, in the order of their tickets.
func (j *judge) gatedBy(kind protocol.GateKind) (all []protocol.State) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, h := range j.heads {
		if h.state.Gate.First() == kind {
			all = append(all, h.state)
		}
	}
	slices.SortFunc(all, func(x, y protocol.State) int {
		if x.Ticket < y.Ticket {
			return -1
		}
		return 1
	})
	return all
}

// seat is an agent that a handoff may be offered to.
type seat struct{ ticket, agent string }

// approvalsKnown is what the judge knows of approvals: those that approvers meant to give, and those
// that are in the ledger.
type approvalsKnown struct{ meant, given map[seat]bool }

// approves notes an approval before it is given.
func (j *judge) approves(ticket, agent string, anyAgent bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.approvals.meant == nil {
		j.approvals = approvalsKnown{map[seat]bool{}, map[seat]bool{}}
	}
	j.approvals.meant[seat{ticket, agent}] = true
	if anyAgent {
		j.approvals.meant[seat{ticket, protocol.AnyAgent}] = true
	}
}

// checkApprovals: no agent gets a handoff for which an approval is asked without one that an approver
// gave, for that agent; and no end by time is said to be a denial.
func (j *judge) checkApprovals(s protocol.State, events []protocol.Event) {
	for _, e := range events {
		switch e := e.(type) {
		case *protocol.Approved:
			at := seat{s.Ticket, e.Agent}
			if !j.approvals.meant[at] {
				j.faultLocked("%s is approved for %s by %s, which did not say so", s.Ticket, e.Agent, e.By)
			}
			if j.approvals.given != nil {
				j.approvals.given[at] = true
			}
		case *protocol.Offered:
			if s.EscalationLevel == 0 && asksApproval(s.Summary, e.Agent) && !j.approvals.given[seat{s.Ticket, e.Agent}] && !j.approvals.given[seat{s.Ticket, protocol.AnyAgent}] {
				j.faultLocked("%s is offered to %s, which was not approved", s.Ticket, e.Agent)
			}
		}
	}
	if err := verify.Gate(s); err != nil {
		j.faultLocked("%s: %v", s.Ticket, err)
	}
}

// asksApproval is the judge's own reading of the rules.
func asksApproval(s protocol.Summary, agent string) bool {
	if agent == protocol.Human || s.ReturnOf != "" || s.CallOf != "" || s.Type == protocol.Escalation {
		return false
	}
	return s.Approval != nil && s.Approval.Required || agent == watched && s.Risk != protocol.RiskLow
}

// withoutAsking decides without the gates that the core sets, or with an approval that was not given.
func (f *faultyBroker) withoutAsking(ctx context.Context, head broker.Head, decide broker.Decider) (broker.Head, bool, error) {
	return f.Broker.Update(ctx, head, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		step, err := decide(h, q)
		if err != nil || len(step.Events) == 0 {
			return step, err
		}
		switch e := step.Events[0].(type) {
		case *protocol.Gated:
			silent := f.bug == silencePasses && h.State.Risk == "" && slices.Equal(e.Rules, []string{lifecycle.RuleTarget})
			if f.bug == approvalReused && len(h.State.Approvals) > 0 || f.bug == gateForgotten || silent {
				events := []protocol.Event{&protocol.Offered{Meta: e.Meta, Agent: e.Agent, Reason: e.Offer}}
				if from := h.State.Agent; from != "" && from != e.Agent {
					events = slices.Insert(events, 0, protocol.Event(&protocol.Rerouted{Meta: e.Meta, From: from, To: e.Agent, ReasonCode: e.Reason, Reason: "sim"}))
				}
				return lifecycle.StepOf(h.State, events...)
			}
		case *protocol.Lapsed:
			if f.bug == silenceOffers {
				return lifecycle.Approve(h.State, q, lifecycle.ApprovalAnswer{By: protocol.Human})
			}
		}
		return step, nil
	})
}
