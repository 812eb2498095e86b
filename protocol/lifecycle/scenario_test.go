package lifecycle

import (
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
// each under a line "== name". A line is
//
//	[+duration] word arguments [-> what comes of it]
//
// where +duration moves the clock first. What comes of it is the events of a
// look (Decide), or those that follow an answer or a cancel in the same append,
// in the words of brief; "nothing" is none. The words:
//
//	agent NAME [capability[:proficiency]]… [key=value]…   a profile, anew
//	live AGENT HOLDER [busy=N]   poll AGENT HOLDER   gone HOLDER
//	connected   disconnected
//	submit [key=value]…
//	claim HOLDER   accept HOLDER   start   progress   complete   release
//	reject [ALTERNATIVE]   ask WHAT   permission WHAT   defer DURATION
//	answer   permit   deny   fail [permanent] [retry_after=DURATION]   cancel
//	look
//	state key=value…      fields of the state as on the wire, "_" for a space; "-" is absent
//
// Keys of a policy (max_attempts, work_timeout_ms, …) go for a package and for
// a profile; durations may be written 90s.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/scenarios/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		for _, scenario := range strings.Split("\n"+string(body), "\n== ")[1:] {
			title, steps, _ := strings.Cut(scenario, "\n")
			t.Run(name+"/"+title, func(t *testing.T) { play(t, steps) })
		}
	}
}

// stage is one scenario under way.
type stage struct {
	*line
	t   *testing.T
	d   *Directory
	now time.Time
}

func play(t *testing.T, steps string) {
	g := &stage{line: &line{t: t}, t: t, d: fleet(), now: t0}
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
		if want = strings.Join(strings.Fields(want), " "); wants && got != want {
			t.Fatalf("line %d, %s:\n got %s\nwant %s", i+1, strings.Join(words, " "), got, want)
		}
		if !wants && words[0] == "look" {
			t.Fatalf("line %d: look, and what comes of it is not said (%s)", i+1, got)
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
		if live, _, _ := g.d.Load(who); live == 0 {
			g.d.LastPresent[who] = g.now
		}
	case "connected":
		g.d.ConnectedSince = g.now
	case "disconnected":
		g.d.ConnectedSince = time.Time{}
	case "look":
		return brief(g.line.decide(g.d, g.now))
	case "submit":
		return g.submit(args)
	case "state":
		g.check(args)
	default:
		return g.act(word, args)
	}
	return ""
}

// act is what a worker, the source or a person does.
func (g *stage) act(word string, args []string) string {
	g.t.Helper()
	meta, s := p.Meta{At: g.now, By: "test"}, g.state
	first := strings.Join(args, " ")
	holder := "w1"
	if s.Held() {
		holder = s.Holder
	}
	acknowledge := func(ack p.Ack) []p.Event { return Acknowledge(s, g.claimant(holder), ack, false, g.now) }
	var events []p.Event
	var err error
	switch word {
	case "claim":
		events = []p.Event{&p.Claimed{Meta: meta, Offer: s.Offer, Agent: s.Agent, Holder: first, LeaseMS: lease}}
	case "accept":
		events = Acknowledge(s, g.claimant(first), p.Ack{Status: p.AckAccepted}, false, g.now)
	case "start":
		events = []p.Event{&p.Started{Meta: meta, Fence: s.Fence}}
	case "progress":
		events = []p.Event{&p.Progressed{Meta: meta, Fence: s.Fence, Progress: p.Progress{Percent: 10}}}
	case "complete":
		events = []p.Event{&p.Completed{Meta: meta, Fence: s.Fence, Status: p.Success}}
	case "release":
		events = Release(s, holder, "drain", g.now)
	case "reject":
		events = acknowledge(p.Ack{Status: p.AckRejected, ReasonCode: "unable", Reason: "cannot", SuggestedAlternative: first})
	case "ask":
		events = acknowledge(p.Ack{Status: p.AckConditional, NeedsContext: args})
	case "permission":
		events = acknowledge(p.Ack{Status: p.AckConditional, NeedsPermission: args})
	case "defer":
		events = acknowledge(p.Ack{Status: p.AckConditional, RetryAfterMS: g.duration(first).Milliseconds()})
	case "answer", "permit", "deny":
		events, err = Answer(s, g.d, p.Answer{By: "src", Text: "so", Permit: word == "permit", Deny: word == "deny"}, g.now)
	case "cancel":
		events, err = Cancel(s, g.d, "src", "enough", g.now)
	case "fail":
		e := &p.Failed{Meta: meta, Fence: s.Fence, Attempt: s.Attempt, Code: "exit", Message: "exit status 1", Retryable: first != "permanent"}
		if after, ok := strings.CutPrefix(first, "retry_after="); ok {
			e.RetryAfterMS = g.duration(after).Milliseconds()
		}
		events = []p.Event{e}
	default:
		g.t.Fatalf("no word %q", word)
	}
	if err != nil {
		return "error " + string(err.(*p.Error).Code)
	}
	g.add(events...)
	return brief(events)
}

func (g *stage) submit(args []string) string {
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
			policy[key] = g.value(value)
		}
	}
	g.override(&s.Overrides, policy)
	events, err := Submit(ticket, s, p.Submitted{Package: []byte(`{}`)}, g.d, g.now)
	if err != nil {
		return "error " + string(err.(*p.Error).Code)
	}
	g.add(events...)
	return brief(events[1:])
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
func (g *stage) check(args []string) {
	g.t.Helper()
	have := fields(g.t, g.state)
	for _, arg := range args {
		key, want, _ := strings.Cut(arg, "=")
		got := "-"
		switch v := have[key].(type) {
		case nil:
		case []any:
			got = strings.Trim(strings.ReplaceAll(fmt.Sprint(v), " ", ","), "[]")
		default:
			if got = strings.ReplaceAll(fmt.Sprint(v), " ", "_"); strings.HasSuffix(key, "_at") {
				at, _ := time.Parse(time.RFC3339Nano, got)
				got = at.Sub(t0).String()
			}
		}
		if got != want {
			g.t.Errorf("state %s is %s, want %s", key, got, want)
		}
	}
}

// brief says events in few words.
func brief(events []p.Event) string {
	if len(events) == 0 {
		return "nothing"
	}
	var out []string
	for _, e := range events {
		word := string(e.EventType())
		switch e := e.(type) {
		case *p.Offered:
			word += fmt.Sprintf(" %s (%s)", e.Agent, e.Reason)
			if e.Routing != nil && len(e.Routing.Warnings) > 0 {
				word += " warning"
			}
		case *p.Rerouted:
			word += " " + e.From + ">" + e.To
		case *p.Escalated:
			word += fmt.Sprintf(" %d %s>%s", e.Level, e.From, e.To)
		case *p.TimedOut:
			word += " " + string(e.Clock)
		case *p.Closed:
			word += fmt.Sprintf(" %s (%s)", e.Outcome, e.Reason)
		case *p.LeaseLost:
			word += " " + e.Holder
		case *p.RetryScheduled:
			word += fmt.Sprintf(" +%s", e.Due.Sub(e.At))
		}
		out = append(out, word)
	}
	return strings.Join(out, "; ")
}
