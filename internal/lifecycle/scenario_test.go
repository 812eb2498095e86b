package lifecycle

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
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
//	fleet [key=value]…   its settings, anew: policies for all agents, and rules=NAME[:key=value]…,… for approvals; limits, edge_repeats,
//	                       experiment=TARGET>AGENT, handoffs, complexity=CLASS[:key=value]…,…
//	connected   disconnected
//	reserved AGENT…   other members of the group have these
//
// The source, or whoever submits for it
//
//	submit [key=value]…     anyway [key=value]…   (what was promised already)
//	undelivered [key=value]…   (what was handed on, and no agent can be given)
//	cancel [children]
//
// Anybody
//
//	answer   permit   deny [others]   (by=NAME, else the source for a question and a person for an escalation; question=N, else the one it asks)
//	approve AGENT [any]   approve_of AGENT BY   disapprove AGENT   (the answer of an approver to a gate)
//	gate KIND[,KIND]… AGENT   open KIND   refuse_gate KIND
//	award [AGENT:COST[:VALID]|AGENT:none]…   the calls for bids as they stand; of the others nothing has come
//	bid_answer open|gone|too_few|AGENT   (of a call: how its handoff stands; AGENT won)
//	take AGENT HOLDER   reroute AGENT [DEADLINE] [by=NAME]   return   redrive   dismiss   raise LIMITS
//
// A holder
//
//	claim HOLDER [ack_within=DURATION]   accept HOLDER   take_over HOLDER (from one that is gone)   start   progress   complete   partial   release
//	reject [ALTERNATIVE]   ask WHAT [estimate=DURATION]   permission WHAT   defer DURATION
//	extend DURATION   decide RISK [ID] (by itself)
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
//	remembered OUTCOME   what an index knows of it, after the ledger has lost its end
//	reconcile   children N:OUTCOME…   chain N:OUTCOME|open|on   source open|completed|ended (its parent's attempt)   arrived   lost   (of the return)
//
// Breakers (stage_words_test.go)
//
//	breaker [key=value]…   settings for all agents   others AGENT END N   other_probe AGENT   other_probe_ends AGENT END
//	health AGENT           its breaker's state, the handoffs that failed, and when it changes
//	due                    when a breaker may let the handoff through
//
// What is there
//
//	state key=value…   fields of the state as on the wire, "_" for a space; "-" is
//	                   absent. made, closed_children, succeeded, awaited and
//	                   after are lists of ordinals; since t0 where it is an instant
//	account            what was used of the limits, set aside and spent, and what is left
//	policy key=value…  as state, of the policy; "-" is the default
//	duties             what must stand outside, and "owes" where a closed one does
//	inbox AGENT        why the inbox of an agent, or of human, lists it
//	settled            whether nothing becomes of its return any more
//	spelled NAME       the agent that a result means by a name, with _ for blanks
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
	grants map[int]*p.Limits

	contract Contract
	reserved Reserved

	otherSeq uint64 // of the ends of other handoffs
}

// query returns the arguments of the next decision.
func (g *stage) query() Query {
	return Query{Directory: g.d, Now: g.now, Contract: g.contract, Reserved: g.reserved}
}

func play(t *testing.T, steps string) {
	g := &stage{line: &line{t: t}, t: t, d: fleet(), now: t0, fences: map[string]uint64{}, claims: map[string]uint64{}, grants: map[int]*p.Limits{}}
	for i, text := range strings.Split(steps, "\n") {
		text, _, _ = strings.Cut(" "+text, " #") // a hop has a hash of its own: a>b#1
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
		g.reserved = Reserved{}.and(args)
	case "no_agent":
		delete(g.d.Agents, args[0])
	case "reconcile":
		return g.told(g.line.decide(g.query()))
	case "submit", "anyway", "undelivered":
		return g.submit(word, args)
	case "fleet":
		g.fleet(args)
	case "policy":
		g.check(fields(g.t, g.state.Policy), args)
	case "state":
		g.check(g.stateFields(), args)
	case "account":
		return accountInWords(g.state)
	case "inbox":
		return cmp.Or(string(InboxReasonFor(g.state, args[0], g.d)), "nothing")
	case "duties":
		return dutiesInWords(g.state)
	case "settled":
		return fmt.Sprint(ReturnSettled(g.state, g.d))
	case "spelled":
		agent, _ := g.d.Spelled(strings.ReplaceAll(args[0], "_", " "))
		return cmp.Or(agent, "nothing")
	case "routing":
		return routingInWords(g.routed)
	case "ended":
		return g.ended()
	case "reason":
		return g.reason
	default:
		if said, ok := g.breaker(word, args); ok {
			return said
		}
		step, err := g.act(word, args)
		if err != nil {
			return "error " + string(err.(*p.Error).Code)
		}
		return g.told(g.take(step))
	}
	return ""
}

// ended is the offer that the last append ended.
func (g *stage) ended() string {
	if e, ok := EndedBetween(g.before, g.state); ok {
		return fmt.Sprint(e.Agent, " ", e.Offer)
	}
	return "nothing"
}

// told is brief, and remembers the routing and the reason.
func (g *stage) told(events []p.Event) string {
	g.count(events)
	for _, e := range events {
		if made, ok := e.(*p.HandedOff); ok {
			g.grants[made.N] = made.Grant
		}
		if offered, ok := e.(*p.Offered); ok && offered.Routing != nil {
			g.routed = offered.Routing
		}
		if code, facts, words, ok := reasonOf(e); ok {
			g.reason = code + ": " + words
			if len(words) == 0 || facts != nil && !strings.HasPrefix(words, reasonWords(code, *facts)) {
				g.t.Errorf("%s: %+v in words is %q", code, facts, words)
			}
		}
	}
	return brief(events)
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
	if g.state.Usage != nil {
		have["tokens"], have["cost"] = g.state.Usage.Tokens, g.state.Usage.CostMicros
		var by []string
		for _, used := range g.state.Usage.ByAgent(g.state.Agent) {
			by = append(by, fmt.Sprintf("%s:%d", used.Agent, used.Tokens))
		}
		have["used_by"] = strings.Join(by, ",")
	}
	if gate := g.state.Gate; gate != nil && !gate.Until.IsZero() {
		have["gate_until"] = gate.Until.Format(time.RFC3339Nano)
	}
	if g.state.Absent != nil {
		var all []any
		for _, absence := range g.state.Absent {
			all = append(all, cmp.Or(absence.Agent, "target"))
		}
		have["absent"] = all
	}
	if c := g.state.Children; c != nil {
		for key, set := range map[string]p.Bits{"made": c.Made, "closed_children": c.Closed, "succeeded": c.Succeeded, "cancelled": c.Cancelled, "awaited": c.Awaited, "after": c.After, "received": c.Received, "asked": c.Asked} {
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
