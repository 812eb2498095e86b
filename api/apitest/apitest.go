// Package apitest has the conformance suite of package api: each operation, each role, and the
// errors that callers branch on. Only tests import it.
package apitest

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Fixture is an implementation under test, over an empty engine.
type Fixture struct {
	// Broker lets tests reach the engine past the implementation.
	Broker *broker.Broker
	// Source returns the implementation on behalf of api.Agent(agent).
	Source func(t *testing.T, agent string) api.Source
	// Holder returns the implementation on behalf of api.Agent(agent); nil if it has no Holder.
	Holder func(t *testing.T, agent string) api.Holder
	// Workers returns the implementation on behalf of api.Agent(agent); nil if it has no Workers.
	Workers func(t *testing.T, agent string) api.Workers
	// AcceptsAtOnce says that a claim must be accepted with the call of Claim.
	AcceptsAtOnce bool
	// All returns the session of any caller; nil if the implementation lacks an interface.
	All func(t *testing.T, caller api.Caller) *api.Session
}

// timeout bounds each test on a busy machine.
const timeout = time.Minute

// Run runs the suite. open is called for each test.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	tests := map[string]func(*testing.T, *world){
		"Submit": testSubmit, "Wait": testWait, "Result": testResult, "Chain": testChain, "Cancel": testCancel, "Answer": testAnswer, "Deny": testDeny, "Hidden": testHidden,
		"Contract": testContract,
	}
	fixture := open(t)
	if fixture.All != nil {
		tests["Roles"], tests["Reader"], tests["Operator"], tests["Directory"] = testRoles, testReader, testOperator, testDirectory
		tests["Approver"] = testApprover
		tests["Fleet"], tests["Workspaces"], tests["Schedules"], tests["Signals"] = testFleet, testWorkspaces, testSchedules, testSignals
	}
	if fixture.Holder != nil {
		tests["Claim"], tests["Reports"], tests["Late"], tests["HandOff"], tests["Provides"], tests["Bids"] = testClaim, testReports, testLate, testHandOff, testProvides, testBids
		if !fixture.AcceptsAtOnce {
			tests["ClaimLater"] = testClaimLater
		}
	}
	if fixture.Workers != nil {
		tests["Workers"] = testWorkers
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			t.Cleanup(cancel)
			w := &world{Fixture: open(t), t: t, ctx: ctx}
			w.register("lead", "coder", "stranger")
			test(t, w)
		})
	}
}

type world struct {
	Fixture
	t   *testing.T
	ctx context.Context
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) register(agents ...string) {
	w.t.Helper()
	for _, agent := range agents {
		w.must(w.Broker.PutProfile(w.ctx, protocol.Profile{ID: agent}))
		w.must(w.Broker.EnsureQueue(w.ctx, agent))
	}
}

// wantCode checks the code of a refusal.
func (w *world) wantCode(what string, err error, code protocol.Code) {
	w.t.Helper()
	if !errors.Is(err, &protocol.Error{Code: code}) {
		w.t.Errorf("%s: %v, want the code %s", what, err, code)
	}
}

// newPackage returns a package from lead to an agent.
func newPackage(to, key string) protocol.Package {
	return protocol.Package{Source: "lead", Target: protocol.Target{Agent: to}, Key: key, Reason: "the plan is ready", Task: protocol.Task{Description: "write it"}}
}

// submit hands a package from lead to coder.
func (w *world) submit() string {
	w.t.Helper()
	state, err := w.Source(w.t, "lead").Submit(w.ctx, newPackage("coder", protocol.NewTicket()))
	w.must(err)
	return state.Ticket
}

// answerOffer answers the next offer of an agent.
func (w *world) answerOffer(agent string, ack protocol.Ack) *broker.Claim {
	w.t.Helper()
	holder := protocol.Holder{ID: protocol.NewTicket(), Agent: agent, LeaseMS: 60_000, Slots: 1}
	w.must(w.Broker.Beat(w.ctx, holder))
	for {
		offers, err := w.Broker.Pull(w.ctx, agent, 1, time.Second)
		w.must(err)
		if len(offers) == 0 {
			continue
		}
		claim, err := offers[0].Acknowledge(w.ctx, holder, ack, true)
		if errors.Is(err, broker.ErrOfferGone) { // its handoff has closed meanwhile
			continue
		}
		w.must(err)
		return claim
	}
}

func (w *world) accept(agent string) *broker.Claim {
	w.t.Helper()
	return w.answerOffer(agent, protocol.Ack{Status: protocol.AckAccepted})
}

func (w *world) complete(agent string) {
	w.t.Helper()
	w.must(w.accept(agent).Complete(w.ctx, protocol.Result{Status: protocol.Success, Body: json.RawMessage(`"done"`)}))
}

func testSubmit(t *testing.T, w *world) {
	lead := w.Source(t, "lead")
	first, err := lead.Submit(w.ctx, newPackage("coder", "once"))
	w.must(err)
	if first.Source != "lead" || first.Agent != "coder" || first.Ticket != protocol.TicketForKey("lead", "once") {
		t.Errorf("submitted: %s from %s to %s", first.Ticket, first.Source, first.Agent)
	}
	again, err := lead.Submit(w.ctx, newPackage("coder", "once"))
	if w.must(err); again.Ticket != first.Ticket {
		t.Errorf("submitted again: another ticket")
	}
	unnamed := newPackage("coder", "unnamed")
	unnamed.Source = ""
	state, err := lead.Submit(w.ctx, unnamed)
	if w.must(err); state.Source != "lead" {
		t.Errorf("a package without a source is from %q", state.Source)
	}
	other := newPackage("coder", "once")
	other.Task.Description = "write another"
	_, err = lead.Submit(w.ctx, other)
	w.wantCode("another package with the same key", err, protocol.CodeKeyReused)
	_, err = lead.Submit(w.ctx, newPackage("missing", "missing"))
	w.wantCode("a target that is not registered", err, protocol.CodeUnknownAgent)
	_, err = w.Source(t, "coder").Submit(w.ctx, newPackage("coder", "foreign"))
	w.wantCode("as another source", err, protocol.CodeForbidden)
	child := newPackage("coder", "child")
	child.Parent = first.Ticket
	child.Source = "stranger"
	_, err = w.Source(t, "stranger").Submit(w.ctx, child)
	w.wantCode("under a hidden parent", err, protocol.CodeNotFound)
}

func testWait(t *testing.T, w *world) {
	lead, ticket := w.Source(t, "lead"), w.submit()
	soon, cancel := context.WithTimeout(w.ctx, 300*time.Millisecond)
	defer cancel()
	state, err := lead.Wait(soon, ticket, api.UntilClosed)
	if !errors.Is(err, context.DeadlineExceeded) || state.Ticket != ticket {
		t.Errorf("a wait that is cut short: %v, with the state of %q", err, state.Ticket)
	}
	waited := make(chan error, 1)
	go func() {
		_, err := lead.Wait(w.ctx, ticket, api.UntilAccepted)
		waited <- err
	}()
	claim := w.accept("coder")
	w.must(<-waited)
	w.must(claim.Complete(w.ctx, protocol.Result{Status: protocol.Success, Body: json.RawMessage(`"done"`)}))
	if state, err = lead.Wait(w.ctx, ticket, api.UntilClosed); err != nil || state.Outcome != protocol.OutcomeSuccess {
		t.Errorf("closed: %v, %s", err, state.Outcome)
	}
	_, err = lead.Wait(w.ctx, ticket, "soon")
	w.wantCode("an unknown until", err, protocol.CodeInvalid)
}

func testResult(t *testing.T, w *world) {
	lead, ticket := w.Source(t, "lead"), w.submit()
	if _, state, err := lead.Result(w.ctx, ticket); !errors.Is(err, broker.ErrNotFound) || state.Ticket != ticket {
		t.Errorf("without a result: %v, with the state of %q", err, state.Ticket)
	}
	_, err := lead.Return(w.ctx, ticket)
	w.wantCode("the return of an open handoff", err, protocol.CodeIllegal)
	w.complete("coder")
	result, state, err := lead.Result(w.ctx, ticket)
	if w.must(err); string(result.Body) != `"done"` || !state.Closed {
		t.Errorf("result %s, closed %v", result.Body, state.Closed)
	}
	ret, err := lead.Return(w.ctx, ticket)
	if w.must(err); ret.HandoffID != ticket || ret.Result == nil {
		t.Errorf("return of %s with the result %v", ret.HandoffID, ret.Result)
	}
	_, err = lead.Status(w.ctx, "not-a-ticket")
	var refused *protocol.Error
	if !errors.As(err, &refused) {
		t.Errorf("a malformed ticket: %v", err)
	}
}

func testCancel(t *testing.T, w *world) {
	ticket := w.submit()
	_, err := w.Source(t, "coder").Cancel(w.ctx, api.Cancel{Ticket: ticket})
	w.wantCode("by the target", err, protocol.CodeForbidden)
	state, err := w.Source(t, "lead").Cancel(w.ctx, api.Cancel{Ticket: ticket, Reason: "no longer needed"})
	if w.must(err); !state.Closed || state.Outcome != protocol.OutcomeCancelled {
		t.Errorf("cancelled: closed %v, %s", state.Closed, state.Outcome)
	}
	_, err = w.Source(t, "lead").Cancel(w.ctx, api.Cancel{Ticket: ticket})
	w.wantCode("again", err, protocol.CodeClosed)
	parent, err := w.Source(t, "lead").Submit(w.ctx, newPackage("coder", protocol.NewTicket()))
	w.must(err)
	state, err = w.Source(t, "lead").Cancel(w.ctx, api.Cancel{Ticket: parent.Ticket, Children: true})
	if w.must(err); !state.Closed {
		t.Error("cancelled with its children: open")
	}
}

func testAnswer(t *testing.T, w *world) {
	ticket := w.submit()
	w.answerOffer("coder", protocol.Ack{Status: protocol.AckConditional, NeedsContext: []string{"which branch?"}})
	lead := w.Source(t, "lead")
	if _, err := lead.Wait(w.ctx, ticket, api.UntilAsked); err != nil {
		t.Fatal(err)
	}
	answer := protocol.Answer{Question: 1, Text: "main"}
	_, err := w.Source(t, "coder").Answer(w.ctx, ticket, answer)
	w.wantCode("by the agent that asks", err, protocol.CodeForbidden)
	_, err = w.Source(t, "tester").Answer(w.ctx, ticket, answer)
	w.wantCode("by a stranger", err, protocol.CodeNotFound)
	_, err = lead.Answer(w.ctx, ticket, protocol.Answer{Text: "main"})
	w.wantCode("without its question", err, protocol.CodeMissing)
	state, err := lead.Answer(w.ctx, ticket, answer)
	if w.must(err); state.Phase == protocol.Conditional {
		t.Error("answered: still conditional")
	}
	w.answerOffer("coder", protocol.Ack{Status: protocol.AckConditional, NeedsPermission: []string{"delete the backups"}})
	_, err = lead.Answer(w.ctx, ticket, protocol.Answer{Question: 1, Text: "main", Permit: true})
	w.wantCode("the second question by an answer to the first", err, protocol.CodeConflict)
	state, err = lead.Answer(w.ctx, ticket, protocol.Answer{Question: 2, Permit: true})
	if w.must(err); state.Supplements != 2 {
		t.Errorf("%d answers", state.Supplements)
	}
	claim := w.accept("coder")
	if len(claim.Answers) != 2 || claim.Answers[0].By != "lead" || claim.Answers[0].Text != "main" {
		t.Errorf("answers: %+v", claim.Answers)
	}
}

// testDeny denies a permission: that ends the handoff for good, and others may decide where the
// denial says so.
func testDeny(t *testing.T, w *world) {
	lead := w.Source(t, "lead")
	deny := protocol.Answer{Question: 1, Deny: true, DenyReason: "not on a Friday"}
	ask := func() string {
		ticket := w.submit()
		w.answerOffer("coder", protocol.Ack{Status: protocol.AckConditional, NeedsPermission: []string{"to push"}})
		return ticket
	}
	ticket := ask()
	_, err := lead.Answer(w.ctx, ticket, protocol.Answer{Question: 1, Permit: true, LetOthers: true})
	w.wantCode("let_others without deny", err, protocol.CodeConflict)
	state, err := lead.Answer(w.ctx, ticket, deny)
	if w.must(err); state.Outcome != protocol.OutcomeRejected || state.Reason != lifecycle.ReasonDenied || state.Denied != "lead" {
		t.Errorf("denied: %s (%s) by %q", state.Outcome, state.Reason, state.Denied)
	}
	_, err = lead.Answer(w.ctx, ticket, protocol.Answer{Question: 1, Permit: true})
	w.wantCode("a permission after the denial", err, protocol.CodeClosed)
	ended, err := lead.Return(w.ctx, ticket)
	if w.must(err); ended.Outcome != protocol.OutcomeRejected {
		t.Errorf("its source hears of %s", ended.Outcome)
	}
	deny.LetOthers = true
	state, err = lead.Answer(w.ctx, ask(), deny)
	if w.must(err); state.Closed || state.Denied != "" {
		t.Errorf("others may decide: closed %t, denied by %q", state.Closed, state.Denied)
	}
}

// testHidden checks that the error for a handoff that a caller may not see is that for an unknown
// ticket.
func testHidden(t *testing.T, w *world) {
	foreign, unknown := w.submit(), protocol.NewTicket()
	stranger := w.Source(t, "stranger")
	for name, call := range sourceCalls() {
		if name == "Submit" {
			continue
		}
		hidden, missing := call(w.ctx, stranger, foreign), call(w.ctx, stranger, unknown)
		w.wantCode(name, hidden, protocol.CodeNotFound)
		var a, b *protocol.Error
		if !errors.As(hidden, &a) || !errors.As(missing, &b) || a.Field != b.Field || len(a.Message) != len(b.Message) {
			t.Errorf("%s tells a hidden handoff (%v) from a missing one (%v)", name, hidden, missing)
		}
	}
	if _, err := w.Source(t, "coder").Status(w.ctx, foreign); err != nil {
		t.Errorf("its target: %v", err)
	}
}
