//go:build proof

package sim

import (
	"slices"

	"github.com/agenthandoff/handoff/protocol"
)

// ownAttempts is an agent whose profile says more often than the fleet that it may be tried.
const (
	ownAttempts    = "c"
	ownAttemptsMax = 4
)

// setFleet gives every third simulation settings for all agents, and other ones halfway.
func (l *simulation) setFleet() {
	if l.seed%3 != 1 {
		l.judge.fleets = []*protocol.Fleet{nil}
		return
	}
	put := func(attempts, reroutes int) {
		fleet := protocol.Fleet{Experiments: l.experiments(), Handoffs: l.fleetHandoffs(), Complexity: l.complexity(), Policy: protocol.PolicyOverrides{MaxAttempts: &attempts, MaxReroutes: &reroutes}}
		l.judge.mu.Lock()
		l.judge.fleets = append(l.judge.fleets, &fleet)
		l.judge.mu.Unlock()
		_, rev, err := l.m.Fleet(l.ctx)
		if err == nil {
			_, err = l.m.PutFleet(l.ctx, fleet, rev)
		}
		if err != nil && l.ctx.Err() == nil {
			l.judge.fault("put the settings of the fleet: %v", err)
		}
	}
	put(5, 2)
	l.all.Go(func() {
		if l.sleep(faultsFor / 2); l.ctx.Err() == nil {
			put(2, 1)
		}
	})
}

// checkPolicy: what a handoff goes by is its package's, over its agent's, over the fleet's.
func (j *judge) checkPolicy(before protocol.State, events []protocol.Event) {
	summary, agent := before.Summary, before.Agent
	var policy *protocol.Policy
	for _, e := range events {
		switch e := e.(type) {
		case *protocol.Submitted:
			summary, policy = e.Summary, &e.Policy
		case *protocol.Gated:
			agent = e.Agent
		case *protocol.Offered:
			if agent = e.Agent; e.Policy != nil {
				policy = e.Policy
			}
		}
	}
	if policy == nil {
		return
	}
	var profile protocol.PolicyOverrides
	if agent == ownAttempts {
		profile.MaxAttempts = new(ownAttemptsMax)
	}
	right := slices.ContainsFunc(j.fleets, func(f *protocol.Fleet) bool {
		if f == nil {
			f = &protocol.Fleet{}
		}
		return *policy == protocol.DefaultPolicy().With(f.Policy).With(profile).With(summary.Overrides)
	})
	if !right {
		j.faultLocked("an offer to %s goes by %d attempts and %d reroutes, which neither its package, its profile nor the fleet says", agent, policy.MaxAttempts, policy.MaxReroutes)
	}
}

// registerAll registers all agents.
func (l *simulation) registerAll() {
	for agent := range agents {
		if agent == protocol.Human || (agent == tie || agent == bow) && !l.hasKnots() { // a person exists without one
			continue
		}
		profile := protocol.Profile{ID: agent, EscalatesTo: protocol.Human, Specialization: specialization[agent]}
		if agent == limited {
			profile.MaxConcurrency = limitedTo
		}
		if agent == ownAttempts {
			profile.Policy.MaxAttempts = new(ownAttemptsMax)
		}
		if agent == watched {
			profile.Approve = protocol.ApproveMedium
		}
		profile.Bids = slices.Contains(bidders, agent)
		if agent == tie || agent == bow {
			profile.Specialization = l.knotWork()
		}
		l.giveAutonomy(&profile)
		l.giveBreaker(&profile)
		l.giveKeyLimits(&profile)
		l.giveMode(&profile)
		if err := l.m.PutProfile(l.ctx, profile); err != nil {
			l.judge.fault("register %s: %v", agent, err)
		}
	}
}
