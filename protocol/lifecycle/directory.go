package lifecycle

import (
	"maps"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// Directory is what one observer knows of agents and holders: an immutable
// snapshot. Decide reads it, nothing here changes it.
type Directory struct {
	Revision uint64 // grows with every change the observer saw
	Agents   map[string]protocol.Profile
	Holders  map[string]protocol.Holder // those present, by holder id
	Fleet    *protocol.Fleet            // the settings for all agents; nil is none
	Health   map[string]AgentHealth     // of the agents that failed of late; nil as a rule

	// LastPresent is when the observer saw the last holder go that an agent was
	// present by (protocol.Holder.Attends). An agent that is present, or of which it
	// never saw one, is not in it.
	LastPresent map[string]time.Time

	// ConnectedSince is since when the observer has had the engine's answers
	// without a break. Zero is not connected. Who was cut off may not judge
	// others absent: their presence may have lapsed with its own.
	ConnectedSince time.Time

	counted   map[string]load // by Count
	contracts bool            // by Count: an agent expects something of a package
	contract  Contract        // by WithContract

	breakers map[string]breakerView // by At: those that are not closed
	asOf     time.Time

	ticket string // by forTicket: whose agent is chosen, where that depends on it

	reserved    map[string]bool // by Reserve
	allReserved bool
}

// Count has Load and its like know each agent's load, where they went through all
// holders for each handoff. The maker of a snapshot calls it when that is complete.
func (d *Directory) Count() {
	d.counted = nil
	d.counted = d.loads()
	d.contracts = d.findContract()
}

// Agent returns the profile of an agent: its name alone where it is not known. Human
// exists without one.
func (d *Directory) Agent(id string) (protocol.Profile, bool) {
	if d != nil {
		if p, ok := d.Agents[id]; ok {
			return p, true
		}
	}
	if id == protocol.Human {
		return protocol.Profile{ID: protocol.Human, Name: "a person"}, true
	}
	return protocol.Profile{ID: id}, false
}

// Spelled returns the agent that a name means which a model wrote: the one that has it, else the only
// one whose name differs in case, blanks, hyphens and underscores alone.
func (d *Directory) Spelled(name string) (agent string, ok bool) {
	if _, known := d.Agent(name); known || d == nil {
		return name, known
	}
	for id := range d.Agents {
		if protocol.SpelledAlike(id, name) {
			if ok {
				return "", false
			}
			agent, ok = id, true
		}
	}
	if !ok && protocol.SpelledAlike(protocol.Human, name) { // exists without a profile
		return protocol.Human, true
	}
	return agent, ok
}

// WithFleet returns a snapshot with the settings of the fleet.
func (d *Directory) WithFleet(f *protocol.Fleet) *Directory {
	if d == nil || d.Fleet == f {
		return d
	}
	next := *d
	next.Fleet = f
	return &next
}

// WithAgent returns a snapshot with one agent more; nil is none.
func (d *Directory) WithAgent(profile *protocol.Profile) *Directory {
	if d == nil || profile == nil {
		return d
	}
	next := *d
	next.Agents = make(map[string]protocol.Profile, len(d.Agents)+1)
	maps.Copy(next.Agents, d.Agents)
	next.Agents[profile.ID] = *profile
	return &next
}

// fleetPolicy are the policies that the fleet sets for all agents.
func (d *Directory) fleetPolicy() protocol.PolicyOverrides {
	if d == nil || d.Fleet == nil {
		return protocol.PolicyOverrides{}
	}
	return d.Fleet.Policy
}

// Load counts the live holders that serve an agent, and their slots. Holders
// that merely poll, and those that drain, do not serve.
func (d *Directory) Load(agent string) (live, slots, busy int) {
	l := d.load(agent)
	return l.live, l.slots, l.busy
}

// Polled is when an agent that polls was last heard of. False is that it does not
// poll: it has claimed nothing that it holds, and not polled within its patience.
// An agent without a profile can poll no more.
func (d *Directory) Polled(agent string) (last time.Time, polls bool) {
	if _, known := d.Agent(agent); !known {
		return time.Time{}, false
	}
	l := d.load(agent)
	return l.polled, l.polling
}

// Attended tells whether an agent is there: a worker serves it, or it polls.
func (d *Directory) Attended(agent string) bool {
	live, _, _ := d.Load(agent)
	_, polls := d.Polled(agent)
	return live > 0 || polls
}

func (d *Directory) load(agent string) (l load) {
	switch {
	case d == nil:
	case d.counted != nil:
		l = d.counted[agent]
	default:
		for _, h := range d.Holders {
			if h.Agent == agent {
				l.add(h)
			}
		}
	}
	return l
}

// load is what Load and Polled tell of one agent.
type load struct {
	live, slots, busy int
	polling           bool
	polled            time.Time
}

func (l *load) add(h protocol.Holder) {
	switch {
	case h.Serves():
		l.live++
		l.slots += h.Slots
		l.busy += h.Busy
	case h.Polling && h.Attends():
		l.polling = true
		if h.PolledAt.After(l.polled) {
			l.polled = h.PolledAt
		}
	}
}

// share is how much of the slots is busy; without slots, all.
func (l load) share() float64 {
	if l.slots == 0 {
		return 1
	}
	return float64(l.busy) / float64(l.slots)
}

// loads counts for all agents in one pass.
func (d *Directory) loads() map[string]load {
	if d.counted != nil {
		return d.counted
	}
	all := make(map[string]load, len(d.Agents))
	for _, h := range d.Holders {
		l := all[h.Agent]
		l.add(h)
		all[h.Agent] = l
	}
	return all
}

// Present tells whether a holder is there.
func (d *Directory) Present(holder string) bool {
	if d == nil {
		return false
	}
	_, ok := d.Holders[holder]
	return ok
}

// With returns a snapshot in which the holder is present too.
func (d *Directory) With(h protocol.Holder) *Directory {
	next := *d
	next.counted = nil
	next.Holders = make(map[string]protocol.Holder, len(d.Holders)+1)
	for id, holder := range d.Holders {
		next.Holders[id] = holder
	}
	next.Holders[h.ID] = h
	return &next
}
