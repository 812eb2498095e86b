package api

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Directory lists and changes the agents that handoffs are submitted to.
//
// A reader sees every agent, also one that sees few handoffs: an agent must find the agent to
// hand off to. Profiles and counts of workers and offers are all that it learns. An operator
// sees the workers themselves, with their hosts, and the lanes.
type Directory interface {
	// Agents returns all agents by name, and the person once something waits for one.
	Agents(ctx context.Context) ([]AgentStatus, error)
	// Agent returns one agent with what is known of its workers and its queue.
	Agent(ctx context.Context, agent string) (AgentStatus, error)
	// Profile returns what is registered of an agent. The person has a profile always.
	Profile(ctx context.Context, agent string) (protocol.Profile, error)
	// Holders returns the workers of an agent, by their ids.
	Holders(ctx context.Context, agent string) ([]protocol.Holder, error)
	// Queues returns the lanes that have offers, those of names without an agent included.
	Queues(ctx context.Context) ([]broker.QueueStatus, error)
	// PutAgent registers an agent or replaces its profile, and makes its queue.
	PutAgent(ctx context.Context, profile protocol.Profile) (protocol.Profile, error)
	// PauseAgent keeps an agent from taking handoffs. Its offers wait.
	PauseAgent(ctx context.Context, agent string) (protocol.Profile, error)
	// ResumeAgent ends a pause.
	ResumeAgent(ctx context.Context, agent string) (protocol.Profile, error)
	// RemoveAgent forgets an agent and returns its last profile. Its queue stays.
	RemoveAgent(ctx context.Context, agent string) (protocol.Profile, error)
	// Fleet returns the settings that hold for all agents. An agent's profile wins over them, and a
	// package over both.
	Fleet(ctx context.Context) (Fleet, error)
	// PutFleet replaces those settings. Where their revision is another one by now, the error has
	// CodeConflict, and nothing is changed.
	PutFleet(ctx context.Context, fleet Fleet) (Fleet, error)
}

// Finder finds the agent to hand off to.
type Finder interface {
	// FindAgents returns the agents whose profiles have the words of a task (lifecycle.Match), the
	// best first, most of them at most. A task is at most FindBytesMax, and most from 1 to FindMax.
	// Where none of them is certain, it returns them with a *protocol.Error of CodeNoMatch, which
	// names the nearest.
	FindAgents(ctx context.Context, task string, most int) (lifecycle.Matches, error)
	// RecommendAgents ranks the agents that an agent may hand off to, for a task or, where that is
	// empty, for any, by their words and by how its handoffs to them have ended in the last 30 days
	// (lifecycle.Recommend). No handoff is routed by it.
	RecommendAgents(ctx context.Context, from, task string, most int) (Recommendations, error)
}

// Availability is what the presence of its workers says of an agent. It is computed for
// each answer, and stored nowhere.
type Availability string

const (
	Present  Availability = "present"  // a worker is there, with free slots
	Busy     Availability = "busy"     // all slots are taken; what comes waits in the queue
	Paused   Availability = "paused"   // on purpose; offers wait
	Draining Availability = "draining" // the last workers finish what they have and take no more
	Polling  Availability = "polling"  // no worker: it claims, or has polled within its patience
	Absent   Availability = "absent"   // neither is there: after the acknowledge timeout its handoffs go elsewhere
)

// AgentStatus is an agent with what is known of its workers.
type AgentStatus struct {
	protocol.Profile
	Availability Availability `json:"availability"`
	AbsentSince  time.Time    `json:"absent_since,omitzero"` // where this process saw the last worker go
	Workers      int          `json:"workers"`               // live ones that serve it
	Slots        int          `json:"slots"`
	Busy         int          `json:"busy"`
	PolledAt     time.Time    `json:"polled_at,omitzero"` // where it polls: when it was last heard of
	InHand       int          `json:"in_hand,omitempty"`  // where it has max_concurrency: what counts against it
	Gates        []string     `json:"gates,omitempty"`    // which handoffs to it are approved first, in words
	// Breaker is its breaker, where that is not closed.
	Breaker *BreakerStatus `json:"breaker_status,omitempty"`
	Queued  int            `json:"queued"` // offers in its queue, those being worked on included
}

// AvailabilityOf judges an agent by the holders that a directory has of it.
func AvailabilityOf(p protocol.Profile, d *lifecycle.Directory) Availability {
	switch why, unavailable := d.Unavailable(p); {
	case why == lifecycle.UnfitPaused:
		return Paused
	case why == lifecycle.UnfitBusy:
		return Busy
	case !unavailable:
		if workers, _, _ := d.Load(p.ID); workers == 0 && p.ID != protocol.Human {
			return Polling
		}
		return Present
	}
	for _, h := range d.Holders {
		if h.Agent == p.ID && h.Draining {
			return Draining
		}
	}
	return Absent
}

// person exists without having been registered.
var person = protocol.Profile{ID: protocol.Human, Name: "a person"}

// Agents implements Directory.
func (c *Session) Agents(ctx context.Context) ([]AgentStatus, error) {
	if err := c.may("Agents"); err != nil {
		return nil, err
	}
	d, err := c.s.b.Directory(ctx)
	if err != nil {
		return nil, err
	}
	var all []AgentStatus
	if _, registered := d.Agents[protocol.Human]; !registered {
		status, err := c.s.agentWithQueue(ctx, d, person)
		if err != nil {
			return nil, err
		}
		if status.Queued > 0 {
			all = append(all, status)
		}
	}
	queues, err := c.s.b.Queues(ctx) // a few requests, where a queue each takes four
	if err != nil {
		return nil, err
	}
	queued := map[string]int{}
	for _, lane := range queues {
		queued[lane.Agent] += lane.Depth
	}
	for _, id := range slices.Sorted(maps.Keys(d.Agents)) {
		status, err := c.s.agentStatus(ctx, d, d.Agents[id])
		if err != nil {
			return nil, err
		}
		status.Queued = queued[id]
		all = append(all, status)
	}
	return all, nil
}

// Agent implements Directory.
func (c *Session) Agent(ctx context.Context, agent string) (AgentStatus, error) {
	profile, err := c.profile(ctx, "Agent", agent)
	if err != nil {
		return AgentStatus{}, err
	}
	d, err := c.s.b.Directory(ctx)
	if err != nil {
		return AgentStatus{}, err
	}
	return c.s.agentWithQueue(ctx, d, profile)
}

func (s *Service) agentWithQueue(ctx context.Context, d *lifecycle.Directory, p protocol.Profile) (AgentStatus, error) {
	v, err := s.agentStatus(ctx, d, p)
	if err == nil {
		v.Queued, err = s.b.QueueDepth(ctx, p.ID)
	}
	return v, err
}

// agentStatus returns what is known of an agent beside its queue.
func (s *Service) agentStatus(ctx context.Context, d *lifecycle.Directory, p protocol.Profile) (AgentStatus, error) {
	v := AgentStatus{Profile: p, Availability: AvailabilityOf(p, d), Gates: explain.AgentGates(p, d.Fleet)}
	v.Workers, v.Slots, v.Busy = d.Load(p.ID)
	if breaker, has := BreakerOf(p.ID, d, s.b.Now()); has && breaker.State != lifecycle.BreakerClosed {
		v.Breaker = &breaker
	}
	switch v.Availability {
	case Absent:
		v.AbsentSince = d.LastPresent[p.ID]
	case Polling:
		v.PolledAt, _ = d.Polled(p.ID)
	}
	inHand, limit, err := s.b.Capacity(ctx, p.ID)
	if err != nil {
		return v, err
	}
	v.InHand = inHand
	if limit > 0 && inHand >= limit && (v.Availability == Present || v.Availability == Polling) {
		v.Availability = Busy
	}
	return v, nil
}

// Profile implements Directory.
func (c *Session) Profile(ctx context.Context, agent string) (protocol.Profile, error) {
	return c.profile(ctx, "Profile", agent)
}

// profile checks the role for an operation and reads the agent that it is about.
func (c *Session) profile(ctx context.Context, operation, agent string) (protocol.Profile, error) {
	if err := c.may(operation); err != nil {
		return protocol.Profile{}, err
	}
	if err := protocol.CheckID("agent", agent); err != nil {
		return protocol.Profile{}, err
	}
	profile, err := c.s.b.Profile(ctx, agent)
	if errors.Is(err, broker.ErrNotFound) && agent == protocol.Human {
		return person, nil
	}
	if errors.Is(err, broker.ErrNotFound) {
		return profile, protocol.Errorf(protocol.CodeUnknownAgent, "agent", "no agent is called %s", agent)
	}
	return profile, err
}

// Holders implements Directory.
func (c *Session) Holders(ctx context.Context, agent string) ([]protocol.Holder, error) {
	if err := c.may("Holders"); err != nil {
		return nil, err
	}
	d, err := c.s.b.Directory(ctx)
	if err != nil {
		return nil, err
	}
	var holders []protocol.Holder
	for _, id := range slices.Sorted(maps.Keys(d.Holders)) {
		if h := d.Holders[id]; h.Agent == agent && !h.IsPoll() {
			holders = append(holders, h)
		}
	}
	return holders, nil
}

// Queues implements Directory.
func (c *Session) Queues(ctx context.Context) ([]broker.QueueStatus, error) {
	if err := c.may("Queues"); err != nil {
		return nil, err
	}
	return c.s.b.Queues(ctx)
}

// PutAgent implements Directory.
func (c *Session) PutAgent(ctx context.Context, p protocol.Profile) (protocol.Profile, error) {
	if err := c.may("PutAgent"); err != nil {
		return p, err
	}
	err := c.s.putAgent(ctx, &p)
	return p, err
}

// putAgent stores a profile that a person has changed.
func (s *Service) putAgent(ctx context.Context, p *protocol.Profile) error {
	p.UpdatedAt = time.Now().UTC().Truncate(time.Millisecond)
	p.RegisteredByWork = false
	if err := p.Validate(); err != nil {
		return err
	}
	if err := s.b.PutProfile(ctx, *p); err != nil {
		return err
	}
	// Its queue has to be there before the first offer can be pulled.
	return s.b.EnsureQueue(ctx, p.ID)
}

// PauseAgent implements Directory.
func (c *Session) PauseAgent(ctx context.Context, agent string) (protocol.Profile, error) {
	p, err := c.profile(ctx, "PauseAgent", agent)
	if err == nil {
		err = noPerson(p.ID, "paused", "; what waits for a person waits anyway")
	}
	if err == nil {
		p.Paused = true
		err = c.s.putAgent(ctx, &p)
	}
	return p, err
}

// ResumeAgent implements Directory.
func (c *Session) ResumeAgent(ctx context.Context, agent string) (protocol.Profile, error) {
	p, err := c.profile(ctx, "ResumeAgent", agent)
	if err == nil {
		p.Paused = false
		err = c.s.putAgent(ctx, &p)
	}
	return p, err
}

// RemoveAgent implements Directory.
func (c *Session) RemoveAgent(ctx context.Context, agent string) (protocol.Profile, error) {
	p, err := c.profile(ctx, "RemoveAgent", agent)
	if err == nil {
		err = noPerson(p.ID, "removed", "")
	}
	if err != nil {
		return p, err
	}
	return p, c.s.b.RemoveProfile(ctx, p.ID)
}

// noPerson refuses what cannot be done to a person, who exists without having been
// registered and ends every chain of escalation.
func noPerson(agent, verb, instead string) error {
	if agent != protocol.Human {
		return nil
	}
	return protocol.Errorf(protocol.CodeInvalid, "agent", "%s cannot be %s: every escalation ends there%s", protocol.Human, verb, instead)
}
