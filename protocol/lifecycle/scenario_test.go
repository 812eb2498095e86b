package lifecycle

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// TestScenarios plays the files in testdata/scenarios. A file holds scenarios,
// each under a line "== name". Above the first may stand rows of table_test.go:
// "open" or "closed", an event and its cells. A line of a scenario is
//
//	[+duration] word arguments [-> what comes of it]
//
// where +duration moves the clock first. What comes of it is the events of a
// reconcile (Decide), or those of the append that a caller makes, in the words of
// brief; "nothing" is none, "error CODE" a refusal. The words:
//
// The fleet and its observer
//
//	agent NAME [capability[:proficiency]]… [key=value]…   a profile, anew
//	no_agent NAME                                          its entry is deleted
//	live AGENT HOLDER [busy=N]   poll AGENT HOLDER   gone HOLDER   forget HOLDER
//
// poll is a claim that holds something, or its agent's last poll; forget is gone
// without that it was seen, by an observer that came later.
//
//	fleet [key=value]…   its settings, anew: policies for all agents
//	connected   disconnected
//	reserved AGENT…   other members of the group have these
//
// The source, or whoever submits for it
//
//	submit [key=value]…     anyway [key=value]…   (what was promised already)
//	undelivered [key=value]…   (what was handed on, and no agent can be given)
//	cancel [children]   answer   permit   deny [others]
//
// Anybody
//
//	take AGENT HOLDER   reroute AGENT [DEADLINE]   return   redrive   dismiss
//
// A holder
//
//	claim HOLDER [ack_within=DURATION]   accept HOLDER   start   progress   complete   partial   release
//	reject [ALTERNATIVE]   ask WHAT [estimate=DURATION]   permission WHAT   defer DURATION
//	extend DURATION
//	fail [permanent] [retry_after=DURATION]   malformed   hand_back   escalate
//	handoff N   handoff_after N (it begins with the result)   suspend N…   complete_with N…   await N…   (N is a child's ordinal)
//	goto N   goto_early N (before it completes)
//	accepts_late HOLDER     acknowledges a claim that it has lost: told so, nothing changes
//	late HOLDER [partial] [malformed] [yes|no]   finishes, and had lost it: told so, its result is kept
//
// Any of them
//
//	EVENT   its vector in protocol/testdata/vectors, as it is; for an event with no word here
//
// The supervisor
//
//	reconcile   children N:OUTCOME…   chain N:OUTCOME|open|on   source open|completed|ended (its parent's attempt)   arrived   lost   (of the return)
//
// What is there
//
//	state key=value…   fields of the state as on the wire, "_" for a space; "-" is
//	                   absent. made, closed_children, succeeded, awaited and
//	                   after are lists of ordinals; since t0 where it is an instant
//	policy key=value…  as state, of the policy; "-" is the default
//	duties             what must stand outside, and "owes" where a closed one does
//	settled            whether nothing becomes of its return any more
//	routing            the last routing decision
//	ended              the offer that the last append ended, as AGENT OFFER
//	reason             of the last reroute, escalation or end: its code, and in words
//
// Keys of a policy (max_attempts, work_timeout_ms, …) go for a package and for
// a profile; durations may be written 90s.
func TestScenarios(t *testing.T) {
	for name, body := range scenarios(t) {
		for _, scenario := range strings.Split("\n"+body, "\n== ")[1:] {
			title, steps, _ := strings.Cut(scenario, "\n")
			t.Run(name+"/"+title, func(t *testing.T) { play(t, steps) })
		}
	}
}

// scenarios are the files with scenarios, by their names.
func scenarios(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/scenarios/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	all := map[string]string{}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".txt")] = string(body)
	}
	return all
}

// rowsOf are the rows of a table that stand above scenarios.
func rowsOf(t *testing.T, table string) (rows string) {
	t.Helper()
	for _, body := range scenarios(t) {
		above, _, _ := strings.Cut("\n"+body, "\n== ")
		for line := range strings.Lines(above) {
			if row, is := strings.CutPrefix(line, table+" "); is {
				rows += row
			}
		}
	}
	return rows
}

// vectorEvent is the event of a type in the vectors of the wire.
func vectorEvent(kind p.EventType, m p.Meta) p.Event {
	body, err := os.ReadFile("../testdata/vectors/valid/event-" + strings.ReplaceAll(string(kind), "_", "-") + ".json")
	if err != nil {
		panic(err)
	}
	e := p.NewEvent(kind)
	if err := json.Unmarshal(body, &struct{ Input p.Event }{e}); err != nil {
		panic(err)
	}
	reflect.ValueOf(e).Elem().FieldByName("Meta").Set(reflect.ValueOf(m))
	return e
}

// stage is one scenario under way.
type stage struct {
	*line
	t      *testing.T
	d      *Directory
	now    time.Time
	fences map[string]uint64 // of each holder, the last
	claims map[string]uint64 // of each holder, the offer that it claimed last
	routed *p.Routing
	reason string // of the last reroute, escalation or end
}

func play(t *testing.T, steps string) {
	g := &stage{line: &line{t: t}, t: t, d: fleet(), now: t0, fences: map[string]uint64{}, claims: map[string]uint64{}}
	for i, text := range strings.Split(steps, "\n") {
		text, _, _ = strings.Cut(text, "#")
		text, want, wants := strings.Cut(text, "->")
		words := strings.Fields(text)
		if len(words) > 0 && strings.HasPrefix(words[0], "+") {
			g.now = g.now.Add(g.duration(words[0][1:]))
			words = words[1:]
		}
		if len(words) == 0 {
			continue
		}
		got := g.step(words[0], words[1:])
		if s := g.state; s.Fence != 0 {
			g.fences[s.Holder] = s.Fence
		}
		if want = strings.Join(strings.Fields(want), " "); wants && got != want {
			t.Fatalf("line %d, %s:\n got %s\nwant %s", i+1, strings.Join(words, " "), got, want)
		}
		if !wants && words[0] == "reconcile" {
			t.Fatalf("line %d: reconcile, and what comes of it is not said (%s)", i+1, got)
		}
		if t.Failed() {
			t.Fatalf("at line %d: %s", i+1, strings.Join(words, " "))
		}
	}
}

func (g *stage) step(word string, args []string) string {
	g.t.Helper()
	switch word {
	case "agent":
		g.profile(args)
	case "live", "poll":
		h := p.Holder{ID: args[1], Agent: args[0], LeaseMS: lease, Slots: 4, Polling: word == "poll"}
		if len(args) > 2 {
			fmt.Sscanf(args[2], "busy=%d", &h.Busy)
		}
		g.d.Holders[h.ID] = h
		delete(g.d.LastPresent, h.Agent)
	case "gone":
		who := g.d.Holders[args[0]].Agent
		delete(g.d.Holders, args[0])
		if !g.d.Attended(who) {
			g.d.LastPresent[who] = g.now
		}
	case "forget":
		delete(g.d.LastPresent, g.d.Holders[args[0]].Agent)
		delete(g.d.Holders, args[0])
	case "connected":
		g.d.ConnectedSince = g.now
	case "disconnected":
		g.d.ConnectedSince = time.Time{}
	case "reserved":
		g.d.reserved = map[string]bool{}
		for _, agent := range args {
			g.d.reserved[agent] = true
		}
	case "no_agent":
		delete(g.d.Agents, args[0])
	case "reconcile":
		return g.told(g.line.decide(g.d, g.now))
	case "submit", "anyway", "undelivered":
		return g.submit(word, args)
	case "fleet":
		policy := map[string]any{}
		for _, arg := range args {
			key, value, _ := strings.Cut(arg, "=")
			policy[key] = g.value(value)
		}
		g.d.Fleet = &p.Fleet{}
		g.override(&g.d.Fleet.Policy, policy)
	case "policy":
		g.check(fields(g.t, g.state.Policy), args)
	case "state":
		g.check(g.stateFields(), args)
	case "duties":
		return dutiesInWords(g.state)
	case "settled":
		return fmt.Sprint(ReturnSettled(g.state, g.d))
	case "routing":
		return routingInWords(g.routed)
	case "ended":
		if e, ok := EndedBetween(g.before, g.state); ok {
			return fmt.Sprint(e.Agent, " ", e.Offer)
		}
		return "nothing"
	case "reason":
		return g.reason
	default:
		step, err := g.act(word, args)
		if err != nil {
			return "error " + string(err.(*p.Error).Code)
		}
		return g.told(g.take(step))
	}
	return ""
}

// told is brief, and remembers the routing and the reason.
func (g *stage) told(events []p.Event) string {
	for _, e := range events {
		if offered, ok := e.(*p.Offered); ok && offered.Routing != nil {
			g.routed = offered.Routing
		}
		if code, facts, words, ok := reasonOf(e); ok {
			g.reason = code + ": " + words
			if len(words) == 0 || facts != nil && !strings.HasPrefix(words, ReasonWords(code, *facts)) {
				g.t.Errorf("%s: %+v in words is %q", code, facts, words)
			}
		}
	}
	return brief(events)
}

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
		case "deadline":
			s.Deadline = g.now.Add(g.duration(value))
		default:
			if !g.relation(&s, key, value) {
				policy[key] = g.value(value)
			}
		}
	}
	g.override(&s.Overrides, policy)
	if word == "undelivered" {
		_, why := Admit(s, g.d)
		if why == nil {
			g.t.Fatal("it can be delivered")
		}
		step, err := SubmitUndelivered(ticket, s, p.Submitted{Package: []byte(`{}`)}, g.d, why.Error(), g.now)
		if err != nil {
			g.t.Fatal(err)
		}
		return g.told(g.take(step)[1:])
	}
	if word == "anyway" {
		step, err := SubmitAnyway(ticket, s, p.Submitted{Package: []byte(`{}`)}, g.d, g.now)
		if err != nil {
			g.t.Fatal(err)
		}
		return g.told(g.take(step))
	}
	step, err := Submit(ticket, s, p.Submitted{Package: []byte(`{}`)}, g.d, g.now)
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
		case key == "paused":
			profile.Paused = value == "true"
		case key == "max_execution":
			profile.MaxExecutionMS = g.duration(value).Milliseconds()
		default:
			policy[key] = g.value(value)
		}
	}
	g.override(&profile.Policy, policy)
	g.d.Agents[profile.ID] = profile
	g.d.Revision++
}

// override sets the fields of a policy by their names on the wire.
func (g *stage) override(o *p.PolicyOverrides, policy map[string]any) {
	g.t.Helper()
	body, _ := json.Marshal(policy)
	dec := json.NewDecoder(strings.NewReader(string(body)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(o); err != nil {
		g.t.Fatalf("policy %s: %v", body, err)
	}
}

func (g *stage) value(s string) any {
	if n, err := strconv.Atoi(s); err == nil {
		return n
	}
	if d, err := time.ParseDuration(s); err == nil {
		return d.Milliseconds()
	}
	if b, err := strconv.ParseBool(s); err == nil {
		return b
	}
	return s
}

func (g *stage) duration(s string) time.Duration {
	g.t.Helper()
	d, err := time.ParseDuration(s)
	if err != nil {
		g.t.Fatal(err)
	}
	return d
}

func (g *stage) measure(s string, otherwise float64) (string, float64) {
	id, number, found := strings.Cut(s, ":")
	if !found {
		return id, otherwise
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil {
		g.t.Fatal(err)
	}
	return id, f
}

// check compares fields of the state. Instants are durations since t0.
// stateFields are the fields of the state, with some of its children beside them.
func (g *stage) stateFields() map[string]any {
	g.t.Helper()
	have := fields(g.t, g.state)
	if c := g.state.Children; c != nil {
		for key, set := range map[string]p.Bits{"made": c.Made, "closed_children": c.Closed, "succeeded": c.Succeeded, "cancelled": c.Cancelled, "awaited": c.Awaited, "after": c.After} {
			if numbers := set.Numbers(); len(numbers) > 0 {
				have[key] = strings.Trim(strings.ReplaceAll(fmt.Sprint(numbers), " ", ","), "[]")
			}
		}
	}
	return have
}

func (g *stage) check(have map[string]any, args []string) {
	g.t.Helper()
	for _, arg := range args {
		key, want, _ := strings.Cut(arg, "=")
		got := "-"
		switch v := have[key].(type) {
		case nil:
		case []any:
			got = strings.Trim(strings.ReplaceAll(fmt.Sprint(v), " ", ","), "[]")
		default:
			if got = strings.ReplaceAll(fmt.Sprint(v), " ", "_"); strings.HasSuffix(key, "_at") || strings.HasSuffix(key, "_since") || strings.HasSuffix(key, "_until") {
				at, _ := time.Parse(time.RFC3339Nano, got)
				got = at.Sub(t0).String()
			}
		}
		if got != want {
			g.t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
}
