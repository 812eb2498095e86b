package lifecycle

import p "github.com/agenthandoff/handoff/protocol"

// Contract says what of a package is not what an agent expects; nil is that nothing is. It is pure,
// and made where the package is: the core reads no package and checks no schema.
type Contract func(agent *p.Profile) *p.Error

// WithContract returns a snapshot that knows which agents a package does not suit. fit asks it,
// whatever the way in which an agent is chosen.
func (d *Directory) WithContract(c Contract) *Directory {
	if d == nil {
		return d
	}
	next := *d
	next.contract = c
	return &next
}

// WantsContract reports whether a package has to be read before an agent is chosen: an agent expects
// something of a package, and WithContract was not called.
func (d *Directory) WantsContract() bool { return d.HasContracts() && d.contract == nil }

// HasContracts reports whether an agent expects something of a package.
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

// breaks returns an error for the part of a package that is not what an agent expects. What goes up or
// back as it is, an escalation, a return or a call for a bid, breaks no contract.
func (d *Directory) breaks(agent *p.Profile, s *p.Summary) *p.Error {
	if d == nil || d.contract == nil || agent.Contract == nil || s.Type == p.Escalation || s.ReturnOf != "" || s.CallOf != "" {
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
