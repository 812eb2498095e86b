package broker_test

import (
	"errors"
	"fmt"
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
	in, err := r.Prepare(r.t.Context(), protocol.Package{Source: "src", Target: protocol.Target{Agent: to}, Reason: "r", Task: protocol.Task{Type: "t", Description: "d"}})
	if err == nil {
		_, err = r.Submit(r.t.Context(), in)
	}
	return err
}

// reads counts the profiles that are read by submissions to an agent.
func (r *remembering) reads(to string, submissions int) int {
	r.t.Helper()
	r.engine.TakeCounts()
	for range submissions {
		if err := r.submit(to); err != nil {
			r.t.Fatal(err)
		}
	}
	n := 0
	_, _ = fmt.Sscanf(r.engine.TakeCounts(), fmt.Sprintf("append %d, offer %d, profile %%d", submissions, submissions), &n)
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
