package index

import (
	"reflect"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// TestGovernanceFigures follows handoffs through gates, limits and a circle, each by what the core
// decides.
func TestGovernanceFigures(t *testing.T) {
	w, ix := memoryWorld(t, 13)
	began := w.now
	flow := func(p *protocol.Package) {
		p.Source, p.Target, p.Context.WorkflowID, p.Parent = "lead", protocol.Target{Agent: "ann"}, "flow", ""
		p.Approval = &protocol.Approval{Required: true, By: "bob", TimeoutMS: 60_000}
	}
	step := func(k *subject, s lifecycle.Step, err error) {
		t.Helper()
		if err != nil || !w.append(k, s.Events) {
			t.Fatalf("%+v, %v", s.Events, err)
		}
	}
	later := func(k *subject, after time.Duration) time.Time { return k.SubmittedAt.Add(after) }
	approved, denied, lapsed, cancelled := w.submit(flow), w.submit(flow), w.submit(flow), w.submit(flow)
	say := lifecycle.ApprovalAnswer{By: "bob", Reason: "since"}
	s, err := lifecycle.Approve(approved.State, w.dir.At(later(approved, time.Second)), say)
	step(approved, s, err)
	s, err = lifecycle.Deny(denied.State, w.dir.At(later(denied, 3*time.Second)), say)
	step(denied, s, err)
	s, err = lifecycle.Decide(lapsed.State, w.dir.At(later(lapsed, 2*time.Minute)))
	step(lapsed, s, err)
	m := protocol.Meta{At: later(cancelled, 5*time.Second)}
	w.append(cancelled, []protocol.Event{&protocol.CancelRequested{Meta: m}})
	s, err = lifecycle.Decide(cancelled.State, w.dir.At(m.At))
	step(cancelled, s, err)
	limit := int64(100)
	bound := w.submit(flow, func(p *protocol.Package) { p.Approval, p.Limits = nil, &protocol.Limits{MaxTokens: &limit} })
	m.At = later(bound, time.Second)
	w.append(bound, []protocol.Event{&protocol.Accepted{Meta: m, Offer: bound.Offer, Agent: "ann", Holder: "h", LeaseMS: 30_000, Attempt: 1}, &protocol.Started{Meta: m}})
	for range 2 {
		w.append(bound, []protocol.Event{&protocol.Barred{Meta: m, Fence: bound.Fence, Code: protocol.CodeBudget, To: "cy"}})
	}
	w.append(bound, []protocol.Event{&protocol.Completed{Meta: m, Fence: bound.Fence, Status: protocol.Success, Usage: &protocol.Usage{Tokens: 120}}})
	circle := w.submit(flow, func(p *protocol.Package) { p.Approval = nil })
	w.append(circle, []protocol.Event{&protocol.Deadlocked{Meta: protocol.Meta{At: w.now}, Agent: "ann", Cycle: []string{circle.Ticket}}})

	a, err := ix.Figures(t.Context(), ask.FiguresQuery{Filter: ask.Filter{WorkflowID: []string{"flow"}}})
	if err != nil || !a.Complete {
		t.Fatalf("%+v, %v", a, err)
	}
	waited := a.Gates[0].Waited
	a.Gates[0].Waited = ask.Durations{}
	if want := []ask.GateFigures{{Gate: protocol.GateApproval, Waiting: 1, Passed: 1, Denied: 1, Lapsed: 1, Ended: 1}}; !reflect.DeepEqual(a.Gates, want) {
		t.Errorf("gates: %s, want %s", dump(a.Gates), dump(want))
	}
	if waited.Count != 3 || waited.Mean != 3000 {
		t.Errorf("waited: %+v", waited)
	}
	if want := []ask.BarredCount{{Code: string(protocol.CodeBudget), From: "ann", To: "cy", Count: 2}}; !reflect.DeepEqual(a.Barred, want) {
		t.Errorf("barred: %s", dump(a.Barred))
	}
	if want := []ask.BudgetFigures{{Limit: "max_tokens", Handoffs: 1, Granted: 100, Used: 120, Over: 20, OverHandoffs: 1}}; !reflect.DeepEqual(a.Budgets, want) {
		t.Errorf("budgets: %s", dump(a.Budgets))
	}
	if a.Deadlocks != 1 {
		t.Errorf("%d deadlocks", a.Deadlocks)
	}
	found, err := ix.List(t.Context(), ask.ListQuery{Filter: ask.Filter{Deadlocked: true}})
	if err != nil || len(found.Handoffs) != 1 || found.Handoffs[0].Ticket != circle.Ticket || !found.Handoffs[0].Deadlocked {
		t.Errorf("deadlocked: %s, %v", dump(found), err)
	}
	gates, err := ix.Gates(t.Context(), ask.Question{})
	if err != nil || len(gates.Gates) != len(protocol.GateKinds) || gates.Gates[1].Waiting != 1 || gates.Gates[1].Since.Before(began) {
		t.Errorf("gates: %+v, %v", gates, err)
	}
}
