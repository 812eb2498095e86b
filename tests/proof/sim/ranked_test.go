//go:build proof

package sim

import (
	"context"
	"slices"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// rankedUnread is a planted bug.
const rankedUnread bug = "the agents that a package ranks not asked"

// planRanked has some packages rank agents beside the one that they name, and say how theirs is
// chosen.
func (l *simulation) planRanked(p *protocol.Package, d uint64) {
	if p.Target.Agent == "" || d%3 != 0 {
		return
	}
	if p.Routing == nil {
		p.Routing = new(protocol.RoutingRules)
	}
	p.Routing.By = protocol.RouteBys[d>>4%3]
	for _, agent := range [][]string{{"b", "a"}, {"c"}, {"a", "b", "c"}}[d>>8%3] {
		if agent != p.Target.Agent {
			p.Routing.Ranked = append(p.Routing.Ranked, agent)
		}
	}
}

// checkRanked: a refusal does not go up while an agent that the package ranks has neither had it nor
// refused it. Edges, breakers and groups have rules of their own: the frail agent may be kept back by its
// breaker.
func (j *judge) checkRanked(before protocol.State, events []protocol.Event) {
	s := before
	if len(s.Ranked) == 0 || s.Group != "" || s.EscalationLevel > 0 || s.Breaker != "" || len(j.edges) > 0 || s.Autonomy != nil || s.Reroutes >= s.Policy.MaxReroutes {
		return
	}
	for _, e := range events {
		up, ok := e.(*protocol.Escalated)
		if !ok || up.ReasonCode != lifecycle.ReasonNoFitAgent {
			continue
		}
		for _, agent := range s.Ranked {
			if agent != s.Agent && agent != s.Source && (agent != frail || !j.l.hasBreaker()) && !slices.Contains(slices.Concat(s.Refused, s.Tried, s.Excluded), agent) {
				j.faultLocked("%s goes from %s up for want of a fit agent, and its package ranks %s", s.Ticket, s.Agent, agent)
			}
		}
	}
}

// withoutRanked decides as if a package ranked no agents.
func (f *faultyBroker) withoutRanked(ctx context.Context, head broker.Head, decide broker.Decider) (broker.Head, bool, error) {
	return f.Broker.Update(ctx, head, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		blind := h
		blind.State.Ranked = nil
		step, err := decide(blind, q)
		if err != nil || len(step.Events) == 0 {
			return step, err
		}
		return lifecycle.StepOf(h.State, step.Events...)
	})
}
