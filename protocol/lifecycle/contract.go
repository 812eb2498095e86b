package lifecycle

import p "github.com/agenthandoff/handoff/protocol"

// Contract says what of a package is not what an agent expects; nil is that nothing is. It is pure,
// and made where the package is: the core reads no package and checks no schema.
type Contract func(agent *p.Profile) *p.Error

// WithContract returns a snapshot that knows which agents a package does not suit. Admit refuses it
// for the agent that it names, and chooses among the others where it names a capability. What was
// admitted is not asked again: a reroute goes by capabilities.
func (d *Directory) WithContract(c Contract) *Directory {
	if d == nil {
		return d
	}
	next := *d
	next.contract = c
	return &next
}

// HasContracts tells whether an agent expects something of a package.
func (d *Directory) HasContracts() bool {
	switch {
	case d == nil:
		return false
	case d.counted != nil:
		return d.contracts
	}
	return d.findContract()
}

func (d *Directory) findContract() bool {
	for id := range d.Agents {
		if profile := d.Agents[id]; profile.Contract != nil {
			return true
		}
	}
	return false
}

// breaks says what of a package is not what an agent expects. An escalation goes up as it is.
func (d *Directory) breaks(agent *p.Profile, s *p.Summary) *p.Error {
	if d == nil || d.contract == nil || agent.Contract == nil || s.Type == p.Escalation {
		return nil
	}
	return d.contract(agent)
}

// brokenByAll says why the best agent with a capability may not have a package, where only the
// contracts keep it from all of them; nil else.
func brokenByAll(s p.Summary, d *Directory) error {
	if d == nil || d.contract == nil {
		return nil
	}
	routing, ok := Route(s, d.WithContract(nil), s.Excluded)
	if !ok {
		return nil
	}
	best, _ := d.Agent(routing.Choice)
	if err := d.breaks(&best, &s); err != nil {
		return err
	}
	return nil
}
