package supervisor_test

import (
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// A failed attempt is followed by another, each time after twice the delay, and
// by the end when there is none left (document 1 §4.2).
func TestRetriesBackOff(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		ticket := w.submit(func(p *protocol.Package) { p.Policy.OnExhausted = new(protocol.ExhaustedFail) })
		for range 3 {
			w.fail(w.work(coder))
		}
		state := w.closed(ticket)
		if state.Outcome != protocol.OutcomeFailed || state.Reason != "attempts_exhausted" {
			t.Errorf("closed as %s, %s", state.Outcome, state.Reason)
		}
		w.want(ticket,
			"0s submitted offered", "0s accepted started", "0s failed", "0s retry_scheduled",
			"2s offered", "2s accepted started", "2s failed", "2s retry_scheduled",
			"6s offered", "6s accepted started", "6s failed", "6s closed")
	})
}

// A delay shorter than the hold of a writer is kept too.
func TestRetrySoonerThanTheHold(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		ticket := w.submit(func(p *protocol.Package) { p.Policy.BackoffBaseMS = ptr(int64(300)) })
		w.fail(w.work(coder))
		w.complete(w.work(coder))
		w.want(ticket, "0s submitted offered", "0s accepted started", "0s failed", "0s retry_scheduled",
			"300ms offered", "300ms accepted started", "300ms completed")
	})
}

// A worker may ask for more time than the back-off would give it.
func TestRetryAfterIsAFloor(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		ticket := w.submit(nil)
		if err := w.work(coder).Fail(w.ctx, broker.Failure{Code: "exit_75", Retryable: true, RetryAfter: 10 * time.Minute}); err != nil {
			t.Fatal(err)
		}
		w.complete(w.work(coder))
		w.want(ticket, "0s submitted offered", "0s accepted started", "0s failed", "0s retry_scheduled",
			"10m0s offered", "10m0s accepted started", "10m0s completed")
	})
}

// A refusal goes to the next fit agent at once, and never back.
func TestRefusalsAreRerouted(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		for _, id := range []string{"coder", "gopher", "rustacean"} {
			skill := map[string]string{"coder": "go", "gopher": "go", "rustacean": "rust"}[id]
			w.agent(id, func(p *protocol.Profile) { p.Capabilities = []protocol.Capability{{ID: skill, Proficiency: 1}} })
		}
		coder, gopher := w.holder("coder", staying), w.holder("gopher", staying)
		ticket := w.submit(func(p *protocol.Package) { p.RequiredCapabilities = []protocol.RequiredCapability{{ID: "go"}} })
		for _, h := range []protocol.Holder{coder, gopher} {
			refusal := protocol.Ack{Status: protocol.AckRejected, Reason: "not mine"}
			if _, err := w.offer(h.Agent).Acknowledge(w.ctx, h, refusal, true); err != nil {
				t.Fatal(err)
			}
		}
		state := w.until(ticket, func(s protocol.State) bool { return s.EscalationLevel > 0 })
		if state.Agent != protocol.Human || state.Reroutes != 1 {
			t.Errorf("with %s after %d reroutes, want human after 1", state.Agent, state.Reroutes)
		}
		w.want(ticket, "0s submitted offered", "0s rejected", "0s rerouted offered", "0s rejected", "0s escalated offered")
	})
}

// Where nobody serves an agent its offers go up the chain of authority after
// the acknowledge timeout (document 1 §2.4, §6.2).
func TestAbsentAgentEscalates(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("coder", func(p *protocol.Profile) { p.EscalatesTo = "architect" })
		w.agent("architect", nil)
		ticket := w.submit(nil)
		state := w.until(ticket, func(s protocol.State) bool { return s.Agent == protocol.Human })
		if state.Closed || state.EscalationLevel != 2 {
			t.Errorf("closed %v at level %d, want open at 2", state.Closed, state.EscalationLevel)
		}
		w.want(ticket, "0s submitted offered", "30s timed_out escalated offered", "1m0s timed_out escalated offered")
		person := w.holder(protocol.Human, staying)
		w.complete(w.work(person))
	})
}

// An agent that is merely busy keeps its offers.
func TestBusyAgentKeepsItsOffers(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		ticket := w.submit(nil)
		pass(10 * time.Hour)
		w.complete(w.work(coder))
		w.want(ticket, "0s submitted offered", "10h0m0s accepted started", "10h0m0s completed")
	})
}

// A conditional that nobody answers escalates when its hour is over.
func TestUnansweredConditionEscalates(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		ticket := w.submit(nil)
		ack := protocol.Ack{Status: protocol.AckConditional, NeedsContext: []string{"which branch"}}
		if _, err := w.offer("coder").Acknowledge(w.ctx, coder, ack, true); err != nil {
			t.Fatal(err)
		}
		w.until(ticket, func(s protocol.State) bool { return s.Agent == protocol.Human })
		w.want(ticket, "0s submitted offered", "0s conditioned", "1h0m0s timed_out escalated offered")
	})
}

// A deferral needs no answer: it is offered again when its time has come.
func TestDeferralIsOfferedAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		ticket := w.submit(nil)
		ack := protocol.Ack{Status: protocol.AckConditional, RetryAfterMS: 90_000, Reason: "busy"}
		if _, err := w.offer("coder").Acknowledge(w.ctx, coder, ack, true); err != nil {
			t.Fatal(err)
		}
		w.complete(w.work(coder))
		w.want(ticket, "0s submitted offered", "0s conditioned", "1m30s offered", "1m30s accepted started", "1m30s completed")
	})
}

// A holder is reminded at 80 % of its work time, and loses the handoff at the
// end of it (document 1 §6.3).
func TestWorkTimeout(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		ticket := w.submit(func(p *protocol.Package) { p.Expectations.TimeoutMS = 600_000 })
		late := w.work(coder)
		w.complete(w.work(w.holder("coder", staying))) // the second attempt
		w.want(ticket, "0s submitted offered", "0s accepted started", "8m0s reminded",
			"10m0s timed_out retry_scheduled", "10m2s offered", "10m2s accepted started", "10m2s completed")
		if err := late.Complete(w.ctx, protocol.Result{Body: []byte(`"late"`)}); err == nil {
			t.Error("the first attempt completed a handoff that was taken from it")
		}
	})
}

// A deadline that passes while no supervisor is up takes effect when one is:
// once, though two come at the same time.
func TestDeadlineWhileDown(t *testing.T) {
	inBubble(t, func(w *world) {
		w.agent("coder", nil)
		ticket := w.submit(func(p *protocol.Package) {
			p.Constraints.Deadline = time.Now().UTC().Add(time.Minute)
			p.Policy.InterventionTimeoutMS = new(time.Hour.Milliseconds())
		})
		pass(time.Hour)
		w.want(ticket, "0s submitted offered")
		w.supervise(supervisor.Config{})
		w.supervise(supervisor.Config{})
		if state := w.closed(ticket); state.Outcome != protocol.OutcomeTimeout || state.Reason != "deadline" {
			t.Errorf("closed as %s, %s", state.Outcome, state.Reason)
		}
		pass(time.Hour)
		w.want(ticket, "0s submitted offered", "1h0m0s timed_out escalated offered", "2h0m0s timed_out closed")
	})
}

// A cancelled handoff whose holder does not stop ends when the grace is over.
func TestCancelGrace(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		ticket := w.submit(nil)
		w.work(w.holder("coder", staying))
		if _, err := w.b.Cancel(w.ctx, ticket, "lead", "no longer needed"); err != nil {
			t.Fatal(err)
		}
		if state := w.closed(ticket); state.Outcome != protocol.OutcomeCancelled {
			t.Errorf("closed as %s", state.Outcome)
		}
		w.want(ticket, "0s submitted offered", "0s accepted started", "0s cancel_requested", "30s closed")
	})
}
