//go:build proof

package sim

import (
	"context"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/audit"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// checkEndedOffers: no offer stands in any queue that no open handoff has.
func (j *judge) checkEndedOffers() {
	for key := range j.l.m.QueuedOffers() {
		if s := j.heads[key.Ticket].state; !lifecycle.OfferStands(s) || s.Offer != key.Sequence || s.Agent != key.Agent {
			j.faultLocked("offer %d of %s stands at %s, and its handoff is %s with %q", key.Sequence, key.Ticket, key.Agent, s.Phase, s.Agent)
		}
	}
}

// checkChildren: what a handoff knows of those that it has handed off is how they ended.
func (j *judge) checkChildren(s protocol.State) {
	if s.Children == nil {
		return
	}
	for _, n := range s.Children.Made.Numbers() {
		child := j.heads[s.ChildTicket(n)].state
		last, _ := j.endOf(child)
		well := last.Outcome == protocol.OutcomeSuccess || last.Outcome == protocol.OutcomePartial
		if s.Aggregate != nil && s.Aggregate.Mode == protocol.AggregateMajority {
			well = j.votes[last.Ticket]
		}
		switch {
		case child.Parent != s.Ticket || child.N != n+1:
			j.faultLocked("child %d of %s has parent %q and number %d", n, s.Ticket, child.Parent, child.N)
		case s.Children.Closed.Has(n) && s.Children.Succeeded.Has(n) != well:
			j.faultLocked("child %d of %s ended with %s, and is known otherwise", n, s.Ticket, last.Outcome)
		}
	}
}

// checkAtEnd judges when it is over.
func (j *judge) checkAtEnd() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.found) > 0 {
		return
	}
	for ticket, seq := range j.acked {
		if h, there := j.heads[ticket]; !there || h.seq < seq {
			j.faultLocked("%s was acknowledged at %d, and is not there", ticket, seq)
		}
	}
	if len(j.acked) < handoffsMin {
		j.faultLocked("%d submissions were acknowledged, of at least %d", len(j.acked), handoffsMin)
	}
	for ticket, h := range j.heads {
		if !h.state.Closed {
			j.faultLocked("%s is %s with %s, %v after the last fault", ticket, h.state.Phase, h.state.Agent, j.l.since()-faultsFor)
		} else if owed := j.unpaidDuty(h.state); owed != "" {
			j.faultLocked("%s is closed, and owes %s", ticket, owed)
		}
		if h.state.StuckReason != "" {
			j.faultLocked("%s is stuck: %s", ticket, h.state.StuckReason)
		}
		j.checkChildren(h.state)
		j.checkChainEnd(h.state)
		j.checkEndKept(h.state)
	}
	j.checkEndedOffers()
	j.checkBidders()
	j.checkBudgets()
	j.checkLineages()
	j.checkWorkspaces()
	j.checkSchedules()
	j.checkLoss()
	if len(j.found) > 0 || j.l.seed%16 != 0 { // the whole ledger, now and then: each append was looked at
		return
	}
	b, err := broker.New(j.l.m, broker.Config{})
	if err != nil {
		j.faultLocked("%v", err)
		return
	}
	report, err := audit.VerifyLedger(context.Background(), b, nil, audit.CheckWriters)
	if err != nil || report.Found != 0 || report.Handoffs != len(j.heads) {
		j.faultLocked("the ledger does not verify: %+v, %v", report, err)
	}
}
