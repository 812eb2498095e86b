package lifecycle

import (
	"cmp"

	p "github.com/agenthandoff/handoff/protocol"
)

// Unfitness is the reason for which an agent does not take a package.
type Unfitness string

const (
	UnfitRefuses  Unfitness = "not_accepting" // it takes no handoffs
	UnfitAutonomy Unfitness = "autonomy"      // the package asks for more autonomy than it has
	UnfitRisk     Unfitness = "risk"          // the package has a higher risk than it may take
	UnfitPaused   Unfitness = "paused"        // until an operator resumes it
	UnfitAbsent   Unfitness = "absent"        // no worker serves it, and it does not poll
	UnfitBusy     Unfitness = "busy"          // all slots of its workers are taken
)

// Unavailable returns why an agent takes nothing now; false is that it may. A person is
// never absent or busy. What an agent does not take at all is routing's matter.
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

// unfitForGood returns why an agent may not have a package at all, apart from its
// capabilities.
func unfitForGood(profile p.Profile, s p.Summary) (Unfitness, bool) {
	switch {
	case !profile.Accepts():
		return UnfitRefuses, true
	case riskLevel(s.Risk) > riskLevel(cmp.Or(profile.MaxRisk, p.RiskHigh)):
		return UnfitRisk, true
	case overAutonomy(&profile, &s):
		return UnfitAutonomy, true
	}
	return "", false
}
