package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

func TestRoute(t *testing.T) {
	need := func(id string, least float64) p.RequiredCapability {
		return p.RequiredCapability{ID: id, MinProficiency: least}
	}
	good := func(id string, proficiency float64) p.Profile {
		return p.Profile{ID: id, Capabilities: []p.Capability{{ID: "go", Proficiency: proficiency}}}
	}
	cases := []struct {
		name       string
		directory  *Directory
		capability string
		requires   []p.RequiredCapability
		risk       p.Risk
		excluded   []string
		want       string // agents, the best first; the warnings of the choice after a bar
	}{
		{name: "nobody has it", directory: fleet(agent("a", "rust")), capability: "go"},
		{name: "nothing is asked for", directory: fleet(agent("a", "go"))},
		{name: "no directory", capability: "go"},
		{name: "the most proficient", directory: fleet(good("a", 0.5), good("b", 0.9)), capability: "go", want: "b a"},
		{name: "by name where all is equal", directory: fleet(good("b", 1), good("a", 1), good("c", 1)), capability: "go", want: "a b c"},
		{name: "a specialization is a capability", directory: fleet(p.Profile{ID: "a", Specialization: "go"}), capability: "go", want: "a"},
		{name: "a stated proficiency goes before the specialization",
			directory: fleet(with(good("a", 0.2), func(x *p.Profile) { x.Specialization = "go" })),
			requires:  []p.RequiredCapability{need("go", 0.5)}},
		{name: "under the minimum is no match", directory: fleet(good("a", 0.49), good("b", 0.5)), requires: []p.RequiredCapability{need("go", 0.5)}, want: "b"},
		{name: "under the minimum in one is a partial match", want: "a | a has go at 0.1, 0.5 is required", directory: fleet(with(good("a", 0.1), func(x *p.Profile) {
			x.Capabilities = append(x.Capabilities, p.Capability{ID: "sql", Proficiency: 1})
		})), requires: []p.RequiredCapability{need("go", 0.5), need("sql", 0)}},
		{name: "a partial match is fit, with a warning", directory: fleet(agent("a", "go")),
			requires: []p.RequiredCapability{need("go", 0), need("sql", 0.5)}, want: "a | a lacks sql"},
		{name: "a whole match goes before a partial one", directory: fleet(agent("a", "go"), agent("b", "go", "sql")),
			requires: []p.RequiredCapability{need("go", 0), need("sql", 0)}, want: "b a"},
		{name: "the capability asked for by name is not optional", directory: fleet(agent("a", "sql"), agent("b", "go")),
			capability: "go", requires: []p.RequiredCapability{need("sql", 0)}, want: "b | b lacks sql"},
		{name: "the minimum of the capability asked for by name", directory: fleet(good("a", 0.3), good("b", 0.6)),
			capability: "go", requires: []p.RequiredCapability{need("go", 0.5)}, want: "b"},
		{name: "takes no handoffs", directory: fleet(with(good("a", 1), func(x *p.Profile) { x.AcceptsHandoffs = ptr(false) }), good("b", 0.1)), capability: "go", want: "b"},
		{name: "takes handoffs, and says so", directory: fleet(with(good("a", 1), func(x *p.Profile) { x.AcceptsHandoffs = ptr(true) })), capability: "go", want: "a"},
		{name: "may not take the risk", directory: fleet(with(good("a", 1), func(x *p.Profile) { x.MaxRisk = p.RiskLow }),
			with(good("b", 0.5), func(x *p.Profile) { x.MaxRisk = p.RiskMedium })), capability: "go", risk: p.RiskMedium, want: "b"},
		{name: "no risk is stated", directory: fleet(with(good("a", 1), func(x *p.Profile) { x.MaxRisk = p.RiskLow })), capability: "go", want: "a"},
		{name: "the highest risk, and no maximum is stated", directory: fleet(good("a", 1)), capability: "go", risk: p.RiskHigh, want: "a"},
		{name: "who is there goes before who is better", directory: fleet(good("a", 1), good("b", 0.1)).live("b", "w", 3), capability: "go", want: "b a"},
		{name: "who is there and paused does not", directory: fleet(good("a", 0.5), with(good("b", 1), func(x *p.Profile) { x.Paused = true })).live("b", "w", 0).live("a", "v", 4), capability: "go", want: "a b"},
		{name: "better goes before less busy", directory: fleet(good("a", 0.9), good("b", 1)).live("a", "v", 0).live("b", "w", 4), capability: "go", want: "b a"},
		{name: "the least busy of equals", directory: fleet(good("a", 1), good("b", 1)).live("a", "v", 2).live("b", "w", 1), capability: "go", want: "b a"},
		{name: "busy is a share of the slots", directory: fleet(good("a", 1), good("b", 1)).live("a", "v", 3).live("b", "w", 2).live("b", "x", 3), capability: "go", want: "b a"},
		{name: "the source is left out", directory: fleet(good("src", 1), good("a", 0.1)), capability: "go", want: "a"},
		{name: "a person is left out", directory: fleet(good(p.Human, 1)), capability: "go"},
		{name: "who refused is left out", directory: fleet(good("a", 1), good("b", 0.5), good("c", 0.2)), capability: "go", excluded: []string{"a", "b"}, want: "c"},
		{name: "no proficiency at all", directory: fleet(good("a", 0)), capability: "go"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := p.Summary{Source: "src", Target: p.Target{Capability: c.capability}, Requires: c.requires, Risk: c.risk}
			for range 20 { // a directory is a map: the same order every time
				routing, ok := route(s, Query{Directory: c.directory}, c.excluded)
				var names []string
				for _, candidate := range routing.Candidates {
					names = append(names, candidate.Agent)
				}
				got := strings.Join(names, " ")
				if len(routing.Warnings) > 0 {
					got += " | " + strings.Join(routing.Warnings, ", ")
				}
				if got != c.want || ok != (c.want != "") {
					t.Fatalf("got %q, want %q", got, c.want)
				}
				if ok && (routing.Choice != names[0] || routing.Revision != 7 || !slices.Equal(routing.Excluded, c.excluded)) {
					t.Fatalf("routing %+v", routing)
				}
			}
		})
	}
}

// TestRouteOfMany: however many fit, the record names a bounded number, the best.
func TestRouteOfMany(t *testing.T) {
	d := fleet()
	for i := range 500 {
		id := fmt.Sprintf("agent-%03d", i)
		d.Agents[id] = &p.Profile{ID: id, Capabilities: []p.Capability{{ID: "go", Proficiency: float64(i+1) / 500}}}
	}
	routing, ok := route(p.Summary{Target: p.Target{Capability: "go"}}, Query{Directory: d}, nil)
	if !ok || len(routing.Candidates) != candidatesKept || routing.Choice != "agent-499" {
		t.Errorf("chose %s of %d", routing.Choice, len(routing.Candidates))
	}
}

func TestSubmit(t *testing.T) {
	d := fleet(agent("a", "go"), with(agent("deaf", "go"), func(x *p.Profile) { x.AcceptsHandoffs = ptr(false) }),
		with(agent("timid", "go"), func(x *p.Profile) { x.MaxRisk = p.RiskLow }))
	up := fleet(agent("a"), with(agent("src"), func(x *p.Profile) { x.EscalatesTo = "a" }))
	cases := []struct {
		name  string
		s     p.Summary
		d     *Directory
		code  p.Code
		field string
		want  string
	}{
		{name: "an agent", s: p.Summary{Target: p.Target{Agent: "a"}}, d: d, want: "submitted; offered a (submitted)"},
		{name: "a person, though nobody is registered", s: p.Summary{Target: p.Target{Agent: p.Human}}, want: "submitted; offered human (submitted)"},
		{name: "a person has every capability", s: p.Summary{Target: p.Target{Agent: p.Human}, Requires: []p.RequiredCapability{{ID: "x"}}}, d: d, want: "submitted; offered human (submitted)"},
		{name: "a capability", s: p.Summary{Target: p.Target{Capability: "go"}}, d: d, want: "submitted; offered a (submitted)"},
		{name: "a partial match", s: p.Summary{Target: p.Target{Agent: "a"}, Requires: []p.RequiredCapability{{ID: "go"}, {ID: "sql"}}}, d: d, want: "submitted; offered a (submitted) warning"},
		{name: "an unknown agent", s: p.Summary{Target: p.Target{Agent: "nobody"}}, d: d, code: p.CodeUnknownAgent, field: "target.agent"},
		{name: "an agent, and no directory", s: p.Summary{Target: p.Target{Agent: "a"}}, code: p.CodeUnknownAgent, field: "target.agent"},
		{name: "an agent that takes none", s: p.Summary{Target: p.Target{Agent: "deaf"}}, d: d, code: p.CodeNotAccepting, field: "target.agent"},
		{name: "too much of a risk", s: p.Summary{Target: p.Target{Agent: "timid"}, Risk: p.RiskHigh}, d: d, code: p.CodeAutonomy, field: "audit.risk_level"},
		{name: "an agent without what is required", s: p.Summary{Target: p.Target{Agent: "a"}, Requires: []p.RequiredCapability{{ID: "sql"}}}, d: d, code: p.CodeNoAgent, field: "required_capabilities"},
		{name: "a capability nobody has", s: p.Summary{Target: p.Target{Capability: "sql"}}, d: d, code: p.CodeNoAgent, field: "target.capability"},
		{name: "a member of a group", s: p.Summary{Type: p.Broadcast, Target: p.Target{Agent: "a"}, Group: "g"}, d: d, want: "submitted; offered a (submitted)"},
		{name: "an escalation, to whom its source escalates", s: p.Summary{Type: p.Escalation}, d: up, want: "submitted; offered a (submitted)"},
		{name: "an escalation, and its source escalates to nobody", s: p.Summary{Type: p.Escalation}, d: d, want: "submitted; offered human (submitted)"},
		{name: "an escalation to somebody", s: p.Summary{Type: p.Escalation, Target: p.Target{Capability: "go"}}, d: d, want: "submitted; offered a (submitted)"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			c.s.Source = "src"
			step, err := Submit(ticket, c.s, p.Submitted{}, c.d.At(t0))
			if c.code != "" {
				wantError(t, err, c.code)
				if e, ok := err.(*p.Error); !ok || e.Field != c.field || step.Events != nil {
					t.Errorf("error %#v with %d events, want field %s and none", err, len(step.Events), c.field)
				}
				return
			}
			if err != nil || brief(step.Events) != c.want {
				t.Fatalf("%s, %v; want %s", brief(step.Events), err, c.want)
			}
			l := (&line{t: t}).takes(step, nil)
			if l.state.Phase != p.Pending || l.state.Offer != 1 || l.state.PackageSeq != 1 || l.state.Policy != p.DefaultPolicy() {
				t.Errorf("state %s", asJSON(t, l.state))
			}
			if want := t0.Add(30 * 24 * time.Hour); l.state.Deadline != want {
				t.Errorf("deadline %s, want the default %s", l.state.Deadline, want)
			}
		})
	}
}

// TestSubmitGroup: a group has no agent and no offer; its members are its children.
func TestSubmitGroup(t *testing.T) {
	s := p.Summary{Type: p.Broadcast, Source: "src", Aggregate: &p.Aggregate{Size: 1000, Mode: p.AggregateMajority}}
	step, err := Submit(ticket, s, p.Submitted{}, Query{Now: t0})
	if err != nil || brief(step.Events) != "submitted" {
		t.Fatalf("%s, %v", brief(step.Events), err)
	}
	state := (&line{t: t}).takes(step, nil).state
	if state.Phase != p.Pending || state.Agent != "" || state.Offer != 0 || state.Children.Count != 1000 || state.Children.Made.Len() != 1000 {
		t.Errorf("state %s", asJSON(t, state))
	}
	if duties := DutiesOf(state); duties != (Duties{WakeUp: true, Children: true, Mark: true}) {
		t.Errorf("duties %+v", duties)
	}
}

// TestSubmitAnyway: what was promised begins though its target is not to be had.
func TestSubmitAnyway(t *testing.T) {
	s := p.Summary{Source: "src", Target: p.Target{Agent: "a"}}
	for want, d := range map[string]*Directory{"submitted": fleet(), "submitted; offered a (submitted)": fleet(agent("a"))} {
		if step, err := SubmitAnyway(ticket, s, p.Submitted{}, d.At(t0)); err != nil || brief(step.Events) != want {
			t.Errorf("%s, %v, want %s", brief(step.Events), err, want)
		}
	}
}

// TestSubmittedAlone: a submission whose append held no offer is offered by the
// first reconcile, and where no worker is there to take it, ends at a person.
func TestSubmittedAlone(t *testing.T) {
	for name, target := range map[string]p.Target{"agent": {Agent: "a"}, "capability": {Capability: "go"}} {
		t.Run(name, func(t *testing.T) {
			bare := &p.Submitted{Meta: at(0), Ticket: ticket, Policy: p.DefaultPolicy(), Summary: p.Summary{Source: "src", Target: target}}
			l := (&line{t: t}).add(bare)
			if got := brief(l.decide(fleet(agent("a", "go")).At(t0.Add(sec)))); got != "offered a (submitted)" {
				t.Errorf("decided %s", got)
			}
			l = (&line{t: t}).add(bare)
			if got := brief(l.decide(fleet().At(t0.Add(29 * sec)))); got != "nothing" {
				t.Errorf("decided %s", got)
			}
			if next := NextReconcile(l.state, t0.Add(29*sec)); next != t0.Add(30*sec) {
				t.Errorf("next reconcile %s", next.Sub(t0))
			}
			if got := brief(l.decide(fleet().At(t0.Add(30 * sec)))); got != "timed_out acknowledge; escalated 1 >human; offered human (escalation)" {
				t.Errorf("decided %s", got)
			}
		})
	}
}

func TestBackoff(t *testing.T) {
	policy := p.DefaultPolicy()
	distinct, capped := map[time.Duration]bool{}, map[time.Duration]bool{}
	for i := range 1000 {
		s := p.State{Ticket: fmt.Sprintf("ticket-%d", i), Policy: policy}
		for attempt, middle := range []time.Duration{2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
			s.Retries, s.AttemptsTotal = attempt, attempt+1
			middle *= sec
			delay := Backoff(s)
			if delay < middle*8/10 || delay > middle*12/10 {
				t.Fatalf("%s, attempt %d: %s is not within 20%% of %s", s.Ticket, attempt+1, delay, middle)
			}
			if most := millis(policy.BackoffCapMS); delay > most {
				t.Fatalf("%s, attempt %d: %s is over the cap of %s", s.Ticket, attempt+1, delay, most)
			}
			if again := Backoff(s); again != delay {
				t.Fatalf("%s, attempt %d: %s, then %s", s.Ticket, attempt+1, delay, again)
			}
			switch attempt {
			case 0:
				distinct[delay] = true
			case 9:
				capped[delay] = true
			}
		}
	}
	if len(distinct) < 500 || len(capped) < 900 { // 800 ms wide, and a minute; whole milliseconds
		t.Errorf("1000 tickets have only %d delays at first, %d at the cap", len(distinct), len(capped))
	}
	// A replay years later, on another machine, gives this.
	fixed := p.State{Ticket: ticket, Policy: policy, Attempt: 1, AttemptsTotal: 1}
	if got := Backoff(fixed); got != 2069*time.Millisecond {
		t.Errorf("the delay of a known ticket changed to %s: running handoffs would retry at other instants", got)
	}
	fixed.RetryAfterMS = 60_000
	if got := Backoff(fixed); got != 64145*time.Millisecond {
		t.Errorf("with retry_after 1m: %s", got)
	}
	fixed.Policy.BackoffBaseMS, fixed.RetryAfterMS = 0, 0
	if got := Backoff(fixed); got != 0 {
		t.Errorf("with no base: %s", got)
	}
}
