package apitest

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// handOn completes the next handoff of an agent, which goes on to another.
func (w *world) handOn(agent, to string) {
	w.t.Helper()
	w.must(w.accept(agent).Complete(w.ctx, protocol.Result{Body: json.RawMessage(`"a part"`), Command: &protocol.Command{Goto: fmt.Appendf(nil, "%q", to)}}))
}

// testChain follows a chain of three from its first handoff. Its source does not see the third
// one otherwise.
func testChain(t *testing.T, w *world) {
	w.register("tester", "writer")
	lead, ticket := w.Source(t, "lead"), w.submit()
	second := protocol.ChildTicketN(ticket, 0)
	third := protocol.ChildTicketN(second, 0)
	last := func(want string) {
		t.Helper()
		if s, err := lead.LastOfChain(w.ctx, ticket); err != nil || s.Ticket != want {
			t.Errorf("the last of the chain: %v, %s, want %s", err, s.Ticket, want)
		}
	}
	last(ticket)
	ended := make(chan protocol.State, 1)
	go func() {
		s, err := lead.WaitChain(w.ctx, ticket, api.UntilClosed)
		if err != nil {
			t.Error(err)
		}
		ended <- s
	}()
	w.handOn("coder", "tester")
	last(second)
	w.handOn("tester", "writer")
	last(third)
	_, err := lead.Status(w.ctx, third)
	w.wantCode("the third handoff by its ticket", err, protocol.CodeNotFound)
	if s, err := lead.Wait(w.ctx, ticket, api.UntilEnded); err != nil || s.Ticket != ticket {
		t.Errorf("the end of a handoff that owes none: %v, %s", err, s.Ticket)
	}
	if _, s, err := lead.ChainResult(w.ctx, ticket); !errors.Is(err, broker.ErrNotFound) || s.Ticket != third || s.Closed {
		t.Errorf("the result of a chain that goes on: %v, of %s", err, s.Ticket)
	}
	asked := make(chan error, 1)
	go func() {
		s, err := lead.WaitChain(w.ctx, ticket, api.UntilAsked)
		if err == nil && s.Phase != protocol.Conditional {
			err = fmt.Errorf("%s is %s", s.Ticket, s.Phase)
		}
		asked <- err
	}()
	w.answerOffer("writer", protocol.Ack{Status: protocol.AckConditional, NeedsContext: []string{"which page?"}})
	w.must(<-asked)
	_, err = w.Broker.Answer(w.ctx, third, protocol.Answer{By: "tester", Question: 1, Text: "the first"})
	w.must(err)
	w.complete("writer")
	if s := <-ended; s.Ticket != third || s.Outcome != protocol.OutcomeSuccess {
		t.Errorf("the chain ended as %s (%s), want %s", s.Ticket, s.Outcome, third)
	}
	result, s, err := lead.ChainResult(w.ctx, ticket)
	if w.must(err); string(result.Body) != `"done"` || s.Ticket != third {
		t.Errorf("the result of the chain is %s, of %s", result.Body, s.Ticket)
	}
	_, err = lead.WaitChain(w.ctx, ticket, "soon")
	w.wantCode("an unknown until", err, protocol.CodeInvalid)
	testOwedChain(t, w)
}

// testOwedChain waits for the end of a delegation that was handed on.
func testOwedChain(t *testing.T, w *world) {
	lead := w.Source(t, "lead")
	pkg := newPackage("coder", protocol.NewTicket())
	pkg.Type, pkg.Return = protocol.Delegation, &protocol.ReturnProtocol{Expected: true, TimeoutMS: 600_000}
	delegated, err := lead.Submit(w.ctx, pkg)
	w.must(err)
	w.handOn("coder", "tester")
	ended := make(chan error, 1)
	go func() {
		s, err := lead.Wait(w.ctx, delegated.Ticket, api.UntilEnded)
		if err == nil && s.ChainEnd == nil {
			err = fmt.Errorf("%s ended without its chain", s.Ticket)
		}
		ended <- err
	}()
	w.complete("tester")
	head, err := w.Broker.Head(w.ctx, delegated.Ticket, 0)
	w.must(err)
	w.must(w.Broker.EnsureReturn(w.ctx, head)) // as a supervisor does
	w.must(<-ended)
	ret, err := lead.Return(w.ctx, delegated.Ticket)
	if w.must(err); ret.LastID != protocol.ChildTicketN(delegated.Ticket, 0) {
		t.Errorf("the return is of %s", ret.LastID)
	}
}
