package lifecycle

import (
	"cmp"
	"fmt"
	"strings"

	p "github.com/agenthandoff/handoff/protocol"
)

// Unfitness is the reason for which an agent does not take a package.
type Unfitness string

const (
	UnfitRefuses    Unfitness = "not_accepting" // it takes no handoffs
	UnfitAutonomy   Unfitness = "autonomy"      // the package asks for more autonomy than it has
	UnfitRisk       Unfitness = "risk"          // the package has a higher risk than it may take
	UnfitContract   Unfitness = "contract"      // the package is not what it expects
	UnfitCapability Unfitness = "capabilities"  // it lacks what the package requires
	UnfitPaused     Unfitness = "paused"        // until an operator resumes it
	UnfitAbsent     Unfitness = "absent"        // no worker serves it, and it does not poll
	UnfitBusy       Unfitness = "busy"          // all slots of its workers are taken
)

// Unavailable returns why an agent takes nothing now; false is that it may. A person is
// never absent or busy. What an agent does not take at all is for fit to decide.
func (d *Directory) Unavailable(profile p.Profile) (Unfitness, bool) {
	live, slots, busy := d.Load(profile.ID)
	switch {
	case profile.Paused:
		return UnfitPaused, true
	case profile.ID == p.Human:
	case !d.Attended(profile.ID):
		return UnfitAbsent, true
	case live > 0 && busy >= slots:
		return UnfitBusy, true
	}
	return "", false
}

// match is how well an agent has what is wanted.
type match struct {
	score    float64  // 0 to 1
	warnings []string // what it lacks, or has too little of
}

// fit decides whether an agent may get a package, and nothing else does: every choice of an agent
// (a submission, a hand-off, a reroute, a take, a bid, an escalation) goes by it. Empty is that it may.
// A partial match of capabilities is fit, with a warning for each that is missing or too weak, unless
// the policy is strict. A person is fit for everything.
func (d *Directory) fit(agent *p.Profile, s *p.Summary, wanted demand) (match, Unfitness) {
	if agent.ID == p.Human {
		return match{score: 1}, ""
	}
	switch {
	case !agent.Accepts():
		return match{}, UnfitRefuses
	case exceeds(s.Risk, agent.MaxRisk):
		return match{}, UnfitRisk
	case overAutonomy(agent, s):
		return match{}, UnfitAutonomy
	case d.breaks(agent, s) != nil:
		return match{}, UnfitContract
	}
	return capable(agent, s, d, wanted)
}

// fitAbove reports whether an authority may get a package that goes up to it. It needs no capability:
// it decides about the work, and need not do it.
func (d *Directory) fitAbove(agent *p.Profile, s *p.Summary) bool {
	_, why := d.fit(agent, s, demand{})
	return why == ""
}

// broken returns all rules of fit that an agent would get a package against, without that of one that
// takes no handoffs.
func (d *Directory) broken(agent *p.Profile, s *p.Summary) (rules []string) {
	if agent.ID == p.Human {
		return nil
	}
	_, lacks := capable(agent, s, d, demand{wanted: requiredOf(*s)})
	for _, rule := range []struct {
		name   Unfitness
		broken bool
	}{{UnfitRisk, exceeds(s.Risk, agent.MaxRisk)}, {UnfitAutonomy, overAutonomy(agent, s)}, {UnfitContract, d.breaks(agent, s) != nil}, {UnfitCapability, lacks != ""}} {
		if rule.broken {
			rules = append(rules, string(rule.name))
		}
	}
	return rules
}

// fitNamed is fit for an agent that is named: by a package, or by the one that reroutes or takes it.
// The error names the rule that it breaks.
func (d *Directory) fitNamed(agent *p.Profile, s *p.Summary) (match, *p.Error) {
	wanted := demand{wanted: requiredOf(*s)}
	m, why := d.fit(agent, s, wanted)
	switch why {
	case UnfitRefuses:
		return m, p.Errorf(p.CodeNotAccepting, "target.agent", "%s takes no handoffs (accepts_handoffs is false)", agent.ID)
	case UnfitRisk:
		return m, p.Errorf(p.CodeAutonomy, "audit.risk_level", "%s may take a risk of at most %s, this is %s", agent.ID, agent.MaxRisk, s.Risk)
	case UnfitAutonomy:
		return m, p.Errorf(p.CodeAutonomy, "autonomy_budget.amount", "%s has an autonomy budget of %g, this asks for %g", agent.ID, *agent.AutonomyBudget, *s.Autonomy.Amount)
	case UnfitContract:
		return m, d.breaks(agent, s)
	case UnfitCapability:
		if len(m.warnings) < len(wanted.wanted) {
			return m, p.Errorf(p.CodeNoAgent, "required_capabilities", "%s, and strict_capabilities is set", strings.Join(m.warnings, "; "))
		}
		return m, p.Errorf(p.CodeNoAgent, "required_capabilities", "%s has none of the required capabilities in the proficiency asked for", agent.ID)
	}
	return m, nil
}

// capable matches the capabilities of an agent against what is wanted.
func capable(agent *p.Profile, s *p.Summary, d *Directory, wanted demand) (m match, why Unfitness) {
	if len(wanted.wanted) == 0 {
		return match{score: 1}, ""
	}
	total := 0.0
	for _, need := range wanted.wanted {
		proficiency, has := proficiencyOf(agent, need.ID)
		if has {
			total += proficiency
			if proficiency >= need.MinProficiency {
				continue
			}
			m.warnings = append(m.warnings, fmt.Sprintf("%s has %s at %g, %g is required", agent.ID, need.ID, proficiency, need.MinProficiency))
		} else {
			m.warnings = append(m.warnings, fmt.Sprintf("%s lacks %s", agent.ID, need.ID))
		}
		if need.ID == s.Target.Capability { // the one asked for by name is not optional
			return m, UnfitCapability
		}
	}
	m.score = total / float64(len(wanted.wanted))
	strict := wanted.all || strictCapabilities(s, agent, d)
	if len(m.warnings) > 0 && (strict || len(m.warnings) == len(wanted.wanted)) {
		return m, UnfitCapability
	}
	return m, ""
}

// strictCapabilities reports whether an agent must have all that the package
// requires: the package's setting, else the agent's, else the fleet's.
func strictCapabilities(s *p.Summary, agent *p.Profile, d *Directory) bool {
	for _, own := range []*bool{s.Overrides.StrictCapabilities, agent.Policy.StrictCapabilities, d.fleetPolicy().StrictCapabilities} {
		if own != nil {
			return *own
		}
	}
	return false
}

func proficiencyOf(agent *p.Profile, capability string) (float64, bool) {
	for _, c := range agent.Capabilities {
		if c.ID == capability {
			return c.Proficiency, true
		}
	}
	if agent.Specialization == capability {
		return 1, true
	}
	return 0, false
}

func riskLevel(r p.Risk) int {
	switch r {
	case p.RiskHigh:
		return 3
	case p.RiskMedium:
		return 2
	case p.RiskLow:
		return 1
	}
	return 0
}

// exceeds reports whether a risk is over the highest that an agent may take.
func exceeds(risk, most p.Risk) bool { return riskLevel(risk) > riskLevel(cmp.Or(most, p.RiskHigh)) }
