package broker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// TestBreakerRequests: a breaker costs one read for each agent and 250 ms, in a process that watches
// none; without one nothing is asked for, which TestRequests says.
func TestBreakerRequests(t *testing.T) {
	ctx := t.Context()
	engine := brokertest.NewCountingEngine(brokertest.NewMemory())
	now := time.Now()
	b, err := broker.New(engine, broker.Config{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	three := 3
	ok(b.PutProfile(ctx, protocol.Profile{ID: "coder", Breaker: &protocol.Breaker{Threshold: &three}}))
	submit := func() (broker.Head, error) {
		t.Helper()
		in, err := b.Prepare(ctx, protocol.Package{Source: "lead", Target: protocol.Target{Agent: "coder"}, Reason: "test", Task: protocol.Task{Description: "test"}})
		ok(err)
		return b.Submit(ctx, in)
	}
	head, err := submit()
	ok(err)
	engine.TakeCounts()
	cost := func(what, want string) {
		t.Helper()
		if got := engine.TakeCounts(); got != want {
			t.Errorf("%s asks for: %s; it was: %s", what, got, want)
		}
	}
	_, err = submit()
	ok(err)
	cost("submit, at once", "append 1, offer 1")
	now = now.Add(300 * time.Millisecond)
	_, err = submit()
	ok(err)
	cost("submit, later", "append 1, health 1, offer 1, profile 1")
	if head.State.Breaker != protocol.BreakerCounts {
		t.Errorf("its breaker: %q", head.State.Breaker)
	}

	count := func(ticket string, end protocol.AttemptEnd) bool {
		t.Helper()
		opened, err := b.CountAttempts(ctx, "coder", []lifecycle.Attempt{{Agent: "coder", Ticket: ticket, Fence: 7, End: end}})
		ok(err)
		return opened
	}
	count(protocol.NewTicket(), protocol.EndSucceeded)
	cost("a success of a healthy agent", "directory 1")
	first := protocol.NewTicket()
	count(first, protocol.EndFailed)
	cost("a failure", "directory 2, health 1, put health 1")
	count(first, protocol.EndFailed)
	cost("the same failure again", "directory 2, health 1")
	if count(protocol.NewTicket(), protocol.EndLost) || !count(protocol.NewTicket(), protocol.EndTimeout) {
		t.Error("the third handoff that failed does not open it, or the second does")
	}
	now = now.Add(300 * time.Millisecond)
	_, err = submit()
	var refused *protocol.Error
	if !errors.As(err, &refused) || refused.Code != protocol.CodeBreakerOpen || refused.RetryAfterMS < 20_000 {
		t.Errorf("submitted to an open breaker: %v", err)
	}
	ok(b.ResetBreaker(ctx, "coder"))
	_, err = submit()
	ok(err)
}

// TestNoBreakerAllocates: where no agent has a breaker, it costs an append no allocation.
func TestNoBreakerAllocates(t *testing.T) {
	d := &lifecycle.Directory{Agents: map[string]*protocol.Profile{"coder": {ID: "coder"}}, Fleet: &protocol.Fleet{}}
	before, after := &protocol.State{Agent: "coder"}, &protocol.State{Agent: "coder"}
	events := []protocol.Event{&protocol.Completed{}}
	now := time.Now()
	if n := testing.AllocsPerRun(100, func() {
		if d.BreakerPolicy("coder").Threshold != 0 || !lifecycle.BreakerDue(*after, d.At(now)).IsZero() {
			t.Error("there is a breaker")
		}
		if _, ended := lifecycle.AttemptEnded(before, after, events); ended {
			t.Error("an attempt is counted")
		}
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
}
