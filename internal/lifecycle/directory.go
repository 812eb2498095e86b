package lifecycle

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/internal/words"
	p "github.com/agenthandoff/handoff/protocol"
)

// Directory is one observer's immutable snapshot of agents and holders. Decide only reads it.
type Directory struct {
	Revision uint64 // grows with every observed change
	Agents   map[string]*p.Profile
	Holders  map[string]p.Holder    // the present ones, by holder id
	Fleet    *p.Fleet               // settings for all agents; nil: none
	Health   map[string]AgentHealth // of the agents that failed recently; usually nil

	// Schedules are those of the fleet by their names; usually nil.
	Schedules map[string]p.Schedule
	// Rules are the rules for signals by their names; usually nil.
	Rules map[string]p.Rule

	// LastPresent is when the observer saw the last holder of an agent disappear
	// (p.Holder.Attends). It omits agents that are present, or whose holders it never saw.
	LastPresent map[string]time.Time

	// ConnectedSince is since when the engine has answered the observer without interruption; zero if
	// it is not connected. After a disconnect an observer may not judge others absent: their presence
	// may have lapsed with its own.
	ConnectedSince time.Time

	counted   map[string]load // by Count
	contracts bool            // by Count: an agent has a contract
}

// Count caches each agent's load. Without it Load and its like scan all holders for each handoff.
// The maker of a snapshot calls it when the snapshot is complete.
func (d *Directory) Count() {
	d.counted = nil
	d.counted = d.loads()
	d.contracts = d.findContract()
}

// Query holds the arguments of one decision: the directory, which no decision changes, the time,
// and the facts about the handoff that its state does not have. Directory.At makes the usual one.
type Query struct {
	*Directory // nil: no agent is known
	Now        time.Time
	// Contract checks the package against the contract of an agent; nil: the package was not read.
	Contract Contract
	// Reserved are the agents of the other members of the handoff's group.
	Reserved Reserved

	ticket   string                 // of a choice among equals
	breakers map[string]breakerView // by withBreakers: those that are not closed
}

// At returns the query about a directory at an instant.
func (d *Directory) At(now time.Time) Query { return Query{Directory: d, Now: now} }

// Contract checks a package against an agent's contract, and returns the violation, or nil. It is
// pure, and is built by the code that has the package: the core reads no package and checks no
// schema.
type Contract func(agent *p.Profile) *p.Error

// WantsContract reports whether a package must be read before an agent is chosen: an agent has a
// contract, and the query has none.
func (q Query) WantsContract() bool { return q.Contract == nil && q.HasContracts() }

// Reserved is a set of agents that a handoff may not go to. The zero value is empty.
type Reserved struct {
	agents map[string]bool
	all    bool // the group has no room for another assignment
}

// has reports whether another member of the group has an agent.
func (r Reserved) has(agent string) bool { return r.all || r.agents[agent] }

// and returns the set with more agents.
func (r Reserved) and(agents []string) Reserved {
	all := make(map[string]bool, len(r.agents)+len(agents))
	maps.Copy(all, r.agents)
	for _, agent := range agents {
		all[agent] = true
	}
	return Reserved{all, r.all}
}

// ReservedFor returns the agents that member n of a group may not have: those that the group names
// for, or has assigned to, other members. named lists the agents that the group names, by member.
func ReservedFor(group p.State, named []string, n int) Reserved {
	r := Reserved{agents: map[string]bool{}}
	for i, agent := range named {
		if i != n && agent != "" {
			r.agents[agent] = true
		}
	}
	if c := group.Children; c != nil {
		r.all = len(c.Assigned) >= p.AssignmentsMax
		for _, a := range c.Assigned {
			if a.N != n {
				r.agents[a.Agent] = true
			}
		}
		for _, a := range c.Assigned {
			if a.N == n {
				delete(r.agents, a.Agent)
			}
		}
	}
	if n >= 0 && n < len(named) {
		delete(r.agents, named[n])
	}
	return r
}

// forTicket returns the query for the choice of one ticket's agent.
func (q Query) forTicket(ticket string) Query {
	q.ticket = ticket
	return q
}

// withBreakers returns the query with the states of the breakers. The usual query has none, because
// no agent has failed recently.
func (q Query) withBreakers() Query {
	q.breakers = nil
	if q.Directory == nil {
		return q
	}
	for agent, h := range q.Health {
		q.setBreaker(agent, h.Health)
	}
	return q
}

// setBreaker adds the breaker of an agent, unless it is closed.
func (q *Query) setBreaker(agent string, h p.Health) {
	state, until := Breaker(h, q.BreakerPolicy(agent), q.Now)
	if state == BreakerClosed {
		return
	}
	if q.breakers == nil {
		q.breakers = map[string]breakerView{}
	}
	q.breakers[agent] = breakerView{state, until, h.Probes, len(h.Failures)}
}

// afterEnd returns the query after the end of an attempt, which a supervisor has yet to record.
func (q Query) afterEnd(a Attempt) Query {
	policy := q.BreakerPolicy(a.Agent)
	if policy.Threshold == 0 {
		return q
	}
	health := Fold(q.Health[a.Agent].Health, a, policy, q.Now)
	q = q.withBreakers()
	delete(q.breakers, a.Agent)
	q.setBreaker(a.Agent, health)
	return q
}

// Agent returns the profile of an agent; only its name if it is unknown. Human exists without a
// profile.
func (d *Directory) Agent(id string) (*p.Profile, bool) {
	if d != nil {
		if p, ok := d.Agents[id]; ok {
			return p, true
		}
	}
	if id == p.Human {
		return &p.Profile{ID: p.Human, Name: "a person"}, true
	}
	return &p.Profile{ID: id}, false
}

// Spelled returns the agent meant by a name that a model wrote: the exact name, else the only one
// that differs only in case, blanks, hyphens and underscores.
func (d *Directory) Spelled(name string) (agent string, ok bool) {
	if _, known := d.Agent(name); known || d == nil {
		return name, known
	}
	switch alike := d.Alike(name); {
	case len(alike) == 1:
		return alike[0], true
	case len(alike) == 0 && p.SpelledAlike(p.Human, name): // exists without a profile
		return p.Human, true
	}
	return "", false
}

// Alike returns the agents whose names differ from a name only in case, blanks, hyphens and
// underscores, sorted.
func (d *Directory) Alike(name string) []string {
	return d.agentsWhere(func(id string) bool { return p.SpelledAlike(id, name) })
}

// agentsWhere returns the names of the agents that meet a condition, sorted.
func (d *Directory) agentsWhere(meets func(id string) bool) (all []string) {
	for id := range d.Agents {
		if meets(id) {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return all
}

// revision returns the revision of a directory, which may be nil.
func (d *Directory) revision() uint64 {
	if d == nil {
		return 0
	}
	return d.Revision
}

// noFleet has the settings of a fleet that has none.
var noFleet p.Fleet

// fleet returns the settings for all agents, which may be empty.
func (d *Directory) fleet() *p.Fleet {
	if d == nil || d.Fleet == nil {
		return &noFleet
	}
	return d.Fleet
}

// Load counts the live holders that serve an agent, and their slots. Holders that only poll or that
// drain do not serve.
func (d *Directory) Load(agent string) (live, slots, busy int) {
	l := d.load(agent)
	return l.live, l.slots, l.busy
}

// Polled returns when a polling agent was last seen. It returns false for an agent that holds no
// claim and has not polled within its patience, and for an agent without a profile.
func (d *Directory) Polled(agent string) (last time.Time, polls bool) {
	if _, known := d.Agent(agent); !known {
		return time.Time{}, false
	}
	l := d.load(agent)
	return l.polled, l.polling
}

// Attended reports whether an agent is available: a worker serves it, or it polls.
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

// load holds the results of Load and Polled for one agent.
type load struct {
	live, slots, busy int
	polling           bool
	polled            time.Time
}

func (l *load) add(h p.Holder) {
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

// share returns the busy part of the slots; 1 without slots.
func (l load) share() float64 {
	if l.slots == 0 {
		return 1
	}
	return float64(l.busy) / float64(l.slots)
}

// loads counts the load of all agents in one pass.
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

// Present reports whether a holder is present.
func (d *Directory) Present(holder string) bool {
	if d == nil {
		return false
	}
	_, ok := d.Holders[holder]
	return ok
}

// Choice among the agents that are fit. All compared values come from the directory and the ticket:
// the same input gives the same choice.

// successSteps is how many steps of success are distinguished: small differences are chance.
const successSteps = 20

// routeBy returns how the agent of a package is chosen; empty is p.RouteByFit.
func routeBy(s p.Summary, d *Directory) p.RouteBy {
	if own := d.fleet().Routing; s.RouteBy == "" && own != nil {
		return own.By
	}
	return s.RouteBy
}

// balance sets the values of a candidate that its rule compares.
func (q Query) balance(c *rankedCandidate, by p.RouteBy) {
	switch by {
	case p.RouteBySuccess:
		c.worth = math.Round(c.Score*successOf(q.Health[c.Agent].Health)*successSteps) / successSteps
		c.turn = turnOf(q.ticket, c.Agent)
	case p.RouteByLoad:
		c.worth, c.turn = c.Score, turnOf(q.ticket, c.Agent)
	default:
		c.worth = c.Score
	}
}

// successOf returns the recent success rate of an agent. Two successes and two failures are added
// as a prior. An agent without recent failures has 1: its successes are not counted.
func successOf(h p.Health) float64 {
	if h.Failed <= 0 {
		return 1
	}
	return (h.OK + 2) / (h.OK + h.Failed + 4)
}

// turnOf spreads tickets over equal agents, so that submitters with the same directory do not all
// choose one.
func turnOf(ticket, agent string) uint64 {
	hash := fnv.New64a()
	hash.Write([]byte(ticket + "/" + agent))
	return mix(hash.Sum64())
}

// mix spreads the last bytes of a hash over all bits.
func mix(n uint64) uint64 {
	n ^= n >> 33
	n *= 0xff51afd7ed558ccd
	n ^= n >> 33
	n *= 0xc4ceb9fe1a85ec53
	return n ^ n>>33
}

// ranked returns the first fit agent that a package names besides its target, available ones first.
// A handoff for a capability is routed again instead.
func ranked(s p.Summary, ticket string, q Query, excluded []string) (p.Routing, bool) {
	if len(s.Ranked) == 0 || s.Target.Capability != "" || q.Directory == nil { // usual case
		return p.Routing{}, false
	}
	from, best := edgesOf(s, q.Directory), p.Routing{Revision: q.Revision, Excluded: excluded}
	standing := -1
	for _, agent := range s.Ranked {
		c, ok := q.candidate(agent, ticket, &s, demand{wanted: requiredOf(s)}, from, excluded)
		if !ok {
			continue
		}
		best.Candidates = append(best.Candidates, c.Candidate)
		if own := min(c.standing, 1); own > standing {
			best.Choice, best.Warnings, standing = agent, c.warnings, own
		}
	}
	return best, best.Choice != ""
}

// candidate returns an agent as a candidate for a handoff. ok is false if it may not have the handoff
// now, by its edges, its breaker or any rule of fit.
func (q Query) candidate(agent, ticket string, s *p.Summary, wanted demand, from edges, excluded []string) (c rankedCandidate, ok bool) {
	profile, known := q.Agent(agent)
	if !known || agent == s.Source || slices.Contains(excluded, agent) || q.Reserved.has(agent) || !from.lead(profile) {
		return c, false
	}
	m, why := q.fit(profile, s, wanted)
	_, _, lets := q.lets(agent, ticket)
	l := q.load(agent)
	c = rankedCandidate{Candidate: p.Candidate{Agent: agent, Score: m.score, Live: l.live, Busy: l.busy}, standing: availabilityRank(profile, l), warnings: m.warnings}
	return c, why == "" && lets
}

// compareCandidates puts agents with workers first, then those that poll. Ties are broken by the
// fewest warnings, the highest worth, the lowest load, the turn, and the name.
func compareCandidates(a, b rankedCandidate) int {
	return cmp.Or(cmp.Compare(b.standing, a.standing), cmp.Compare(len(a.warnings), len(b.warnings)), cmp.Compare(b.worth, a.worth),
		cmp.Compare(a.load, b.load), cmp.Compare(a.turn, b.turn), cmp.Compare(a.Agent, b.Agent))
}

// Found is an agent that Match has found.
type Found struct {
	Agent string  `json:"agent"`
	Score float64 `json:"score"` // BM25; comparable within one query only
	// Words are the query's words that occur in the profile, highest weight first.
	Words []string `json:"words"`
}

// Matches is the result of Match, best first.
type Matches struct {
	Found []Found `json:"found"`
	// Certain is true if the best is well ahead of the second and matches enough of the query: handing
	// off to it without asking is reasonable. Otherwise a person or a model chooses.
	Certain bool `json:"certain"`
	// ChosenBy names the command or the model that chose the first, if the words were not certain.
	ChosenBy string `json:"chosen_by,omitempty"`
}

// Others returns the agents besides the first that are worth asking if that one refuses, without
// the source: those with half the best score, at most p.RankedMax.
func (m Matches) Others(source string) (agents []string) {
	best := 0.0
	for _, f := range m.Found {
		best = max(best, f.Score)
	}
	for _, f := range m.Found[min(1, len(m.Found)):] {
		if f.Agent != source && f.Score >= matchOther*best && len(agents) < p.RankedMax {
			agents = append(agents, f.Agent)
		}
	}
	return agents
}

// Choose moves an agent to the front that a command or a model has chosen.
func (m *Matches) Choose(agent, by string, most int) {
	chosen := Found{Agent: agent, Words: []string{}}
	rest := slices.DeleteFunc(slices.Clone(m.Found), func(f Found) bool {
		if f.Agent == agent {
			chosen = f
		}
		return f.Agent == agent
	})
	m.ChosenBy, m.Found = by, append([]Found{chosen}, rest...)
	m.Found = m.Found[:min(len(m.Found), max(most, 1))]
}

const (
	matchAhead  = 1.25 // the best needs this many times the score of the second
	matchEnough = 0.25 // the best needs this part of the weight of all query words
	matchOther  = 0.5  // a further agent needs this part of the best score
)

// Match finds the agents whose profiles match the words of a task: BM25 over id, name,
// specialization and capabilities, which count three times, examples, which count twice, and the
// description. It skips agents that are paused or accept no handoffs, and the person. It calls no
// model, and takes about 20 ms for 2,000 agents. It returns at most most agents, each with at least
// one word of the task.
func Match(d *Directory, task string, most int) Matches {
	question := words.Of(task)
	matches := Matches{Found: []Found{}}
	if d == nil || len(question) == 0 {
		return matches
	}
	agents, docs := profileWords(d)
	shares := map[string]float64{}
	for i, rank := range words.Ranks(question, docs) {
		if rank.Score > 0 {
			matches.Found = append(matches.Found, Found{agents[i], rank.Score, rank.Words})
			shares[agents[i]] = rank.Share
		}
	}
	slices.SortFunc(matches.Found, func(a, b Found) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(a.Agent, b.Agent))
	})
	if all := matches.Found; len(all) > 0 {
		ahead := len(all) == 1 || all[0].Score >= matchAhead*all[1].Score
		matches.Certain = ahead && shares[all[0].Agent] >= matchEnough
	}
	matches.Found = matches.Found[:min(len(matches.Found), max(most, 0))]
	return matches
}

// CanBeFound reports whether an agent takes handoffs that words or a model route to it.
func CanBeFound(profile *p.Profile) bool {
	return profile.ID != p.Human && !profile.Paused && profile.Accepts()
}

// profileWords returns the words of all agents that take handoffs.
func profileWords(d *Directory) (agents []string, docs []words.Doc) {
	for id, profile := range d.Agents {
		if id == p.Human || !CanBeFound(profile) {
			continue
		}
		var doc words.Doc
		doc.Add(3, id, profile.Name, profile.Specialization)
		for _, c := range profile.Capabilities {
			doc.Add(3, c.ID)
		}
		doc.Add(2, profile.Examples...)
		doc.Add(1, profile.Description)
		agents, docs = append(agents, id), append(docs, doc)
	}
	return agents, docs
}

// Unfitness is the reason why an agent does not take a package.
type Unfitness string

const (
	unfitRefuses    Unfitness = "not_accepting" // it accepts no handoffs
	unfitAutonomy   Unfitness = "autonomy"      // the package asks for more autonomy than it has
	unfitRisk       Unfitness = "risk"          // the package has a higher risk than it may take
	unfitContract   Unfitness = "contract"      // the package violates its contract
	unfitCapability Unfitness = "capabilities"  // it lacks a required capability
	UnfitPaused     Unfitness = "paused"        // until an operator resumes it
	UnfitAbsent     Unfitness = "absent"        // no worker serves it, and it does not poll
	UnfitBusy       Unfitness = "busy"          // all slots of its workers are taken
)

// Unavailable returns why an agent takes nothing now; false if it may. A person is never absent or
// busy. It does not cover packages that an agent never takes: see fit.
func (d *Directory) Unavailable(profile *p.Profile) (Unfitness, bool) {
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

// match is how well an agent meets a demand.
type match struct {
	score    float64  // 0 to 1
	warnings []string // capabilities that are missing or too weak
}

// fit is the only function that decides whether an agent may get a package. Every choice of an
// agent uses it (a submission, a hand-off, a reroute, a take, a bid, an escalation). An empty
// result means yes. A partial match of capabilities is fit, with a warning for each that is missing
// or too weak, unless the policy is strict. A person is fit for everything.
func (q Query) fit(agent *p.Profile, s *p.Summary, wanted demand) (match, Unfitness) {
	if agent.ID == p.Human {
		return match{score: 1}, ""
	}
	switch {
	case !agent.Accepts():
		return match{}, unfitRefuses
	case exceeds(s.Risk, agent.MaxRisk):
		return match{}, unfitRisk
	case overAutonomy(agent, s):
		return match{}, unfitAutonomy
	case q.breaks(agent, s) != nil:
		return match{}, unfitContract
	}
	return capable(agent, s, q.Directory, wanted)
}

// fitAbove reports whether an authority may get a package that is escalated to it. It needs no
// capability: it decides about the work, and need not do it.
func (q Query) fitAbove(agent *p.Profile, s *p.Summary) bool {
	_, why := q.fit(agent, s, demand{})
	return why == ""
}

// broken returns all rules of fit that an agent breaks, except that it accepts no handoffs.
func (q Query) broken(agent *p.Profile, s *p.Summary) (rules []string) {
	if agent.ID == p.Human {
		return nil
	}
	_, lacks := capable(agent, s, q.Directory, demand{wanted: requiredOf(*s)})
	for _, rule := range []struct {
		name   Unfitness
		broken bool
	}{{unfitRisk, exceeds(s.Risk, agent.MaxRisk)}, {unfitAutonomy, overAutonomy(agent, s)}, {unfitContract, q.breaks(agent, s) != nil}, {unfitCapability, lacks != ""}} {
		if rule.broken {
			rules = append(rules, string(rule.name))
		}
	}
	return rules
}

// fitNamed is fit for an agent named by a package, by a reroute or by a take. The error names the
// broken rule.
func (q Query) fitNamed(agent *p.Profile, s *p.Summary) (match, *p.Error) {
	wanted := demand{wanted: requiredOf(*s)}
	m, why := q.fit(agent, s, wanted)
	switch why {
	case unfitRefuses:
		return m, p.Errorf(p.CodeNotAccepting, "target.agent", "%s takes no handoffs (accepts_handoffs is false)", agent.ID)
	case unfitRisk:
		return m, p.Errorf(p.CodeAutonomy, "audit.risk_level", "%s may take a risk of at most %s, this is %s", agent.ID, agent.MaxRisk, s.Risk)
	case unfitAutonomy:
		return m, p.Errorf(p.CodeAutonomy, "autonomy_budget.amount", "%s has an autonomy budget of %g, this asks for %g", agent.ID, *agent.AutonomyBudget, *s.Autonomy.Amount)
	case unfitContract:
		return m, q.breaks(agent, s)
	case unfitCapability:
		if len(m.warnings) < len(wanted.wanted) {
			return m, p.Errorf(p.CodeNoAgent, "required_capabilities", "%s, and strict_capabilities is set", strings.Join(m.warnings, "; "))
		}
		return m, p.Errorf(p.CodeNoAgent, "required_capabilities", "%s has none of the required capabilities in the proficiency asked for", agent.ID)
	}
	return m, nil
}

// capable matches the capabilities of an agent against a demand.
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
		if need.ID == s.Target.Capability { // the requested capability is not optional
			return m, unfitCapability
		}
	}
	m.score = total / float64(len(wanted.wanted))
	strict := wanted.all || strictCapabilities(s, agent, d)
	if len(m.warnings) > 0 && (strict || len(m.warnings) == len(wanted.wanted)) {
		return m, unfitCapability
	}
	return m, ""
}

// strictCapabilities reports whether an agent must have all required capabilities: the package's
// setting, else the agent's, else the fleet's.
func strictCapabilities(s *p.Summary, agent *p.Profile, d *Directory) bool {
	for _, own := range []*bool{s.Overrides.StrictCapabilities, agent.Policy.StrictCapabilities, d.fleet().Policy.StrictCapabilities} {
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

// riskLevel returns the rank of a risk, from 1; 0 without one.
func riskLevel(r p.Risk) int { return slices.Index(p.Risks, r) + 1 }

// exceeds reports whether a risk is above an agent's limit.
func exceeds(risk, most p.Risk) bool { return riskLevel(risk) > riskLevel(cmp.Or(most, p.RiskHigh)) }
