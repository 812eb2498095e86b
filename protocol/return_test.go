package protocol_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// closedState is a delegation that reviewer has finished.
func closedState(outcome protocol.Outcome) protocol.State {
	return protocol.State{Ticket: groupTicket, Closed: true, Outcome: outcome, Reason: "code", Message: "words", Agent: "reviewer", Usage: &protocol.Used{Usage: protocol.Usage{Tokens: 7}}, ClosedAt: vectorNow,
		Summary: protocol.Summary{Type: protocol.Delegation, Source: "lead", Target: protocol.Target{Agent: "reviewer"}, Priority: protocol.High,
			Parent: protocol.ChildTicketN(groupTicket, 0), WorkflowID: "w", ConversationID: "c", TaskID: "t", Risk: protocol.RiskHigh},
		Progress: &protocol.Progress{Percent: 50}}
}

// TestReturnOf: every outcome has its status, and what there is of a result goes along.
func TestReturnOf(t *testing.T) {
	result := &protocol.Result{ContentType: protocol.ContentJSON, Body: json.RawMessage(`{"a":1}`), Summary: "s", Notes: "n", Usage: &protocol.Usage{Tokens: 9},
		Variables: free("x", "1"), Artifacts: protocol.Artifacts{List: []protocol.Artifact{{ID: "a"}}}}
	trail := []protocol.TrailEntry{{Event: protocol.EventRejected}}
	for outcome, status := range map[protocol.Outcome]protocol.ReturnStatus{
		protocol.OutcomeSuccess: "success", protocol.OutcomePartial: "partial", protocol.OutcomeTimeout: "timeout", protocol.OutcomeFailed: "failed",
		protocol.OutcomeRejected: "failed", protocol.OutcomeCancelled: "failed", protocol.OutcomeRolledBack: "failed",
	} {
		state := closedState(outcome)
		state.CancelBy, state.CancelReason = "lead", "not ours"
		want := protocol.Return{HandoffID: groupTicket, FromAgent: "reviewer", ToAgent: "lead", Status: status, Outcome: outcome, Reason: "code", Message: "words", Trail: trail,
			Result:         &protocol.ReturnResult{ContentType: "json", Body: result.Body, Summary: "s"},
			ContextUpdates: &protocol.ContextUpdates{VariablesChanged: result.Variables, ArtifactsProduced: result.Artifacts},
			Audit:          protocol.ReturnAudit{CompletionTime: vectorNow, TokensConsumed: 7, Notes: "n"}}
		if outcome == protocol.OutcomeRolledBack {
			want.RollbackReason, want.RollbackBy = "not ours", "lead"
		}
		last := &protocol.Progress{Percent: 60}
		if outcome != protocol.OutcomeSuccess {
			want.Progress = last
		}
		if got := protocol.ReturnOf(state, result, trail, last); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v", outcome, got)
		}
		got := protocol.ReturnOf(state, nil, nil, nil)
		if got.Result != nil || got.ContextUpdates != nil || got.Audit.Notes != "" || got.Audit.TokensConsumed != 7 {
			t.Errorf("%s without a result: %+v", outcome, got)
		}
		if (got.Progress == state.Progress) == (outcome == protocol.OutcomeSuccess) {
			t.Errorf("%s: progress %+v", outcome, got.Progress)
		}
	}
	state := closedState(protocol.OutcomeSuccess)
	state.Usage = nil
	if got := protocol.ReturnOf(state, &protocol.Result{Usage: &protocol.Usage{Tokens: 9}}, nil, nil); got.Audit.TokensConsumed != 9 || got.Result != nil {
		t.Errorf("%+v", got)
	}
	for name, change := range map[string]func(s *protocol.State){
		"a group": func(s *protocol.State) { s.Aggregate = &protocol.Aggregate{Size: 2} }, "no agent": func(s *protocol.State) { s.Agent = "" },
		"its own source": func(s *protocol.State) { s.Agent = s.Source },
	} {
		state := closedState(protocol.OutcomeFailed)
		change(&state)
		if got := protocol.ReturnOf(state, nil, nil, nil); got.FromAgent != protocol.System {
			t.Errorf("%s: from %s", name, got.FromAgent)
		}
	}
}

// TestReturnOfMuch: what is too large for a package is left where it lies.
func TestReturnOfMuch(t *testing.T) {
	large := &protocol.Result{Status: protocol.Success, ContentType: protocol.ContentText, Body: json.RawMessage(`"` + strings.Repeat("x", protocol.ReturnBytesMax) + `"`),
		Summary: "s", Notes: "n", Variables: free("x", "1")}
	got := protocol.ReturnOf(closedState(protocol.OutcomeSuccess), large, nil, nil)
	if got.Result.Body != nil || got.Result.Summary != "s" || got.ContextUpdates != nil || !strings.HasPrefix(got.Audit.Notes, "n\nthe result is ") || !strings.Contains(got.Audit.Notes, groupTicket) {
		t.Errorf("%+v", got)
	}
}

// TestReturnPackage: a return is work for the source, and for nobody else.
func TestReturnPackage(t *testing.T) {
	for outcome, words := range map[protocol.Outcome]string{
		protocol.OutcomeSuccess: "It succeeded.", protocol.OutcomePartial: "It succeeded in part. words", protocol.OutcomeTimeout: "It ran out of time. It is among the dead letters. words",
		protocol.OutcomeRejected: "No agent took it. It is among the dead letters. words", protocol.OutcomeCancelled: "It was cancelled. words",
		protocol.OutcomeRolledBack: "It was given back before it was finished. words", protocol.OutcomeFailed: "It failed. It is among the dead letters. words",
	} {
		state := closedState(outcome)
		ret := protocol.ReturnOf(state, nil, nil, nil)
		pkg := protocol.ReturnPackage(state, ret, vectorNow)
		if err := pkg.ValidateOwn(vectorNow); err != nil {
			t.Errorf("%s: %v", outcome, err)
		}
		if e := refusal(t, pkg.Validate(vectorNow)); e.Field != "returned" {
			t.Errorf("from others: %v", e)
		}
		if want := "Take in the return of handoff " + groupTicket + ", which lead handed to reviewer. " + words; pkg.Task.Description != want {
			t.Errorf("%q, want %q", pkg.Task.Description, want)
		}
		trigger := protocol.TriggerTaskCompletion
		if outcome == protocol.OutcomeTimeout {
			trigger = protocol.TriggerTimeout
		}
		queue := protocol.NoTakerQueue
		want := protocol.Summary{Type: protocol.Sequential, Source: "reviewer", Target: protocol.Target{Agent: "lead"}, Priority: protocol.High,
			Parent: state.Parent, WorkflowID: "w", ConversationID: "c", TaskID: "t", Digest: "d", ReturnOf: groupTicket,
			Overrides: protocol.PolicyOverrides{OnNoTaker: &queue, MaxReroutes: of(0), MaxEscalations: of(0)}}
		if got := pkg.Summarize("d"); !reflect.DeepEqual(got, want) || pkg.Trigger != trigger || pkg.Reason != "return of "+groupTicket+": "+string(outcome) || !pkg.CreatedAt.Equal(vectorNow) {
			t.Errorf("%s: %+v\n%+v", outcome, got, pkg)
		}
	}
	group := closedState(protocol.OutcomeSuccess)
	group.Aggregate, group.Target, group.Agent, group.ConversationID = &protocol.Aggregate{Size: 3}, protocol.Target{}, "", ""
	pkg := protocol.ReturnPackage(group, protocol.ReturnOf(group, nil, nil, nil), vectorNow)
	if err := pkg.ValidateOwn(vectorNow); err != nil || pkg.Source != protocol.System || !strings.Contains(pkg.Task.Description, "handed to group of 3.") {
		t.Errorf("%v: %+v", err, pkg)
	}
}

// TestRedrivePackage: the same work once more, under a ticket of its own.
func TestRedrivePackage(t *testing.T) {
	pkg := whole()
	pkg.Key, pkg.Constraints.Deadline, pkg.Context.Variables = "k", vectorNow.Add(time.Hour), free("x", "1")
	state := protocol.State{Ticket: groupTicket, Summary: pkg.Summarize("d")}
	later := vectorNow.Add(time.Minute)
	got := protocol.RedrivePackage(state, pkg, later)
	want := pkg
	want.Key, want.Origin, want.CreatedAt = "", groupTicket, later
	if err := got.ValidateOwn(later); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\n%+v\n%+v", err, got, want)
	}
	if got := protocol.RedrivePackage(state, pkg, vectorNow.Add(time.Hour)); !got.Constraints.Deadline.IsZero() {
		t.Error("a deadline that has passed would end it at once")
	}

	group := broadcast("a", "b")
	group.Return = &protocol.ReturnProtocol{Expected: true, TimeoutMS: 5, Aggregation: "any", From: []string{"a"}, CancelRest: true}
	whole := protocol.RedrivePackage(protocol.State{Ticket: groupTicket, Summary: group.Summarize("d")}, group, vectorNow)
	if err := whole.ValidateOwn(vectorNow); err != nil || whole.GroupSize() != 2 {
		t.Errorf("a group: %v, %+v", err, whole)
	}
	differ := grouped(to("a"), protocol.Member{Target: protocol.Target{Capability: "go"}})
	for _, of := range []protocol.Package{group, differ} {
		m, err := of.MemberAt(groupTicket, 1)
		if err != nil {
			t.Fatal(err)
		}
		got := protocol.RedrivePackage(protocol.State{Ticket: m.Ticket, Summary: m.Summarize("d")}, m.Package, vectorNow)
		if err := got.ValidateOwn(vectorNow); err != nil || got.GroupSize() != 0 || !reflect.DeepEqual(got.Target, m.Target) || got.Origin != m.Ticket {
			t.Errorf("a member: %v, %+v", err, got)
		}
	}
	if group.Return.Aggregation != "any" {
		t.Error("the group's package has changed")
	}
}
