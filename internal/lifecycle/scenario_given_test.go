package lifecycle

import (
	"strings"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// What scenarios begin with: packages, profiles, and the settings of the fleet.

func (g *stage) submit(word string, args []string) string {
	g.t.Helper()
	s := p.Summary{Type: p.Sequential, Source: "src", Target: p.Target{Agent: "a"}, Priority: p.Normal,
		Deadline: g.now.Add(24 * time.Hour), Digest: "sha256:00"}
	policy := map[string]any{}
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		switch key {
		case "to":
			s.Target = p.Target{Agent: value}
		case "capability":
			s.Target = p.Target{Capability: value}
		case "from":
			s.Source = value
		case "needs":
			for _, need := range strings.Split(value, ",") {
				id, least := g.measure(need, 0)
				s.Requires = append(s.Requires, p.RequiredCapability{ID: id, MinProficiency: least})
			}
		case "priority":
			s.Priority = p.Priority(value)
		case "risk":
			s.Risk = p.Risk(value)
		case "on_open":
			s.OnOpen = p.OnOpen(value)
		case "on_unknown":
			s.OnUnknown = p.OnOpen(value)
		case "ranked":
			s.Ranked = strings.Split(value, ",")
		case "bids": // how many are asked, and how many there have to be
			s.Bids = &p.Bids{WindowMS: 5_000}
			if most, least, ok := strings.Cut(value, "/"); ok {
				s.Bids.Most, s.Bids.Least = g.numbers([]string{most})[0], g.numbers([]string{least})[0]
			}
		case "call_of":
			s.CallOf = value
		case "by":
			s.RouteBy = p.RouteBy(value)
		case "deadline":
			s.Deadline = g.now.Add(g.duration(value))
		case "start":
			s.StartAt = g.now.Add(g.duration(value))
		default:
			if !g.relation(&s, key, value) {
				policy[key] = g.value(value)
			}
		}
	}
	g.override(&s.Overrides, policy)
	if word == "undelivered" {
		_, why := Admit(s, g.query())
		if why == nil {
			g.t.Fatal("it can be delivered")
		}
		step, err := SubmitUndelivered(ticket, s, p.Submitted{Package: []byte(`{}`)}, g.query(), why.Error())
		if err != nil {
			g.t.Fatal(err)
		}
		return g.told(g.take(step)[1:])
	}
	if word == "anyway" {
		step, err := SubmitAnyway(ticket, s, p.Submitted{Package: []byte(`{}`)}, g.query())
		if err != nil {
			g.t.Fatal(err)
		}
		return g.told(g.take(step))
	}
	step, err := Submit(ticket, s, p.Submitted{Package: []byte(`{}`)}, g.query())
	if err != nil {
		return "error " + string(err.(*p.Error).Code)
	}
	return g.told(g.take(step)[1:])
}

// relation reads what makes a handoff one of a type, or ties it to others.
func (g *stage) relation(s *p.Summary, key, value string) bool {
	g.t.Helper()
	group := func() *p.Aggregate {
		if s.Aggregate == nil {
			s.Type, s.Target, s.Aggregate = p.Broadcast, p.Target{}, &p.Aggregate{Size: 3, Mode: p.AggregateAll}
		}
		return s.Aggregate
	}
	switch key {
	case "type":
		s.Type = p.Type(value)
		if s.Type == p.Escalation {
			s.Target = p.Target{}
		}
	case "return": // within, and what happens if it does not come
		s.Type, s.ReturnExpected = p.Delegation, true
		if value != "" {
			s.Overrides.ReturnTimeoutMS = ptr(g.duration(value).Milliseconds())
		}
	case "wait":
		s.Wait, s.Parent, s.N = value, "parent", 1
	case "member":
		s.Group, s.Parent, s.N, s.Type = "group", "group", g.numbers([]string{value})[0]+1, p.Broadcast
	case "limits":
		s.Limits = g.limits(value)
	case "class":
		s.Class = value
	case "meter":
		s.Meter = int64(g.numbers([]string{value})[0])
	case "hops":
		s.Lineage, s.Parent, s.N = lineage(value), "parent", 1
	case "beside": // submitted under no lease, with the lineage of the parent that it names
		s.Lineage, s.Parent = lineage(value), "parent"
	case "approval", "approver", "approval_timeout", "approval_on_timeout":
		g.approval(s, key, value)
	case "locks": // how long it waits for them
		s.Workspace, s.Locks = "w", &p.Locks{Paths: []p.LockPath{{Path: "x", Mode: p.LockExclusive}}, WaitMS: ptr(g.duration(value).Milliseconds())}
	case "autonomy":
		s.Autonomy = &p.AutonomyBudget{Amount: ptr(float64(g.numbers([]string{value})[0]))}
	case "autonomy_risk":
		s.Autonomy = &p.AutonomyBudget{MaxRisk: p.Risk(value)}
	case "deciders":
		s.Deciders = strings.Split(value, ",")
	case "excluded": // they refused what it follows from
		s.Excluded = strings.Split(value, ",")
	case "origin":
		s.Origin = value
	case "awaits_source":
		s.AwaitsSource, s.Parent, s.N = true, "parent", 1
	case "of":
		s.EndOf = p.ReturnScope(value)
	case "chain_of":
		s.ChainOf, s.Parent, s.N = value, "parent", 1
	case "return_from":
		s.ReturnFrom = g.now.Add(g.duration(value))
	case "return_of":
		s.ReturnOf = value
	case "group":
		group().Mode = p.Aggregation(value)
	case "size":
		group().Size = g.numbers([]string{value})[0]
	case "counted":
		group().Counted = p.Bits("").With(g.numbers(strings.Split(value, ","))...)
	case "cancel_rest":
		group().CancelRest = value == "true"
	default:
		return false
	}
	return true
}

func (g *stage) profile(args []string) {
	g.t.Helper()
	profile, policy := p.Profile{ID: args[0]}, map[string]any{}
	for _, arg := range args[1:] {
		key, value, isKey := strings.Cut(arg, "=")
		switch {
		case !isKey:
			id, proficiency := g.measure(arg, 1)
			profile.Capabilities = append(profile.Capabilities, p.Capability{ID: id, Proficiency: proficiency})
		case key == "escalates_to":
			profile.EscalatesTo = value
		case key == "specialization":
			profile.Specialization = value
		case key == "accepts":
			profile.AcceptsHandoffs = ptr(value == "true")
		case key == "max_risk":
			profile.MaxRisk = p.Risk(value)
		case key == "hands_to":
			profile.HandsTo = strings.Split(value, ",")
		case key == "accepts_from":
			profile.AcceptsFrom = strings.Split(value, ",")
		case key == "handoffs":
			profile.Handoffs = p.HandoffMode(value)
		case key == "autonomy":
			profile.AutonomyBudget = ptr(float64(g.numbers([]string{value})[0]))
		case key == "contract": // which the package breaks
			profile.Contract = &p.Contract{}
			g.contract = func(agent *p.Profile) *p.Error {
				return p.Errorf(p.CodeContract, "context", "it breaks the contract of %s", agent.ID)
			}
		case key == "approve":
			profile.Approve = p.Approve(value)
		case key == "bids":
			profile.Bids = value == "true"
		case key == "paused":
			profile.Paused = value == "true"
		case key == "max_execution":
			profile.MaxExecutionMS = g.duration(value).Milliseconds()
		default:
			policy[key] = g.value(value)
		}
	}
	g.override(&profile.Policy, policy)
	g.d.Agents[profile.ID] = &profile
	g.d.Revision++
}
