package lifecycle

import (
	"cmp"
	"slices"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Autonomy: how far an agent goes on its own. What is over it an authority decides.

// overAutonomy tells whether a package asks for more autonomy than an agent has.
func overAutonomy(profile *p.Profile, s *p.Summary) bool {
	return s.Autonomy != nil && s.Autonomy.Amount != nil && profile.AutonomyBudget != nil && *profile.AutonomyBudget < *s.Autonomy.Amount
}

// RiskAlone is the highest risk that the agent of a handoff may decide about by itself: what its
// profile and the package allow.
func RiskAlone(s p.State, d *Directory) p.Risk {
	profile, _ := d.Agent(s.Agent)
	most := cmp.Or(profile.MaxRisk, p.RiskHigh)
	if s.Autonomy != nil && riskLevel(cmp.Or(s.Autonomy.MaxRisk, p.RiskHigh)) < riskLevel(most) {
		most = s.Autonomy.MaxRisk
	}
	return most
}

// DecideAlone records a decision that the holder has made during the work. The error of one that is
// over what it may decide by itself has the code autonomy_exceeded, and nothing is recorded: it
// escalates. The step is empty where a decision of that id is recorded.
func DecideAlone(s p.State, d *Directory, holder string, decision p.Decided, now time.Time) (Step, error) {
	if err := mustNotBeEnding(s); err != nil {
		return Step{}, err
	}
	if s.Fence == 0 {
		return Step{}, p.Errorf(p.CodeIllegal, "ticket", "%s is %s; only an agent that has accepted it decides", s.Ticket, s.Phase)
	}
	if most := RiskAlone(s, d); riskLevel(decision.Risk) > riskLevel(most) {
		return Step{}, p.Errorf(p.CodeAutonomy, "risk", "%s may decide about a risk of at most %s by itself, this is %s; escalate it", s.Agent, most, decision.Risk)
	}
	if hasDecided(&s, decision.ID) {
		return Step{}, nil
	}
	decision.Meta, decision.Fence = p.Meta{At: now, By: holder}, s.Fence
	return StepOf(s, &decision)
}

func hasDecided(s *p.State, id string) bool {
	id = decisionID(id)
	return slices.ContainsFunc(s.Decisions, func(d p.Decision) bool { return d.ID == id })
}

func staleDecided(s *p.State, e *p.Decided) string {
	if hasDecided(s, e.ID) {
		return "that was decided already"
	}
	return staleFence(s, e.Fence)
}

// decisionID is what the state keeps of the id of a decision: all of an id that is valid, of which
// each byte takes two in JSON at most.
func decisionID(id string) string { return cutTo(id, 2*p.DecisionIDBytesMax) }

// decisionBytesMax is how much of the words of a decision the state keeps, counted in JSON.
const decisionBytesMax = 512

func applyDecided(s *p.State, e *p.Decided) error {
	kept := append(slices.Clone(s.Decisions), p.Decision{ID: decisionID(e.ID), Description: cutTo(e.Description, decisionBytesMax),
		Rationale: cutTo(e.Rationale, decisionBytesMax), MadeBy: s.Agent, At: e.At})
	if len(kept) > p.DecisionsMax {
		kept = kept[len(kept)-p.DecisionsMax:]
	}
	s.Decisions = kept
	return nil
}
