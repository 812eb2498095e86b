package natsgateway_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/protocol"
)

// appends counts the records of a handoff.
func (w *world) appends(ticket string) int {
	w.Helper()
	changes, err := w.b.History(w.ctx, ticket)
	if err != nil {
		w.Fatal(err)
	}
	return len(changes)
}

// A request that is made again, at the same gateway or at another, does nothing again
// and is answered as it was.
func TestEveryRequestMayBeMadeAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder", "boss")
	if err := w.b.PutProfile(w.ctx, protocol.Profile{ID: "coder", EscalatesTo: "boss"}); err != nil {
		t.Fatal(err)
	}
	first, second := w.open(natsgateway.Config{}), w.open(natsgateway.Config{})
	nc, c := w.conn("coder"), w.client("coder")
	for verb, rest := range map[string]string{
		"Complete": `,"result":{"body":"mine"}`, "Fail": `,"code":"x","message":"it broke","retryable":true`, "Release": `,"reason":"busy"`,
		"Acknowledge": `,"ack":{"status":"rejected","reason":"no"}`, "Escalate": `,"rationale":"too much"`, "RollBackHeld": `,"reason":"cannot","result":{"body":"half"}`,
	} {
		t.Run(verb, func(t *testing.T) {
			w := w.in(t)
			ticket := w.submit("coder", nil)
			state := *w.accept(c, "coder").State
			for state.Ticket != ticket { // what was released before
				state = *w.accept(c, "coder").State
			}
			body := fmt.Sprintf(`{"lease":%q%s}`, lease(state), rest)
			if _, code := w.ask(nc, natsgateway.SubjectAt("coder", first.ID(), verb), body); code != "" {
				t.Fatalf("refused: %s", code)
			}
			done := w.appends(ticket)
			for _, subject := range []string{natsgateway.SubjectAt("coder", first.ID(), verb), natsgateway.SubjectAt("coder", second.ID(), verb), natsgateway.Subject("coder", verb)} {
				if answer, code := w.ask(nc, subject, body); code != "" {
					t.Errorf("again: %s %s", code, answer)
				}
			}
			// Whatever else it says under that lease comes too late.
			for _, other := range []string{"Heartbeat", "Progress"} {
				more := ""
				if other == "Progress" {
					more = `,"progress":{"percent":1}`
				}
				if _, code := w.ask(nc, natsgateway.Subject("coder", other), fmt.Sprintf(`{"lease":%q%s}`, lease(state), more)); code != protocol.CodeLeaseLost {
					t.Errorf("%s after the end: %q", other, code)
				}
			}
			if n := w.appends(ticket); n != done {
				t.Errorf("%d appends, and %d after it was made again", done, n)
			}
		})
	}
}

// A result under a lost lease is refused, and kept beside the handoff.
func TestALateResultIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder")
	for _, way := range []string{"at the gateway that has it", "by its lease"} {
		first := w.open(natsgateway.Config{})
		c := w.client("coder")
		ticket := w.submit("coder", nil)
		claim := w.accept(c, "coder")
		person := protocol.Holder{ID: uuid.NewString(), Agent: protocol.Human, LeaseMS: 30_000}
		if err := w.b.Beat(w.ctx, person); err != nil {
			t.Fatal(err)
		}
		if _, err := w.b.Take(w.ctx, ticket, person, "mine"); err != nil {
			t.Fatal(err)
		}
		if way == "by its lease" {
			w.open(natsgateway.Config{})
			first.kill()
		}
		// Who knows the lease, and is somebody else, says nothing under it even now.
		forged := *claim.State
		forged.Agent = "spy"
		w.unchanged("a late result of a spy", func() {
			body := fmt.Sprintf(`{"lease":%q,"result":{"body":"forged"}}`, lease(forged))
			if _, code := w.ask(w.conn("spy"), natsgateway.Subject("spy", "Complete"), body); code != protocol.CodeLeaseInvalid {
				t.Errorf("%s: a spy gets %q", way, code)
			}
		})
		if err := claim.Complete(w.ctx, protocol.Result{Body: text("late")}); !errors.Is(err, broker.ErrLeaseLost) {
			t.Errorf("%s: %v", way, err)
		}
		late, err := w.b.LateResults(w.ctx, ticket)
		if err != nil || len(late) != 1 || string(late[0].Result.Body) != `"late"` {
			t.Errorf("%s: kept %+v, %v", way, late, err)
		}
	}
}

// To let go until children have closed, and an authority's answer, may be said
// again as well.
func TestSuspendedAndAnsweredTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("helper", "boss")
	if err := w.b.PutProfile(w.ctx, protocol.Profile{ID: "coder", EscalatesTo: "boss"}); err != nil {
		t.Fatal(err)
	}
	if err := w.b.EnsureQueue(w.ctx, "coder"); err != nil {
		t.Fatal(err)
	}
	w.supervise() // who offers what was escalated
	first, second := w.open(natsgateway.Config{}), w.open(natsgateway.Config{})
	twice := func(agent, verb, body string) {
		t.Helper()
		for _, d := range []*gateway{first, first, second} {
			answer, code := w.ask(w.conn(agent), natsgateway.SubjectAt(agent, d.ID(), verb), body)
			if code != "" {
				t.Errorf("%s: %s %s", verb, code, answer)
			}
		}
	}
	coder := w.client("coder")
	ticket := w.submit("coder", nil)
	claim := w.accept(coder, "coder")
	child := api.HandOff{Nth: 1, Package: protocol.Package{Type: protocol.Delegation, Return: &protocol.ReturnProtocol{TimeoutMS: 60_000},
		Target: protocol.Target{Agent: "helper"}, Reason: "a part", Task: protocol.Task{Description: "help"}}}
	one, err := claim.HandOff(w.ctx, child)
	if err != nil {
		t.Fatal(err)
	}
	if same, err := claim.HandOff(w.ctx, child); err != nil || same != one {
		t.Errorf("handed off again: %s, %v; want %s", same, err, one)
	}
	state := *claim.State
	twice("coder", "Await", fmt.Sprintf(`{"lease":%q,"tickets":[%q]}`, lease(state), one))
	if n := w.appends(ticket); n != 4 { // submitted, accepted, handed off, suspended
		t.Errorf("%d appends", n)
	}

	ticket = w.submit("coder", nil)
	claim = w.accept(coder, "coder")
	if _, err := coder.Escalate(w.ctx, claim.Lease, "too much", ""); err != nil {
		t.Fatal(err)
	}
	boss := *w.accept(w.client("boss"), "boss").State
	if boss.Ticket != ticket {
		t.Fatalf("the boss has %s", boss.Ticket)
	}
	before := w.appends(ticket)
	twice("boss", "AnswerHeld", fmt.Sprintf(`{"lease":%q,"answer":{"by":"lead","text":"go on"}}`, lease(boss)))
	if n := w.appends(ticket); n != before+1 {
		t.Errorf("%d appends for one answer", n-before)
	}
	changes, err := w.b.History(w.ctx, ticket)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range changes[before].Record.Events { // its author is the agent that asks
		if answered, is := e.(*protocol.Answered); is && answered.Answer.By != "boss" {
			t.Errorf("answered by %s", answered.Answer.By)
		}
	}
}
