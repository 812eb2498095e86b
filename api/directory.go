package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// A reader sees every agent, even if it sees few handoffs, because an agent must find the agent to
// hand off to. It sees only profiles and the counts of workers and offers. An operator also sees
// the workers, with their hosts, and the lanes.

// Availability summarizes the presence of an agent's workers. It is computed for each answer and
// not stored.
type Availability string

const (
	Present  Availability = "present"  // a worker is running, with free slots
	Busy     Availability = "busy"     // all slots are taken; new offers wait in the queue
	Paused   Availability = "paused"   // by an operator; offers wait
	Draining Availability = "draining" // the last workers finish their work and take no more
	Polling  Availability = "polling"  // no worker, but a program claimed or polled recently
	Absent   Availability = "absent"   // neither; after the acknowledge timeout its handoffs are rerouted or escalated
)

// AgentStatus is an agent with the state of its workers and its queue.
type AgentStatus struct {
	protocol.Profile
	Availability Availability `json:"availability"`
	AbsentSince  time.Time    `json:"absent_since,omitzero"` // when this process saw the last worker leave
	Workers      int          `json:"workers"`               // running workers that serve it
	Slots        int          `json:"slots"`
	Busy         int          `json:"busy"`
	PolledAt     time.Time    `json:"polled_at,omitzero"` // the last poll, if it polls
	InHand       int          `json:"in_hand,omitempty"`  // with max_concurrency: the handoffs that count against it
	Gates        []string     `json:"gates,omitempty"`    // handoffs to it that need approval, in words
	// Breaker is its breaker, unless that is closed.
	Breaker *BreakerStatus `json:"breaker_status,omitempty"`
	Queued  int            `json:"queued"`          // offers in its queue, including those in work
	Oldest  time.Time      `json:"oldest,omitzero"` // when the oldest of them was queued; Agents has it
}

// availabilityOf returns the availability of an agent by its holders in a directory.
func availabilityOf(p *protocol.Profile, d *lifecycle.Directory) Availability {
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

// person exists without registration.
var person = protocol.Profile{ID: protocol.Human, Name: "a person"}

// Agents returns all agents by name, and the person if any handoff waits for one.
func (c *Session) Agents(ctx context.Context) ([]AgentStatus, error) {
	d, err := allowed(ctx, c, "Agents", c.s.b.Directory)
	if err != nil {
		return nil, err
	}
	queues, err := c.s.b.Queues(ctx) // a few requests, while one queue after the other takes four each
	if err != nil {
		return nil, err
	}
	queued, oldest := map[string]int{}, map[string]time.Time{}
	for _, lane := range queues {
		queued[lane.Agent] += lane.Depth
		if at := oldest[lane.Agent]; at.IsZero() || lane.Oldest.Before(at) {
			oldest[lane.Agent] = lane.Oldest
		}
	}
	var all []AgentStatus
	add := func(p protocol.Profile) error {
		status, err := c.s.agentStatus(ctx, d, p)
		status.Queued, status.Oldest = queued[p.ID], oldest[p.ID]
		all = append(all, status)
		return err
	}
	if _, registered := d.Agents[protocol.Human]; !registered && queued[protocol.Human] > 0 {
		if err := add(person); err != nil {
			return nil, err
		}
	}
	for _, id := range slices.Sorted(maps.Keys(d.Agents)) {
		if err := add(*d.Agents[id]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Agent returns one agent, its workers and its queue.
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

// agentStatus returns the status of an agent except for its queue.
func (s *Service) agentStatus(ctx context.Context, d *lifecycle.Directory, p protocol.Profile) (AgentStatus, error) {
	v := AgentStatus{Profile: p, Availability: availabilityOf(&p, d), Gates: explain.AgentGates(p, d.Fleet)}
	v.Workers, v.Slots, v.Busy = d.Load(p.ID)
	if breaker, has := breakerOf(p.ID, d, s.b.Now()); has && breaker.State != lifecycle.BreakerClosed {
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

// Profile returns the registered profile of an agent. The person always has one.
func (c *Session) Profile(ctx context.Context, agent string) (protocol.Profile, error) {
	return c.profile(ctx, "Profile", agent)
}

// profile checks the role for an operation and reads the profile of its agent.
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

// Holders returns the workers of an agent, by their ids.
func (c *Session) Holders(ctx context.Context, agent string) ([]protocol.Holder, error) {
	d, err := allowed(ctx, c, "Holders", c.s.b.Directory)
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

// Queues returns the lanes that have offers, including those of names without an agent.
func (c *Session) Queues(ctx context.Context) ([]broker.QueueStatus, error) {
	return allowed(ctx, c, "Queues", c.s.b.Queues)
}

// PutAgent registers an agent or replaces its profile, and creates its queue.
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
	// The queue must exist before the first offer can be pulled.
	return s.b.EnsureQueue(ctx, p.ID)
}

// PauseAgent stops an agent from taking handoffs. Its offers wait.
func (c *Session) PauseAgent(ctx context.Context, agent string) (protocol.Profile, error) {
	p, err := c.profile(ctx, "PauseAgent", agent)
	if err == nil {
		err = noPerson(p.ID, "paused", "; handoffs for a person always wait")
	}
	if err == nil {
		p.Paused = true
		err = c.s.putAgent(ctx, &p)
	}
	return p, err
}

// ResumeAgent ends a pause.
func (c *Session) ResumeAgent(ctx context.Context, agent string) (protocol.Profile, error) {
	p, err := c.profile(ctx, "ResumeAgent", agent)
	if err == nil {
		p.Paused = false
		err = c.s.putAgent(ctx, &p)
	}
	return p, err
}

// RemoveAgent deletes an agent and returns its last profile. Its queue stays.
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

// noPerson refuses operations on the person, who exists without registration and ends every chain
// of escalation.
func noPerson(agent, verb, instead string) error {
	if agent != protocol.Human {
		return nil
	}
	return protocol.Errorf(protocol.CodeInvalid, "agent", "%s cannot be %s: every escalation ends there%s", protocol.Human, verb, instead)
}

const (
	// FindBytesMax is the length of the longest task that FindAgents accepts.
	FindBytesMax = 16 << 10
	// FindMax is the largest number of agents that FindAgents returns.
	FindMax = 100
	// nearestNamed is the number of agents that a refusal names.
	nearestNamed = 3
)

// FindAgents returns the agents whose profiles match the words of a task (lifecycle.Match), the
// best first. They are at most most. A task has at most FindBytesMax bytes, and most is 1 to
// FindMax. If no match is certain, it also returns a *protocol.Error of CodeNoMatch, which
// names the nearest agents.
func (c *Session) FindAgents(ctx context.Context, task string, most int) (Matches, error) {
	if err := c.may("FindAgents"); err != nil {
		return Matches{}, err
	}
	if strings.TrimSpace(task) == "" {
		return Matches{}, protocol.Errorf(protocol.CodeMissing, "task", "must describe the work")
	}
	if err := checkFind(task, most); err != nil {
		return Matches{}, err
	}
	d, err := c.s.b.Directory(ctx)
	if err != nil {
		return Matches{}, err
	}
	matches := lifecycle.Match(d, task, most)
	if matches.Certain {
		return matches, nil
	}
	nearest := "no profile has a word of it"
	if len(matches.Found) > 0 {
		var names []string
		for _, f := range matches.Found[:min(len(matches.Found), nearestNamed)] {
			names = append(names, fmt.Sprintf("%s (%.1f)", f.Agent, f.Score))
		}
		nearest = "nearest: " + strings.Join(names, ", ")
	}
	return matches, protocol.Errorf(protocol.CodeNoMatch, "task", "no agent is certain for %s; handle it yourself, or name one; %s", quoted(task), nearest)
}

func checkFind(task string, most int) error {
	if len(task) > FindBytesMax {
		return protocol.Errorf(protocol.CodeTooLarge, "task", "is %d bytes, and at most %d are searched for", len(task), FindBytesMax)
	}
	if most < 1 || most > FindMax {
		return protocol.Errorf(protocol.CodeInvalid, "most", "must be from 1 to %d", FindMax)
	}
	return nil
}

// Recommendations are agents to hand off to, the best first.
type Recommendations struct {
	Agents []Recommended `json:"agents"`
	// Learned reports that an index contributed the ends of earlier handoffs.
	Learned bool `json:"learned"`
}

// recommendSince is the age up to which ended handoffs count for a recommendation.
const recommendSince = 30 * 24 * time.Hour

// RecommendAgents ranks the agents that an agent may hand off to. It does so for a task, or for
// any task if that is empty. It ranks by the words of the task and by the ends of its handoffs to them
// in the last 30 days (lifecycle.Recommend). It does not route handoffs.
func (c *Session) RecommendAgents(ctx context.Context, from, task string, most int) (Recommendations, error) {
	filter := ask.Filter{Source: []string{from}, Since: time.Now().Add(-recommendSince)}
	if err := c.mayFilter("RecommendAgents", filter); err != nil {
		return Recommendations{}, err
	}
	if err := protocol.CheckID("from", from); err != nil {
		return Recommendations{}, err
	}
	if err := checkFind(task, most); err != nil {
		return Recommendations{}, err
	}
	d, err := c.s.b.Directory(ctx)
	if err != nil {
		return Recommendations{}, err
	}
	ends, learned := map[string]lifecycle.Ends{}, false
	if c.s.cfg.Index != nil {
		figures, err := c.s.cfg.Index.Figures(ctx, ask.FiguresQuery{Filter: filter, Top: ask.FiguresTopMax})
		if learned = err == nil; err != nil && ctx.Err() != nil {
			return Recommendations{}, err
		}
		for _, f := range figures.ByAgent {
			ends[f.Key] = lifecycle.Ends{Succeeded: f.Succeeded, Failed: f.Failed}
		}
	}
	return Recommendations{lifecycle.Recommend(d, from, task, ends, most), learned}, nil
}

// quoted returns the beginning of a text in quotation marks.
func quoted(text string) string {
	const most = 60
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + "…"
	}
	return fmt.Sprintf("%q", text)
}

// Fleet has the settings for all agents, and their revision.
type Fleet struct {
	protocol.Fleet
	Revision uint64 `json:"revision"` // 0: never set
}

// Fleet returns the settings for all agents. An agent's profile takes precedence over them, and
// a package over both.
func (c *Session) Fleet(ctx context.Context) (Fleet, error) {
	if err := c.may("Fleet"); err != nil {
		return Fleet{}, err
	}
	fleet, rev, err := c.s.b.Fleet(ctx)
	return Fleet{fleet, rev}, err
}

// PutFleet replaces those settings. If their revision has changed since, the error has
// CodeConflict, and nothing is changed.
func (c *Session) PutFleet(ctx context.Context, fleet Fleet) (Fleet, error) {
	if err := c.may("PutFleet"); err != nil {
		return fleet, err
	}
	fleet.UpdatedAt = time.Now().UTC().Truncate(time.Millisecond)
	rev, err := c.s.b.PutFleet(ctx, fleet.Fleet, fleet.Revision)
	if errors.Is(err, broker.ErrConflict) {
		return fleet, protocol.Errorf(protocol.CodeConflict, "revision", "is %d, and another change came first; read the settings again", fleet.Revision)
	}
	fleet.Revision = rev
	return fleet, err
}

// KeyLimits are the limits by key that are in use.
type KeyLimits struct {
	Keys []KeyStatus `json:"keys"`
}

// KeyLimits lists the keys with a limit that were used lately, by key.
func (c *Session) KeyLimits(ctx context.Context) (KeyLimits, error) {
	if err := c.may("KeyLimits"); err != nil {
		return KeyLimits{}, err
	}
	all, err := c.s.b.KeyLimits().Statuses(ctx)
	return KeyLimits{Keys: all}, err
}

// BreakerStatus is the breaker of an agent at the time of the answer.
type BreakerStatus struct {
	Agent string       `json:"agent"`
	State BreakerState `json:"state"`
	// Until is when time alone changes the state: when the breaker becomes half-open, or a probe's
	// place becomes free.
	Until       time.Time              `json:"until,omitzero"`
	Failed      int                    `json:"failed"` // different handoffs since the last success
	Trips       int                    `json:"trips,omitempty"`
	OpenedAt    time.Time              `json:"opened_at,omitzero"`
	LastFailure *protocol.LastFailure  `json:"last_failure,omitempty"`
	Failures    []string               `json:"failures,omitempty"` // their tickets
	Probes      []string               `json:"probes,omitempty"`   // of a breaker that is not closed
	Policy      protocol.BreakerPolicy `json:"policy"`
}

// breakerOf returns the status of an agent's breaker. It returns false if the agent has none.
func breakerOf(agent string, d *lifecycle.Directory, now time.Time) (BreakerStatus, bool) {
	policy := d.BreakerPolicy(agent)
	if policy.Threshold == 0 {
		return BreakerStatus{Agent: agent, State: lifecycle.BreakerClosed, Policy: policy}, false
	}
	h := d.Health[agent]
	v := BreakerStatus{Agent: agent, Failed: len(h.Failures), Trips: h.Trips, OpenedAt: h.OpenedAt, LastFailure: h.LastFailure, Policy: policy}
	v.State, v.Until = lifecycle.Breaker(h.Health, policy, now)
	for _, f := range h.Failures {
		v.Failures = append(v.Failures, f.Ticket)
	}
	for _, p := range h.Probes {
		v.Probes = append(v.Probes, p.Ticket)
	}
	return v, true
}

// Breakers returns the breakers of all agents that have one, sorted by agent.
func (c *Session) Breakers(ctx context.Context) ([]BreakerStatus, error) {
	d, err := allowed(ctx, c, "Breakers", c.s.b.Directory)
	if err != nil {
		return nil, err
	}
	var all []BreakerStatus
	for _, id := range slices.Sorted(maps.Keys(d.Agents)) {
		if v, has := breakerOf(id, d, c.s.b.Now()); has {
			all = append(all, v)
		}
	}
	return all, nil
}

// ResetBreaker closes the breaker of an agent, and deletes its failures.
func (c *Session) ResetBreaker(ctx context.Context, agent string) (BreakerStatus, error) {
	p, err := c.profile(ctx, "ResetBreaker", agent)
	if err == nil {
		err = noPerson(p.ID, "reset", ", and has no breaker")
	}
	if err == nil {
		err = c.s.b.ResetBreaker(ctx, p.ID)
	}
	if err != nil {
		return BreakerStatus{}, err
	}
	d, err := c.s.b.Directory(ctx)
	if err != nil {
		return BreakerStatus{}, err
	}
	return BreakerStatus{Agent: p.ID, State: lifecycle.BreakerClosed, Policy: d.BreakerPolicy(p.ID)}, nil
}
