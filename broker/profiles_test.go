package broker_test

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
)

// remembering is a broker under a clock that stands still, over an engine that
// counts, in which others write too.
type remembering struct {
	*broker.Broker
	t      *testing.T
	engine *brokertest.CountingEngine
	others broker.Engine
	now    time.Time
	source string // of what it submits; empty is human
}

func newRemembering(t *testing.T, agents ...string) *remembering {
	m := brokertest.NewMemory()
	r := &remembering{t: t, engine: brokertest.NewCountingEngine(m), others: m, now: time.Now()}
	var err error
	if r.Broker, err = broker.New(r.engine, broker.Config{Now: func() time.Time { return r.now }}); err != nil {
		t.Fatal(err)
	}
	for _, agent := range agents {
		if err := r.others.PutProfile(t.Context(), protocol.Profile{ID: agent}); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func (r *remembering) submit(to string) error {
	in, err := r.Prepare(r.t.Context(), protocol.Package{Source: cmp.Or(r.source, protocol.Human), Target: protocol.Target{Agent: to}, Reason: "r", Task: protocol.Task{Type: "t", Description: "d"}})
	if err == nil {
		_, err = r.Submit(r.t.Context(), in)
	}
	return err
}

// reads counts the profiles that are read by submissions to an agent.
func (r *remembering) reads(to string, submissions int) int {
	r.t.Helper()
	return r.requests("profile", to, submissions)
}

// requests counts the requests of a kind by submissions to an agent.
func (r *remembering) requests(kind, to string, submissions int) int {
	r.t.Helper()
	r.engine.TakeCounts()
	for range submissions {
		if err := r.submit(to); err != nil {
			r.t.Fatal(err)
		}
	}
	n := 0
	for counted := range strings.SplitSeq(r.engine.TakeCounts(), ", ") {
		_, _ = fmt.Sscanf(counted, kind+" %d", &n)
	}
	return n
}

func code(err error) protocol.Code {
	var e *protocol.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// Many submissions at a time read a profile once, and again a little later.
func TestProfileIsReadNowAndThen(t *testing.T) {
	r := newRemembering(t, "ann", "bob")
	if n := r.reads("ann", 50); n != 1 {
		t.Errorf("50 at a time read the profile %d times, want once", n)
	}
	if n := r.reads("bob", 1); n != 1 {
		t.Errorf("another agent's was read %d times, want once", n)
	}
	r.now = r.now.Add(200 * time.Millisecond)
	if n := r.reads("ann", 50); n != 1 {
		t.Errorf("in good time it was renewed %d times, want once", n)
	}
	r.now = r.now.Add(250 * time.Millisecond)
	if n := r.reads("ann", 1); n != 1 {
		t.Errorf("when it was old it was read %d times, want once", n)
	}
	r.now = r.now.Add(-time.Hour)
	if n := r.reads("ann", 1); n != 1 {
		t.Errorf("when the clock was put back it was read %d times, want once", n)
	}
}

// The profile of a source is read by what it submits, once in ten seconds, and that it has none as
// well. What a person submits reads none.
func TestSourceIsReadNowAndThen(t *testing.T) {
	ctx := t.Context()
	r := newRemembering(t, "ann", "bob")
	if n := r.reads("ann", 1); n != 1 {
		t.Errorf("what a person submits read %d profiles, want that of the target", n)
	}
	for _, source := range []string{"bob", "unknown"} {
		r.source = source
		if n := r.reads("ann", 50); n != 1 {
			t.Errorf("the profile of %s was read %d times, want once", source, n)
		}
	}
	r.now = r.now.Add(4 * time.Second)
	if n := r.reads("ann", 1); n != 1 {
		t.Errorf("4 s later %d profiles were read, want that of the target", n)
	}

	// What another process forbids holds ten seconds later at the latest, what it allows at once.
	r.source = "bob"
	if err := r.others.PutProfile(ctx, protocol.Profile{ID: "bob", HandsTo: []string{"cid"}}); err != nil {
		t.Fatal(err)
	}
	r.now = r.now.Add(10 * time.Second)
	if err := r.submit("ann"); code(err) != protocol.CodeForbidden {
		t.Errorf("to an agent that bob does not hand off to: %v", err)
	}
	if err := r.others.PutProfile(ctx, protocol.Profile{ID: "bob", HandsTo: []string{"ann"}}); err != nil {
		t.Fatal(err)
	}
	if err := r.submit("ann"); err != nil {
		t.Errorf("to one that bob hands off to since: %v", err)
	}
	if _, err := r.Directory(ctx); err != nil {
		t.Fatal(err)
	}
	r.now = r.now.Add(time.Hour)
	if n := r.reads("ann", 1); n != 1 {
		t.Errorf("a process that watches the directory read %d profiles, want that of the target", n)
	}
}

// A refusal is always by the leader's word.
func TestNobodyIsRefusedByWhatIsRemembered(t *testing.T) {
	ctx, no, yes := t.Context(), false, true
	r := newRemembering(t, "ann")
	if err := r.submit("new"); code(err) != protocol.CodeUnknownAgent {
		t.Fatalf("to nobody: %v", err)
	}
	if err := r.others.PutProfile(ctx, protocol.Profile{ID: "new", AcceptsHandoffs: &no}); err != nil {
		t.Fatal(err)
	}
	if err := r.submit("new"); code(err) != protocol.CodeNotAccepting {
		t.Fatalf("to one that takes nothing: %v", err)
	}
	if err := r.others.PutProfile(ctx, protocol.Profile{ID: "new", AcceptsHandoffs: &yes}); err != nil {
		t.Fatal(err)
	}
	if err := r.submit("new"); err != nil {
		t.Errorf("to one that takes them since: %v", err)
	}
}

// What this process writes it goes by at once.
func TestOwnProfilesAreNotForgotten(t *testing.T) {
	ctx, no := t.Context(), false
	r := newRemembering(t, "ann")
	r.reads("ann", 1)
	if err := r.PutProfile(ctx, protocol.Profile{ID: "ann", AcceptsHandoffs: &no}); err != nil {
		t.Fatal(err)
	}
	if err := r.submit("ann"); code(err) != protocol.CodeNotAccepting {
		t.Errorf("after it was told to take nothing: %v", err)
	}
	if err := r.RemoveProfile(ctx, "ann"); err != nil {
		t.Fatal(err)
	}
	if err := r.submit("ann"); code(err) != protocol.CodeUnknownAgent {
		t.Errorf("after it was removed: %v", err)
	}
}

// The settings of the fleet are read once in 10 seconds, whether there are any or not, and what this
// process has put holds at once.
func TestFleetIsReadNowAndThen(t *testing.T) {
	r := newRemembering(t, "ann")
	for step, want := range []int{1, 0, 1} {
		if n := r.requests("fleet", "ann", 50); n != want {
			t.Errorf("at step %d the settings were read %d times, want %d", step, n, want)
		}
		r.now = r.now.Add(6 * time.Second)
	}
	queue := protocol.NoTakerQueue
	if _, err := r.others.PutFleet(t.Context(), protocol.Fleet{Policy: protocol.PolicyOverrides{OnNoTaker: &queue}}, 0); err != nil {
		t.Fatal(err)
	}
	if got := r.noTaker("ann"); got != protocol.NoTakerEscalate {
		t.Errorf("settings that were just read do no more: %s", got)
	}
	r.now = r.now.Add(10 * time.Second)
	if got := r.noTaker("ann"); got != queue {
		t.Errorf("what another process has put does not hold after 10 s: %s", got)
	}
	if _, err := r.PutFleet(t.Context(), protocol.Fleet{}, 1); err != nil {
		t.Fatal(err)
	}
	if got := r.noTaker("ann"); got != protocol.NoTakerEscalate {
		t.Errorf("what this process has put does not hold at once: %s", got)
	}
	if _, err := r.PutFleet(t.Context(), protocol.Fleet{}, 1); !errors.Is(err, broker.ErrConflict) {
		t.Errorf("a change to settings that have changed: %v", err)
	}
	attempts := protocol.AttemptsMax + 1
	if _, err := r.PutFleet(t.Context(), protocol.Fleet{Policy: protocol.PolicyOverrides{MaxAttempts: &attempts}}, 2); code(err) != protocol.CodeInvalid {
		t.Errorf("settings out of their limits: %v", err)
	}
}

// noTaker submits to an agent, and returns what the policy says of no taker.
func (r *remembering) noTaker(to string) protocol.OnNoTaker {
	r.t.Helper()
	in, err := r.Prepare(r.t.Context(), protocol.Package{Source: "src", Target: protocol.Target{Agent: to}, Reason: "r", Task: protocol.Task{Type: "t", Description: "d"}})
	if err != nil {
		r.t.Fatal(err)
	}
	head, err := r.Submit(r.t.Context(), in)
	if err != nil {
		r.t.Fatal(err)
	}
	return head.State.Policy.OnNoTaker
}
