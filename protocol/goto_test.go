package protocol_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// command is a result that asks for a further handoff. Empty texts are left out.
func command(to, update string) protocol.Result {
	return protocol.Result{Status: protocol.Success, Command: &protocol.Command{Goto: json.RawMessage(to), Update: json.RawMessage(update)}}
}

// next is what follows on pkg, which reviewer worked on: one package, complete and valid.
func next(t *testing.T, pkg protocol.Package, result protocol.Result) protocol.Package {
	t.Helper()
	all, err := protocol.Continue(pkg, "reviewer", groupTicket, result)
	if err != nil || len(all) != 1 {
		t.Fatalf("%d packages, %v", len(all), err)
	}
	complete := all[0]
	complete.Normalize(vectorNow)
	if err := complete.Validate(vectorNow); err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// TestContinueTo: a name is one handoff, a list of names a broadcast, a list of
// objects a group, and an end none.
func TestContinueTo(t *testing.T) {
	member := func(agent string, variables ...string) protocol.Member {
		m := protocol.Member{Target: protocol.Target{Agent: agent}}
		if len(variables) > 0 {
			m.Variables = free(variables...)
		}
		return m
	}
	for to, want := range map[string]protocol.Package{
		`"a"`:                                  {Type: protocol.Sequential, Target: protocol.Target{Agent: "a"}},
		`{"agent":"a","update":{"x":1}}`:       {Type: protocol.Sequential, Target: protocol.Target{Agent: "a"}, Context: protocol.Context{Variables: free("x", "1")}},
		`["a","b"]`:                            {Type: protocol.Broadcast, Target: protocol.Target{Agents: []string{"a", "b"}}},
		`["a"]`:                                {Type: protocol.Broadcast, Target: protocol.Target{Agents: []string{"a"}}},
		`["a","END"]`:                          {Type: protocol.Broadcast, Target: protocol.Target{Agents: []string{"a"}}},
		`["a",{"agent":"a","update":{"x":1}}]`: {Type: protocol.Broadcast, Members: []protocol.Member{member("a"), member("a", "x", "1")}},
		`[{"agent":"a"},{"agent":"__end__","update":{"x":1}}]`: {Type: protocol.Broadcast, Members: []protocol.Member{member("a")}},
	} {
		got := next(t, whole(), command(to, ""))
		if got.Type != want.Type || !reflect.DeepEqual(got.Target, want.Target) || !reflect.DeepEqual(got.Members, want.Members) ||
			!reflect.DeepEqual(got.Context.Variables, want.Context.Variables) {
			t.Errorf("%s: %+v", to, got)
		}
	}
	for _, to := range []string{``, `null`, `[]`, `"END"`, `"__end__"`, `["END","__end__"]`, `{"agent":"END"}`} {
		if all, err := protocol.Continue(whole(), "reviewer", groupTicket, command(to, `{"reason":7}`)); err != nil || len(all) != 0 {
			t.Errorf("%s: %d packages, %v", to, len(all), err)
		}
	}
	if all, err := protocol.Continue(whole(), "reviewer", groupTicket, protocol.Result{}); err != nil || len(all) != 0 {
		t.Errorf("no command: %d packages, %v", len(all), err)
	}
	if got := next(t, whole(), command(string(list(t, ids(protocol.GotoMax))), "")); got.GroupSize() != protocol.GotoMax {
		t.Errorf("%d recipients", got.GroupSize())
	}
}

// TestContinueRefuses names the field of the command that is wrong.
func TestContinueRefuses(t *testing.T) {
	for _, c := range []struct {
		to, update string
		code       protocol.Code
		field      string
	}{
		{`"reviewer"`, ``, protocol.CodeConflict, "command.goto"},
		{`["a","reviewer"]`, ``, protocol.CodeConflict, "command.goto[1]"},
		{`[{"agent":"reviewer"}]`, ``, protocol.CodeConflict, "command.goto[0]"},
		{`["a","b","a"]`, ``, protocol.CodeConflict, "command.goto"},
		{`"a/b"`, ``, protocol.CodeInvalid, "command.goto"},
		{`["a",7]`, ``, protocol.CodeInvalid, "command.goto[1]"},
		{string(list(t, ids(protocol.GotoMax+1))), ``, protocol.CodeTooLarge, "command.goto"},
		{`"a"`, `[]`, protocol.CodeInvalid, "command.update"},
		{`"a"`, `{"reason":7}`, protocol.CodeInvalid, "command.update.reason"},
		{`"a"`, `{"reason":"\ud800"}`, protocol.CodeText, "command.update.reason"},
		{`"a"`, `{"task":["x"]}`, protocol.CodeInvalid, "command.update.task"},
		{`"a"`, `{"task":{"name":"x"}}`, protocol.CodeUnknownField, "command.update.task.name"},
		{`"a"`, `{"next_task":{"id":"` + strings.Repeat("n", protocol.NameBytesMax+1) + `"}}`, protocol.CodeTooLarge, "command.update.next_task.id"},
		{`"a"`, `{"context":"x"}`, protocol.CodeInvalid, "command.update.context"},
		{`"a"`, `{"context":{"task_description":1}}`, protocol.CodeInvalid, "command.update.context.task_description"},
		{`"a"`, `{"context":{"artifacts_created":"a.md"}}`, protocol.CodeInvalid, "command.update.context.artifacts_created"},
		{`"a"`, `{"context":{"artifacts_created":["a",7]}}`, protocol.CodeInvalid, "command.update.context.artifacts_created[1]"},
		{`"a"`, `{"context":{"artifacts_created":["a",""]}}`, protocol.CodeMissing, "command.update.context.artifacts_created[1]"},
		{`"a"`, `{"artifacts":"x"}`, protocol.CodeInvalid, "command.update.artifacts"},
		{`"a"`, `{"artifacts":{"Plan":1}}`, protocol.CodeInvalid, "command.update.artifacts.Plan"},
		{`"a"`, `{"artifacts":[{"type":"file"}]}`, protocol.CodeMissing, "command.update.artifacts[0]"},
		{`"a"`, `{"workflow_state":7}`, protocol.CodeInvalid, "command.update.workflow_state"},
		{`"a"`, `{"workflow_state":{"phase":"a\nb"}}`, protocol.CodeInvalid, "command.update.workflow_state.phase"},
		{`"a"`, `{"workflow_state":{"completed_steps":"x"}}`, protocol.CodeInvalid, "command.update.workflow_state.completed_steps"},
		{`"a"`, `{"metrics":[]}`, protocol.CodeInvalid, "command.update.metrics"},
		{`"a"`, `{"decisions":["x",{"words":"y"}]}`, protocol.CodeUnknownField, "command.update.decisions[1].words"},
		{`{"agent":"a","update":{"reason":7}}`, ``, protocol.CodeInvalid, "command.goto.update.reason"},
		{`["b",{"agent":"a","update":{"task":7}}]`, ``, protocol.CodeInvalid, "command.goto[1].update.task"},
	} {
		all, err := protocol.Continue(whole(), "reviewer", groupTicket, command(c.to, c.update))
		if err == nil {
			t.Errorf("%.80s %s: accepted", c.to, c.update)
			continue
		}
		if e := refusal(t, err); e.Code != c.code || e.Field != c.field || all != nil {
			t.Errorf("%.80s %s: %s in %q (%v), want %s in %q", c.to, c.update, e.Code, e.Field, err, c.code, c.field)
		}
	}
}

// TestContinueCarriesOn: what goes on to the next agent, and what stays behind.
func TestContinueCarriesOn(t *testing.T) {
	pkg := whole()
	timeout, tries, on := int64(9), 2, protocol.OnTimeoutFail
	amount := 5.0
	pkg.Type, pkg.Priority, pkg.Key, pkg.Parent, pkg.Trigger = protocol.Delegation, protocol.High, "k", protocol.NewTicket(), protocol.TriggerTimeout
	pkg.Task = protocol.Task{ID: "T-1", Type: "review", Description: "review it", Requirements: []string{"r"}}
	pkg.Context = protocol.Context{OriginalRequest: "do it", UserIntent: of("to have it"), ConversationID: of("c"), WorkflowID: "w", UserID: "u", CorrelationID: "co", TraceID: "tr",
		Phase: "research", NextPhase: "planning", CompletedSteps: []json.RawMessage{json.RawMessage(`"one"`)}, Summary: "before", KeyPoints: []string{"k"}, ContextURL: "context://1",
		Variables: free("x", "1", "y", "1", "z", "1"), Decisions: []protocol.Decision{{Description: "d"}}, IntermediateResults: free("i", "1"),
		Previous:      &protocol.Previous{Agent: "researcher", Ticket: protocol.NewTicket(), Body: json.RawMessage(`"older"`)},
		RelevantFiles: []protocol.FileReference{{Path: "f"}}, FilesInProgress: []protocol.FileLock{{Path: "a", Owner: "reviewer"}, {Path: "b", Owner: "other"}, {Path: "c"}},
		Artifacts: protocol.Artifacts{ByName: map[string]*string{"Plan": nil}}, Constraints: []string{"none"}, WhenStuck: []string{"ask"}, Metrics: free("m", "1", "n", "1"), Metadata: free("me", "1")}
	pkg.Constraints = protocol.Constraints{Budget: &amount, Deadline: vectorNow.Add(time.Hour), Complexity: "simple"}
	pkg.Expectations = protocol.Expectations{OutputSchema: json.RawMessage(`{}`), SuccessCriteria: []string{"s"}, TimeoutMS: 5, MaxIterations: 3}
	pkg.RequiredCapabilities = []protocol.RequiredCapability{{ID: "go"}}
	pkg.AutonomyBudget = &protocol.AutonomyBudget{MaxRisk: protocol.RiskLow}
	pkg.Return = &protocol.ReturnProtocol{Expected: true, TimeoutMS: 9}
	pkg.Audit = protocol.Audit{DecisionRationale: "because", RiskLevel: protocol.RiskMedium}
	pkg.Policy = protocol.PolicyOverrides{MaxAttempts: &tries, WorkTimeoutMS: &timeout, ReturnTimeoutMS: &timeout, OnReturnTimeout: &on}
	pkg.Origin, pkg.Returned, pkg.Extra = groupTicket, &protocol.Return{}, free("newer", "1")
	before, _ := protocol.EncodePackage(pkg)

	path, plan := "r.md", "plan.md"
	result := command(`"planner"`, `{"z":3,"artifacts":{"Report":"r.md","Next":null},"metrics":{"n":2},"decisions":["this way",{"description":"that way","made_by":"x"}]}`)
	result.Variables, result.Summary, result.Artifacts = free("y", "2", "z", "2"), "after", protocol.Artifacts{ByName: map[string]*string{"Plan": &plan}}
	got := next(t, pkg, result)

	want := pkg
	want.Type, want.Source, want.Target, want.Trigger, want.Reason, want.Parent = protocol.Sequential, "reviewer", protocol.Target{Agent: "planner"}, protocol.TriggerTaskCompletion, "handed on by reviewer", groupTicket
	want.Version, want.Key, want.CreatedAt, want.Expectations, want.RequiredCapabilities, want.Return = "", "", time.Time{}, protocol.Expectations{}, nil, nil
	want.Origin, want.Returned, want.Extra = "", nil, nil
	want.Constraints.Deadline = time.Time{}  // for Inherit
	want.Policy = protocol.PolicyOverrides{} // those of a return are its own
	want.Context.Variables, want.Context.Metrics, want.Context.Summary = free("x", "1", "y", "2", "z", "3"), free("m", "1", "n", "2"), "after"
	want.Context.Artifacts = protocol.Artifacts{ByName: map[string]*string{"Plan": &plan, "Report": &path, "Next": nil}}
	want.Context.Previous = &protocol.Previous{Agent: "reviewer", Ticket: groupTicket, Summary: "after", Artifacts: result.Artifacts}
	want.Context.FilesInProgress = want.Context.FilesInProgress[1:]
	want.Context.Decisions = []protocol.Decision{{Description: "d"}, {Description: "this way", MadeBy: "reviewer"}, {Description: "that way", MadeBy: "x"}}
	if !reflect.DeepEqual(got, want) {
		a, _ := protocol.EncodePackage(got)
		b, _ := protocol.EncodePackage(want)
		t.Errorf("%s\nwant\n%s", a, b)
	}
	if after, _ := protocol.EncodePackage(pkg); string(after) != string(before) {
		t.Error("the package that was worked on has changed")
	}
}

// TestContinueUpdates: where each field of an update goes.
func TestContinueUpdates(t *testing.T) {
	for update, check := range map[string]func(p protocol.Package) (got, want any){
		`{"reason":"why"}`: func(p protocol.Package) (any, any) { return p.Reason, "why" },
		`{"reason":" "}`:   func(p protocol.Package) (any, any) { return p.Reason, "handed on by reviewer" },
		`{"reason":null}`:  func(p protocol.Package) (any, any) { return p.Reason, "handed on by reviewer" },
		`{"task":"t"}`: func(p protocol.Package) (any, any) {
			return p.Task, protocol.Task{ID: "T-1", Description: "t"}
		},
		`{"task":"review it"}`: func(p protocol.Package) (any, any) {
			return p.Task, protocol.Task{ID: "T-1", Type: "review", Description: "review it", Requirements: []string{"r"}}
		},
		`{"task":" "}`: func(p protocol.Package) (any, any) { return p.Task.Description, "review it" },
		`{"task":{"id":"T-2","description":"t","type":"x"}}`: func(p protocol.Package) (any, any) {
			return p.Task, protocol.Task{ID: "T-2", Type: "x", Description: "t"}
		},
		`{"task_description":"t"}`: func(p protocol.Package) (any, any) { return p.Task.Description, "t" },
		`{"next_task":"t","task":"u","context":{"task_description":"v"}}`: func(p protocol.Package) (any, any) {
			return []any{p.Task.Description, p.Context.Variables}, []any{"t", free("task", `"u"`, "task_description", `"v"`)}
		},
		`{"context":{"task_description":"t","previous_agent":"x","completed":true,"more":1},"more":2,"retry":true}`: func(p protocol.Package) (any, any) {
			return []any{p.Task.Description, p.Context.Variables}, []any{"t", free("more", "2", "retry", "true")}
		},
		`{"workflow_state":{"phase":"a","next_phase":"b","completed_steps":["x",{"y":1}],"remaining_steps":[],"more":null}}`: func(p protocol.Package) (any, any) {
			c := p.Context
			return []any{c.Phase, c.NextPhase, len(c.CompletedSteps), len(c.RemainingSteps), c.Variables}, []any{"a", "b", 2, 0, free("more", "null")}
		},
		`{"workflow_state":null,"context":null,"metrics":null,"decisions":null,"artifacts":null,"task":null}`: func(p protocol.Package) (any, any) {
			return p.Context.Variables == nil && p.Context.Artifacts.IsZero() && p.Task.Description == "review it" && len(p.Context.RemainingSteps) == 1, true
		},
		// What was made is named once, in the form that the artifacts have.
		`{"artifacts":{"R":"path/to/R.md","N":null},"context":{"artifacts_created":["R.md","path/to/R.md","new.md"]}}`: func(p protocol.Package) (any, any) {
			return string(list(t, p.Context.Artifacts)), `{"N":null,"R":"path/to/R.md","new.md":"new.md"}`
		},
		`{"context":{"artifacts_created":["a/b.md",{"id":"1","created_by":"x"}]}}`: func(p protocol.Package) (any, any) {
			return string(list(t, p.Context.Artifacts)), `[{"path":"a/b.md","created_by":"reviewer"},{"id":"1","created_by":"x"}]`
		},
	} {
		pkg := whole()
		pkg.Task = protocol.Task{ID: "T-1", Type: "review", Description: "review it", Requirements: []string{"r"}}
		pkg.Context.RemainingSteps = []json.RawMessage{json.RawMessage(`"s"`)}
		if got, want := check(next(t, pkg, command(`"a"`, update))); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %s, want %s", update, list(t, got), list(t, want))
		}
	}
}

// TestContinueMembers: what goes to all, and what to one.
func TestContinueMembers(t *testing.T) {
	pkg := whole()
	pkg.Task.ID = "T-1"
	got := next(t, pkg, command(
		`[{"agent":"a","update":{"task":"Research Redis","reason":"r","x":1,"artifacts":{"P":"p"},"context":{"artifacts_created":["n.md"],"y":2},
			"workflow_state":{"phase":"own"},"metrics":{"m":1},"decisions":["d"]}}, "b"]`,
		`{"reason":"for all","workflow_state":{"phase":"shared"},"v":0}`))
	p, n := "p", "n.md"
	want := []protocol.Member{
		{Target: protocol.Target{Agent: "a"}, Reason: "r", Task: &protocol.Task{ID: "T-1", Description: "Research Redis"},
			Variables: free("x", "1", "y", "2", "workflow_state", `{"phase":"own"}`, "metrics", `{"m":1}`, "decisions", `["d"]`),
			Artifacts: protocol.Artifacts{ByName: map[string]*string{"P": &p, "n.md": &n}}},
		{Target: protocol.Target{Agent: "b"}},
	}
	if !reflect.DeepEqual(got.Members, want) || got.Reason != "for all" || got.Context.Phase != "shared" || !reflect.DeepEqual(got.Context.Variables, free("v", "0")) {
		t.Errorf("%s", list(t, got))
	}
}

// TestContinueHistory: how much of the conversation goes on.
func TestContinueHistory(t *testing.T) {
	say := func(role, text string) string { return fmt.Sprintf(`{"role":%q,"content":%q}`, role, text) }
	plain, system, answer := say("user", "hello"), say("system", "be kind"), `{"role":"tool", "tool_call_id":"1","content":"42"}`
	call := `{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}`
	both := `{"content":"let me see","n":1.50,"role":"assistant","tool_calls":[{"id":"1"}]}`
	thought := `{"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"so"},{"type":"tool_use","id":"2"}]}`
	onlyThought := `{"type":"reasoning","summary":[]}`
	with := `{"content":"so","reasoning_content":"hm","role":"assistant"}`
	odd := []string{`"just words"`, `{"role":7,"content":{"a":1}}`, `{"role":"assistant","content":[],"tool_calls":[]}`, `[1]`, `{"role":"critic","content":"no","reasoning":null}`}
	all := append([]string{plain, system, answer, call, both, thought, onlyThought, with}, odd...)
	// What goes on without the other goes on as texts.
	callsAlone := slices.Concat([]string{plain, system, `{"content":"called a tool","role":"assistant"}`, `{"content":"let me see\ncalled a tool","n":1.50,"role":"assistant"}`,
		`{"content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"so"},{"text":"called a tool","type":"text"}],"role":"assistant"}`, onlyThought, with}, odd)
	resultsAlone := slices.Concat([]string{plain, system, `{"content":"result of a tool: 42","role":"user"}`, `{"content":"let me see","n":1.50,"role":"assistant"}`,
		`{"content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"so"}],"role":"assistant"}`, onlyThought, with}, odd)
	yes, no := true, false
	allKinds := protocol.Include{SystemMessages: &yes, ToolCalls: &yes, ToolResults: &yes, AgentReasoning: &yes}
	noKind := &protocol.Include{SystemMessages: &no, ToolCalls: &no, ToolResults: &no, AgentReasoning: &no}
	withoutSystem := slices.Concat(all[:1], all[2:])

	for name, c := range map[string]struct {
		kind     protocol.Type
		transfer protocol.HistoryTransfer
		want     []string
		summary  string
		mode     protocol.TransferMode
	}{
		"not said":             {"", protocol.HistoryTransfer{}, all, "s", protocol.TransferRelevantOnly},
		"not said, escalation": {protocol.Escalation, protocol.HistoryTransfer{}, all, "s", protocol.TransferFull},
		"full":                 {"", protocol.HistoryTransfer{Mode: "full", Include: &protocol.Include{}}, all, "s", "full"},
		"full, of some kinds":  {"", protocol.HistoryTransfer{Mode: "full", Include: &protocol.Include{SystemMessages: &no}}, withoutSystem, "s", "full"},
		"full, with a bound":   {"", protocol.HistoryTransfer{Mode: "full", MaxMessages: 2}, []string{plain, all[len(all)-1]}, "s", "full"},
		"more than there are":  {"", protocol.HistoryTransfer{Mode: "full", MaxMessages: 100}, all, "s", "full"},
		"summary":              {"", protocol.HistoryTransfer{Mode: "summary"}, nil, "s", "summary"},
		"reference":            {"", protocol.HistoryTransfer{Mode: "reference"}, nil, "", "reference"},
		"all kinds":            {"", protocol.HistoryTransfer{Include: &allKinds}, all, "s", "relevant_only"},
		"no system messages":   {"", protocol.HistoryTransfer{Include: &protocol.Include{SystemMessages: &no}}, withoutSystem, "s", "relevant_only"},
		"no tool results":      {"", protocol.HistoryTransfer{Include: &protocol.Include{ToolResults: &no}}, callsAlone, "s", "relevant_only"},
		"no tool calls":        {"", protocol.HistoryTransfer{Include: &protocol.Include{ToolCalls: &no}}, resultsAlone, "s", "relevant_only"},
		"no reasoning": {"", protocol.HistoryTransfer{Include: &protocol.Include{AgentReasoning: &no}},
			slices.Concat([]string{plain, system, answer, call, both, `{"content":[{"type":"text","text":"so"},{"type":"tool_use","id":"2"}],"role":"assistant"}`,
				`{"content":"so","role":"assistant"}`}, odd), "s", "relevant_only"},
		"none of these, the newest": {"", protocol.HistoryTransfer{Mode: "relevant_only", MaxMessages: 7, Include: noKind},
			slices.Concat([]string{plain, `{"content":"so","role":"assistant"}`}, odd), "s", "relevant_only"},
	} {
		pkg := whole()
		pkg.Type = c.kind
		pkg.Context.Summary, pkg.Context.KeyPoints, pkg.Context.ContextURL, pkg.Context.HistoryTransfer = "s", []string{"k"}, "u", c.transfer
		for _, message := range all {
			pkg.Context.ConversationHistory = append(pkg.Context.ConversationHistory, json.RawMessage(message))
		}
		got := next(t, pkg, command(`"a"`, ""))
		var messages []string
		for _, message := range got.Context.ConversationHistory {
			messages = append(messages, string(message))
		}
		if !slices.Equal(messages, c.want) {
			t.Errorf("%s:\n%q\nwant\n%q", name, messages, c.want)
		}
		if g := got.Context; g.Summary != c.summary || g.HistoryTransfer.Mode != c.mode || g.KeyPoints == nil || g.ContextURL != "u" {
			t.Errorf("%s: %+v", name, g)
		}
		if len(pkg.Context.ConversationHistory) != len(all) {
			t.Errorf("%s: the conversation that was worked with has changed", name)
		}
	}
	if got := next(t, whole(), command(`"a"`, "")); got.Context.HistoryTransfer.Mode != "" {
		t.Error("without a conversation there is nothing to say of it")
	}
}

// FuzzContinue: whatever a worker asks for, it gets a valid package or an error
// that names the command.
func FuzzContinue(f *testing.F) {
	for _, v := range vectors(f, "valid") {
		if v.Kind == "result" {
			f.Add(v.raw(f))
		}
	}
	for _, update := range []string{`{"task":"x","context":{"artifacts_created":["a"]},"artifacts":{"a":null},"workflow_state":{"phase":"p"}}`, `{"decisions":["d"],"metrics":{"a":1}}`} {
		for _, to := range []string{`"a"`, `["a","b"]`, `["a",{"agent":"a","update":` + update + `}]`} {
			f.Add([]byte(`{"command":{"goto":` + to + `,"update":` + update + `}}`))
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		result, err := protocol.DecodeResult(raw)
		if err != nil {
			return
		}
		if result.Normalize(); result.Validate() != nil {
			return
		}
		pkg := whole()
		pkg.Context.ConversationHistory = []protocol.Message{raw}
		pkg.Context.HistoryTransfer.Include = &protocol.Include{SystemMessages: new(bool), ToolCalls: new(bool), ToolResults: new(bool), AgentReasoning: new(bool)}
		all, err := protocol.Continue(pkg, "reviewer", groupTicket, result)
		if err != nil {
			if e := refusal(t, err); !strings.HasPrefix(e.Field, "command.") {
				t.Fatalf("%q: %v", e.Field, err)
			}
			return
		}
		for _, p := range all {
			p.Normalize(vectorNow)
			if err := p.Validate(vectorNow); err != nil {
				t.Fatalf("not valid: %v", err)
			}
			for n := range p.GroupSize() {
				m, err := p.MemberAt(groupTicket, n)
				if err == nil {
					err = m.Package.ValidateOwn(vectorNow)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if _, err := protocol.EncodePackage(p); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestSupplement: the variables of answers go over those of the package, which
// others may still hold.
func TestSupplement(t *testing.T) {
	own := free("x", "1", "y", "1")
	pkg := protocol.Package{Context: protocol.Context{Variables: own}}
	pkg.Supplement([]protocol.Answer{{Text: "no variables"}, {Variables: free("y", "2", "z", "2")}, {Variables: free("z", "3")}})
	if !reflect.DeepEqual(pkg.Context.Variables, free("x", "1", "y", "2", "z", "3")) || !reflect.DeepEqual(own, free("x", "1", "y", "1")) {
		t.Errorf("%s, made of %s", list(t, pkg.Context.Variables), list(t, own))
	}
	none := protocol.Package{}
	if none.Supplement([]protocol.Answer{{Permit: true}}); none.Context.Variables != nil {
		t.Error("no variables become an empty map")
	}
	if none.Supplement([]protocol.Answer{{Variables: free("z", "3")}}); !reflect.DeepEqual(none.Context.Variables, free("z", "3")) {
		t.Errorf("%s", list(t, none.Context.Variables))
	}
}
