//go:build proof

package sim

import (
	"errors"
	"regexp"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Planted bugs of autonomy.
const (
	autonomyUnread bug = "the autonomy of agents not asked for"
	overrideLost   bug = "an override that is not recorded"
)

func init() { bugs = append(bugs, autonomyUnread, overrideLost) }

// isGoverned: in every fourth simulation some agents have little autonomy, some packages ask for
// more, and a person and an agent reroute. With overrideLost that is every one, and all packages ask.
func (l *simulation) isGoverned() bool {
	return (l.seed%4 == 1 || l.bug == overrideLost) && !l.hasEdges() && !l.hasBreaker()
}

// autonomy is how much each agent has that has a bound.
var autonomy = map[string]float64{"lead": 2, "b": 5}

func (l *simulation) giveAutonomy(p *protocol.Profile) {
	if amount, bounded := autonomy[p.ID]; bounded && l.isGoverned() {
		p.AutonomyBudget = &amount
	}
	if l.isGoverned() && (p.ID == "a" || p.ID == "c") {
		p.EscalatesTo = "lead"
	}
}

// planAutonomy has some packages ask for autonomy.
func (l *simulation) planAutonomy(p *protocol.Package, d uint64) {
	if l.isGoverned() && (d%2 == 0 || l.bug == overrideLost) && p.GroupSize() == 0 && p.Bids == nil {
		amount := []float64{1, 4, 8}[d>>8%3]
		if l.bug == overrideLost {
			amount = 8
		}
		p.AutonomyBudget = &protocol.AutonomyBudget{Amount: &amount}
	}
}

// rerouteSome plays an agent and a person that send handoffs elsewhere, whether that is fit or not.
func (l *simulation) rerouteSome() {
	for round := 0; l.isGoverned() && l.ctx.Err() == nil && l.since() < faultsFor; round++ {
		l.sleep(time.Duration(1_000_000+dice(l.seed, "reroute", round)%5_000_000) * time.Microsecond)
		p, e, b, ctx := l.process("governor")
		for _, s := range l.judge.reroutable() {
			d := dice(l.seed, "reroute", s.Ticket, s.Offer)
			to, by := []string{"a", "b", "lead"}[d>>8%3], []string{"lead", protocol.Human}[d>>16%2]
			if l.bug == overrideLost {
				d, to, by = 0, "b", protocol.Human
			}
			if d%8 != 0 || to == s.Agent || to == s.Source || slices.Contains(slices.Concat(s.Refused, s.Excluded, s.Tried), to) {
				continue
			}
			_, err := b.Reroute(ctx, s.Ticket, to, by, "sim", time.Time{})
			var refused *protocol.Error
			if err != nil && !errors.Is(err, broker.ErrUnreachable) && !errors.As(err, &refused) && ctx.Err() == nil {
				l.judge.fault("%s reroutes %s: %v", by, s.Ticket, err)
			}
		}
		l.closeProcess(p, e)
	}
}

// reroutable are the handoffs that stand in a queue, in the order of their tickets.
func (j *judge) reroutable() (all []protocol.State) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, h := range j.heads {
		if s := h.state; s.Phase == protocol.Pending && s.Aggregate == nil && s.Group == "" && s.ReturnOf == "" && s.CallOf == "" && s.Type != protocol.Escalation && s.Agent != late && s.Agent != absent {
			all = append(all, s)
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

// checkFit: no agent is offered or holds a handoff for which it has not the autonomy, unless a person
// has said so, in an entry.
func (j *judge) checkFit(after protocol.State, events []protocol.Event) {
	if j.overrides == nil {
		j.overrides = map[seat]bool{}
	}
	for _, e := range events {
		switch e := e.(type) {
		case *protocol.Rerouted:
			if len(e.Override) > 0 && e.By != protocol.Human {
				j.faultLocked("%s overrides %v for %s, and is no person", e.By, e.Override, after.Ticket)
			}
			if slices.Contains(e.Override, "autonomy") {
				j.overrides[seat{after.Ticket, e.To}] = true
			}
		case *protocol.Offered:
			j.checkAutonomy(after, e.Agent)
		}
	}
	if after.Held() {
		j.checkAutonomy(after, after.Agent)
	}
}

func (j *judge) checkAutonomy(s protocol.State, agent string) {
	amount, bounded := autonomy[agent]
	if !bounded || !j.l.isGoverned() || s.Autonomy == nil || s.Autonomy.Amount == nil || *s.Autonomy.Amount <= amount {
		return
	}
	if !j.overrides[seat{s.Ticket, agent}] {
		j.faultLocked("%s goes to %s, which has an autonomy of %g and not of %g, and no person has overridden that", s.Ticket, agent, amount, *s.Autonomy.Amount)
	}
}

// overrides finds what an append has of an override.
var overrides = regexp.MustCompile(`,"override":\[[^\]]*\]`)

// withoutOverride takes the record of an override out of an append.
func (l *simulation) withoutOverride(body []byte) []byte {
	if l.bug != overrideLost {
		return body
	}
	return overrides.ReplaceAll(body, nil)
}

// isUnfit reports whether a submission was refused since its agent has not the autonomy.
func isUnfit(err error) bool { return hasAnyCode(err, protocol.CodeAutonomy) }
