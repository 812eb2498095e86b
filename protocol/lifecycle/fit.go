package lifecycle

import (
	"cmp"

	p "github.com/agenthandoff/handoff/protocol"
)

// Unfitness is the reason for which an agent does not take a package.
type Unfitness string

const (
	UnfitUnknown    Unfitness = "unknown"       // the directory has no such agent
	UnfitRefuses    Unfitness = "not_accepting" // it takes no handoffs
	UnfitRisk       Unfitness = "risk"          // the package has a higher risk than it may take
	UnfitCapability Unfitness = "no_capability" // it lacks what the package requires
	UnfitPaused     Unfitness = "paused"        // until an operator resumes it
	UnfitAbsent     Unfitness = "absent"        // no worker serves it, and it does not poll
	UnfitBusy       Unfitness = "busy"          // all slots of its workers are taken
)

// Temporary tells whether an agent may take the package later as it is: an offer waits
// in its queue until then.
func (u Unfitness) Temporary() bool {
	return u == UnfitPaused || u == UnfitAbsent || u == UnfitBusy
}

// Unfit returns why an agent does not take a package now; false is that it may. What
// holds for good comes before what passes. A person is never absent or busy.
func (d *Directory) Unfit(agent string, s p.Summary) (Unfitness, bool) {
	profile, known := d.Agent(agent)
	if !known {
		return UnfitUnknown, true
	}
	if why, unfit := unfitForGood(profile, s); unfit {
		return why, true
	}
	if wanted := needs(s); len(wanted) > 0 && agent != p.Human {
		if _, ok := fitness(profile, s, demand{wanted: wanted}); !ok {
			return UnfitCapability, true
		}
	}
	switch live, slots, busy := d.Load(agent); {
	case profile.Paused:
		return UnfitPaused, true
	case agent == p.Human:
	case !d.Attended(agent):
		return UnfitAbsent, true
	case live > 0 && busy >= slots:
		return UnfitBusy, true
	}
	return "", false
}

// unfitForGood returns why an agent may not have a package at all, apart from its
// capabilities.
func unfitForGood(profile p.Profile, s p.Summary) (Unfitness, bool) {
	switch {
	case !profile.Accepts():
		return UnfitRefuses, true
	case riskLevel(s.Risk) > riskLevel(cmp.Or(profile.MaxRisk, p.RiskHigh)):
		return UnfitRisk, true
	}
	return "", false
}
