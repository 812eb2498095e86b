package lifecycle

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

const (
	ticket = "7d0f2c55-6f0e-4a52-9d53-0a6c7a3f7c11"
	lease  = int64(30_000)
	sec    = time.Second
)

// t0 is when the handoffs of the tests are submitted.
var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(d time.Duration) p.Meta { return p.Meta{At: t0.Add(d), By: "test"} }

// line is one handoff and the ledger under it: each append has a sequence, and
// the state is bound to it as a reader would find it.
type line struct {
	t      testing.TB
	seq    uint64
	before p.State // the last append
	state  p.State
}

// add appends events that must apply.
func (l *line) add(events ...p.Event) *line {
	l.t.Helper()
	next, err := ApplyAll(l.state, events)
	if err != nil {
		l.t.Fatalf("append %s in phase %q: %v", types(events), l.state.Phase, err)
	}
	l.seq++
	next.Bind(l.seq)
	l.before, l.state = l.state, next
	if err := CheckOffer(l.before, l.state); err != nil {
		l.t.Fatalf("append %s: %v", types(events), err)
	}
	return l
}

// take appends a step of the core, whose state must be what its events make, and returns
// its events.
func (l *line) take(step Step) []p.Event {
	l.t.Helper()
	if len(step.Events) == 0 {
		return nil
	}
	if next, err := ApplyAll(l.state, step.Events); err != nil || !reflect.DeepEqual(next, step.State) {
		l.t.Fatalf("the state of the step %s is not what its events make: %v", types(step.Events), err)
	}
	l.add(step.Events...)
	return step.Events
}

// takes is take of a step that must not be refused.
func (l *line) takes(step Step, err error) *line {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
	l.take(step)
	return l
}

// decide appends what Decide says, and returns it.
func (l *line) decide(q Query) []p.Event {
	l.t.Helper()
	events := l.take(mustAnswer(l.state, q))
	if more := mustAnswer(l.state, q).Events; len(more) > 0 {
		l.t.Fatalf("decided %s, and at once again %s", types(events), types(more))
	}
	return events
}

func (l *line) claimant(holder string) Claimant {
	return Claimant{Agent: l.state.Agent, Holder: holder, LeaseMS: lease, Offer: l.state.Offer}
}

// accept lets a holder accept the current offer and start.
func (l *line) accept(holder string, after time.Duration) *line {
	l.t.Helper()
	return l.takes(Acknowledge(l.state, l.claimant(holder), p.Ack{Status: p.AckAccepted}, true, t0.Add(after)))
}

// submit begins a handoff of source src to agent a.
func submit(t testing.TB, d *Directory, change func(*p.Summary)) *line {
	t.Helper()
	s := p.Summary{Type: p.Sequential, Source: "src", Target: p.Target{Agent: "a"}, Priority: p.Normal,
		Deadline: t0.Add(24 * time.Hour), Digest: "sha256:00"}
	if change != nil {
		change(&s)
	}
	return (&line{t: t}).takes(Submit(ticket, s, p.Submitted{Package: json.RawMessage(`{}`)}, d.At(t0)))
}

// fleet is a directory of agents by name, none of which has a holder, seen by
// an observer that has long been connected.
func fleet(profiles ...p.Profile) *Directory {
	d := &Directory{Revision: 7, Agents: map[string]*p.Profile{}, Holders: map[string]p.Holder{},
		LastPresent: map[string]time.Time{}, ConnectedSince: t0.Add(-time.Hour)}
	for _, profile := range profiles {
		d.Agents[profile.ID] = &profile
	}
	return d
}

// live adds a holder that serves an agent.
func (d *Directory) live(agent, holder string, busy int) *Directory {
	d.Holders[holder] = p.Holder{ID: holder, Agent: agent, LeaseMS: lease, Slots: 4, Busy: busy}
	return d
}

// agent makes a profile with capabilities of full proficiency.
func agent(id string, capabilities ...string) p.Profile {
	profile := p.Profile{ID: id}
	for _, c := range capabilities {
		profile.Capabilities = append(profile.Capabilities, p.Capability{ID: c, Proficiency: 1})
	}
	return profile
}

func with(profile p.Profile, change func(*p.Profile)) p.Profile {
	change(&profile)
	return profile
}

func ptr[T any](v T) *T { return &v }

func types(events []p.Event) string {
	out := ""
	for i, e := range events {
		if i > 0 {
			out += " "
		}
		out += string(e.EventType())
	}
	return out
}

// asJSON is the state as the wire has it: what replaying and comparing is about.
func asJSON(t testing.TB, s any) string {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// wantError wants an Error with this code.
func wantError(t *testing.T, err error, code p.Code) {
	t.Helper()
	if !errors.Is(err, &p.Error{Code: code}) {
		t.Errorf("error %v, want code %s", err, code)
	}
}

// mustDecide is Decide about a state that does not contradict itself.
func mustDecide(s p.State, d *Directory, now time.Time) Step { return mustAnswer(s, d.At(now)) }

// mustAnswer is mustDecide with the arguments of a decision.
func mustAnswer(s p.State, q Query) Step {
	step, err := Decide(s, q)
	if err != nil {
		panic(err)
	}
	return step
}

// mustClaim is Claim of a state that does not contradict itself.
func mustClaim(s p.State, c Claimant, d *Directory, now time.Time) (Verdict, Step) {
	verdict, step, err := Claim(s, c, d.At(now))
	if err != nil {
		panic(err)
	}
	return verdict, step
}
