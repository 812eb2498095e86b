package protocol_test

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// whole is a package that passes, for tests to spoil.
func whole() protocol.Package {
	pkg := protocol.Package{Source: "implementer", Target: protocol.Target{Agent: "reviewer"}, Reason: "done",
		Task: protocol.Task{Description: "review it"}}
	pkg.Normalize(vectorNow)
	return pkg
}

func of[T any](v T) *T { return &v }

// ids makes n different ids.
func ids(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("agent-%d", i)
	}
	return list
}

// TestPackageLimits: at the limit accepted, one beyond refused by name.
func TestPackageLimits(t *testing.T) {
	long := func(n int) string { return strings.Repeat("n", n) }
	in := func(ms int64) time.Time { return vectorNow.Add(time.Duration(ms) * time.Millisecond) }
	type set func(p *protocol.Package, n int64)
	for _, c := range []struct {
		field       string
		least, most int64
		set         set
	}{
		{"source", 1, protocol.IDBytesMax, func(p *protocol.Package, n int64) { p.Source = long(int(n)) }},
		{"target.agent", 1, protocol.IDBytesMax, func(p *protocol.Package, n int64) { p.Target.Agent = long(int(n)) }},
		{"target.agents", 1, protocol.AgentsMax, func(p *protocol.Package, n int64) {
			p.Type, p.Target = protocol.Broadcast, protocol.Target{Agents: ids(int(n))}
		}},
		{"members", 1, protocol.ChildrenMax, func(p *protocol.Package, n int64) {
			p.Type, p.Target, p.Members = protocol.Broadcast, protocol.Target{}, []protocol.Member{}
			for range n {
				p.Members = append(p.Members, protocol.Member{Target: protocol.Target{Agent: "reviewer"}})
			}
		}},
		{"return.from", 0, protocol.ChildrenMax, func(p *protocol.Package, n int64) {
			p.Type, p.Target = protocol.Broadcast, protocol.Target{Agents: ids(protocol.AgentsMax)}
			p.Return = &protocol.ReturnProtocol{From: ids(int(n))}
		}},
		{"key", 0, protocol.KeyBytesMax, func(p *protocol.Package, n int64) { p.Key = long(int(n)) }},
		{"task.id", 0, protocol.NameBytesMax, func(p *protocol.Package, n int64) { p.Task.ID = long(int(n)) }},
		{"task.type", 0, protocol.NameBytesMax, func(p *protocol.Package, n int64) { p.Task.Type = long(int(n)) }},
		{"context.conversation_id", 1, protocol.NameBytesMax, func(p *protocol.Package, n int64) { p.Context.ConversationID = of(long(int(n))) }},
		{"context.workflow_id", 0, protocol.NameBytesMax, func(p *protocol.Package, n int64) { p.Context.WorkflowID = long(int(n)) }},
		{"context.user_id", 0, protocol.NameBytesMax, func(p *protocol.Package, n int64) { p.Context.UserID = long(int(n)) }},
		{"context.correlation_id", 0, protocol.NameBytesMax, func(p *protocol.Package, n int64) { p.Context.CorrelationID = long(int(n)) }},
		{"context.trace_id", 0, protocol.NameBytesMax, func(p *protocol.Package, n int64) { p.Context.TraceID = long(int(n)) }},
		{"context.phase", 0, protocol.NameBytesMax, func(p *protocol.Package, n int64) { p.Context.Phase = long(int(n)) }},
		{"context.next_phase", 0, protocol.NameBytesMax, func(p *protocol.Package, n int64) { p.Context.NextPhase = long(int(n)) }},
		{"context.history_transfer.max_messages", 0, protocol.HistoryMessagesMax, func(p *protocol.Package, n int64) { p.Context.HistoryTransfer.MaxMessages = int(n) }},
		{"context.history_transfer.max_tokens", 0, protocol.TokensMax, func(p *protocol.Package, n int64) { p.Context.HistoryTransfer.MaxTokens = int(n) }},
		{"context.history_transfer.omitted", 0, protocol.HistoryMessagesMax, func(p *protocol.Package, n int64) { p.Context.HistoryTransfer.Omitted = int(n) }},
		{"context.history_transfer.original_tokens", 0, protocol.TokensMax, func(p *protocol.Package, n int64) { p.Context.HistoryTransfer.OriginalTokens = int(n) }},
		{"context.history_transfer.tokens", 0, protocol.TokensMax, func(p *protocol.Package, n int64) { p.Context.HistoryTransfer.Tokens = int(n) }},
		{"required_capabilities", 0, protocol.RequiredCapabilitiesMax, func(p *protocol.Package, n int64) {
			for _, id := range ids(int(n)) {
				p.RequiredCapabilities = append(p.RequiredCapabilities, protocol.RequiredCapability{ID: id})
			}
		}},
		{"expectations.timeout_ms", 0, protocol.WorkTimeoutMaxMS, func(p *protocol.Package, n int64) { p.Expectations.TimeoutMS = n }},
		{"expectations.max_iterations", 0, protocol.IterationsMax, func(p *protocol.Package, n int64) { p.Expectations.MaxIterations = int(n) }},
		{"return.timeout_ms", 0, protocol.ReturnTimeoutMaxMS, func(p *protocol.Package, n int64) { p.Return = &protocol.ReturnProtocol{TimeoutMS: n} }},
		{"constraints.deadline", 1, protocol.DeadlineMaxMS, func(p *protocol.Package, n int64) { p.Constraints.Deadline = in(n) }},
		{"constraints.budget", 0, protocol.BudgetMax, func(p *protocol.Package, n int64) { p.Constraints.Budget = of(float64(n)) }},
		{"approval.timeout_ms", protocol.ApprovalTimeoutMinMS, protocol.ApprovalTimeoutMaxMS, func(p *protocol.Package, n int64) { p.Approval = &protocol.Approval{TimeoutMS: n} }},
		{"approval.question", 0, protocol.QuestionBytesMax, func(p *protocol.Package, n int64) { p.Approval = &protocol.Approval{Question: long(int(n))} }},
		{"autonomy_budget.amount", 0, protocol.BudgetMax, func(p *protocol.Package, n int64) {
			p.AutonomyBudget = &protocol.AutonomyBudget{Amount: of(float64(n))}
		}},
		{"autonomy_budget.deciders", 0, protocol.DecidersMax, func(p *protocol.Package, n int64) {
			p.AutonomyBudget = &protocol.AutonomyBudget{Deciders: ids(int(n))}
		}},
	} {
		try := func(n int64) error {
			pkg := whole()
			c.set(&pkg, n)
			return pkg.Validate(vectorNow)
		}
		for _, n := range []int64{c.least, c.most} {
			if err := try(n); err != nil {
				t.Errorf("%s at %d: %v", c.field, n, err)
			}
		}
		beyond := []int64{c.most + 1}
		if c.set != nil && !strings.Contains(c.field, "_id") && !strings.HasPrefix(c.field, "task") && c.least > 0 {
			beyond = append(beyond, c.least-1)
		}
		for _, n := range beyond {
			e := refusal(t, try(n))
			if e.Field != c.field && !(e.Field == "target" && n == 0) {
				t.Errorf("%s at %d: %v", c.field, n, e)
			}
			if e.Target == "" && n != 0 || e.Source == "" && c.field != "source" {
				t.Errorf("%s: the error does not name source and target: %+v", c.field, e)
			}
		}
	}
}

// TestPolicyLimits: every field of the overrides has limits, and With applies
// every one of them.
func TestPolicyLimits(t *testing.T) {
	limits := map[string][2]int64{
		"ack_timeout_ms": {1, protocol.AckTimeoutMaxMS}, "queue_timeout_ms": {0, protocol.QueueTimeoutMaxMS},
		"work_timeout_ms": {1, protocol.WorkTimeoutMaxMS}, "reminder_percent": {0, protocol.ReminderPercentMax},
		"max_attempts": {1, protocol.AttemptsMax}, "backoff_base_ms": {1, protocol.BackoffBaseMaxMS},
		"backoff_cap_ms": {1, protocol.BackoffCapMaxMS}, "backoff_spread_percent": {0, protocol.BackoffSpreadMaxPct},
		"max_reroutes": {0, protocol.ReroutesMax}, "max_escalations": {0, protocol.EscalationsMax},
		"condition_timeout_ms": {1, protocol.ConditionTimeoutMaxMS}, "max_conditions": {0, protocol.ConditionsMax},
		"cancel_grace_ms": {0, protocol.CancelGraceMaxMS}, "progress_timeout_ms": {0, protocol.ProgressTimeoutMaxMS},
		"return_timeout_ms": {0, protocol.ReturnTimeoutMaxMS}, "intervention_timeout_ms": {1, protocol.InterventionTimeoutMaxMS},
	}
	words := map[string][]string{"on_timeout": {"retry", "escalate", "fail"}, "on_no_taker": {"escalate", "queue", "return", "close"},
		"on_return_timeout": {"retry", "escalate", "fail"}, "late_result": {"ignore", "use"},
		"on_deadline": {"escalate", "close"}, "on_exhausted": {"escalate", "fail"}, "on_malformed": {"fail", "retry"}}
	decode := func(field string, value any) (o protocol.PolicyOverrides) {
		raw, _ := json.Marshal(map[string]any{field: value})
		if err := json.Unmarshal(raw, &o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	typ := reflect.TypeFor[protocol.PolicyOverrides]()
	for i := range typ.NumField() {
		field, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		good, bad := []any{}, []any{}
		if limit, ok := limits[field]; ok {
			good, bad = []any{limit[0], limit[1]}, []any{limit[0] - 1, limit[1] + 1}
		} else if list, ok := words[field]; ok {
			for _, word := range list {
				good = append(good, word)
			}
			bad = []any{"", "other"}
		} else if field == "strict_capabilities" {
			good = []any{true, false}
		} else {
			t.Errorf("%s has no limits", field)
		}
		for _, value := range good {
			o := decode(field, value)
			if err := o.Validate("policy"); err != nil {
				t.Errorf("%v", err)
			}
			got := reflect.ValueOf(protocol.DefaultPolicy().With(o)).FieldByName(typ.Field(i).Name)
			if fmt.Sprint(got) != fmt.Sprint(value) {
				t.Errorf("With: %s is %v, want %v", field, got, value)
			}
		}
		for _, value := range bad {
			if e := refusal(t, decode(field, value).Validate("policy")); e.Field != "policy."+field {
				t.Errorf("%s = %v: %v", field, value, e)
			}
			if e := refusal(t, decode(field, value).Validate("")); e.Field != field {
				t.Errorf("without a prefix: %v", e)
			}
		}
	}
	if protocol.DefaultPolicy().With(protocol.PolicyOverrides{}) != protocol.DefaultPolicy() {
		t.Error("no overrides change the policy")
	}
}

// TestTextInGo: a program that puts a package together is held to the same
// text as one that sends JSON.
func TestTextInGo(t *testing.T) {
	for field, spoil := range map[string]func(p *protocol.Package, text string){
		"reason":                       func(p *protocol.Package, text string) { p.Reason = text },
		"key":                          func(p *protocol.Package, text string) { p.Key = text },
		"task.requirements[1]":         func(p *protocol.Package, text string) { p.Task.Requirements = []string{"ok", text} },
		"context.user_intent":          func(p *protocol.Package, text string) { p.Context.UserIntent = &text },
		"context.decisions[0].made_by": func(p *protocol.Package, text string) { p.Context.Decisions = []protocol.Decision{{MadeBy: text}} },
		"context.artifacts[0].description": func(p *protocol.Package, text string) {
			p.Context.Artifacts.List = []protocol.Artifact{{ID: "a", Description: text}}
		},
		"context.artifacts.report": func(p *protocol.Package, text string) {
			p.Context.Artifacts.ByName = map[string]*string{"no": nil, "report": &text}
		},
		"context.relevant_files[0].sections[0]": func(p *protocol.Package, text string) {
			p.Context.RelevantFiles = []protocol.FileReference{{Path: "a", Sections: []string{text}}}
		},
		"context.variables.x": func(p *protocol.Package, text string) {
			p.Context.Variables = map[string]json.RawMessage{"x": json.RawMessage(`"` + text + `"`)}
		},
		"context.conversation_history[1]": func(p *protocol.Package, text string) {
			p.Context.ConversationHistory = []protocol.Message{protocol.Message(`{}`), protocol.Message(`["` + text + `"]`)}
		},
		"expectations.output_schema": func(p *protocol.Package, text string) {
			p.Expectations.OutputSchema = json.RawMessage(`"` + text + `"`)
		},
		"new": func(p *protocol.Package, text string) {
			p.Extra = map[string]json.RawMessage{"new": json.RawMessage(`"` + text + `"`)}
		},
	} {
		pkg := whole()
		spoil(&pkg, "fine ✓")
		if err := pkg.Validate(vectorNow); err != nil {
			t.Errorf("%s: %v", field, err)
		}
		for _, text := range []string{"a\xffb", "a\x00b"} {
			spoil(&pkg, text)
			if e := refusal(t, pkg.Validate(vectorNow)); e.Code != protocol.CodeText || e.Field != field {
				t.Errorf("%s: %v", field, e)
			}
		}
	}
	pkg := whole()
	pkg.Context.Metadata = map[string]json.RawMessage{"x": json.RawMessage("{")}
	if e := refusal(t, pkg.Validate(vectorNow)); e.Code != protocol.CodeMalformed || e.Field != "context.metadata.x" {
		t.Errorf("free data that is no JSON: %v", e)
	}
	if _, err := protocol.EncodePackage(pkg); refusal(t, err).Code != protocol.CodeMalformed {
		t.Errorf("written: %v", err)
	}
	pkg = whole()
	pkg.Context.Artifacts = protocol.Artifacts{List: []protocol.Artifact{{ID: "a"}}, ByName: map[string]*string{"b": nil}}
	if e := refusal(t, pkg.Validate(vectorNow)); e.Code != protocol.CodeConflict {
		t.Errorf("artifacts in both forms: %v", e)
	}
	pkg = whole()
	pkg.Constraints.Budget = of(math.NaN())
	if e := refusal(t, pkg.Validate(vectorNow)); e.Field != "constraints.budget" {
		t.Errorf("a budget that is no number: %v", e)
	}
}

func TestAnswersAndReports(t *testing.T) {
	long := func(n int) string { return strings.Repeat("n", n) }
	conditional := func(needs ...string) protocol.Ack {
		return protocol.Ack{Status: protocol.AckConditional, NeedsContext: needs}
	}
	many := func(n int) []string { return strings.Split(strings.Repeat("n,", n-1)+"n", ",") }
	type validator interface{ Validate() error }
	for field, c := range map[string]struct{ good, bad validator }{
		"reason": {protocol.Ack{Status: protocol.AckRejected, Reason: long(protocol.ReasonBytesMax)},
			protocol.Ack{Status: protocol.AckRejected, Reason: long(protocol.ReasonBytesMax + 1)}},
		"reason_code": {protocol.Ack{Status: protocol.AckRejected, Reason: "r", ReasonCode: long(protocol.IDBytesMax)},
			protocol.Ack{Status: protocol.AckRejected, Reason: "r", ReasonCode: long(protocol.IDBytesMax + 1)}},
		"needs_context":    {conditional(many(protocol.NeedsMax)...), conditional(many(protocol.NeedsMax + 1)...)},
		"needs_context[0]": {conditional(long(protocol.NeedBytesMax)), conditional(long(protocol.NeedBytesMax + 1))},
		"retry_after_ms": {protocol.Ack{Status: protocol.AckConditional, Reason: "r", RetryAfterMS: protocol.RetryAfterMaxMS},
			protocol.Ack{Status: protocol.AckConditional, Reason: "r", RetryAfterMS: protocol.RetryAfterMaxMS + 1}},
		"estimated_completion_ms": {protocol.Ack{Status: protocol.AckAccepted, EstimatedCompletionMS: protocol.EstimateMaxMS},
			protocol.Ack{Status: protocol.AckAccepted, EstimatedCompletionMS: protocol.EstimateMaxMS + 1}},
		"needs_permission[1]": {protocol.Ack{Status: protocol.AckConditional, NeedsPermission: []string{"a", "b"}},
			protocol.Ack{Status: protocol.AckConditional, NeedsPermission: []string{"a", "b\x00"}}},
		"by":          {protocol.Answer{Permit: true, By: long(protocol.NameBytesMax)}, protocol.Answer{Permit: true, By: long(protocol.NameBytesMax + 1)}},
		"answer":      {protocol.Answer{Text: long(protocol.AnswerBytesMax)}, protocol.Answer{Text: long(protocol.AnswerBytesMax + 1)}},
		"deny_reason": {protocol.Answer{Deny: true, DenyReason: long(protocol.ReasonBytesMax)}, protocol.Answer{Deny: true, DenyReason: long(protocol.ReasonBytesMax + 1)}},
		"message":     {protocol.Progress{Message: long(protocol.ProgressMessageBytesMax)}, protocol.Progress{Message: long(protocol.ProgressMessageBytesMax + 1)}},
		"details": {protocol.Progress{Details: json.RawMessage(`"` + long(protocol.ProgressBytesMax-2) + `"`)},
			protocol.Progress{Details: json.RawMessage(`"` + long(protocol.ProgressBytesMax-1) + `"`)}},
		"percent":      {protocol.Progress{Percent: 100}, protocol.Progress{Percent: math.Nextafter(100, 101)}},
		"usage.tokens": {&protocol.Result{Usage: &protocol.Usage{Tokens: protocol.TokensMax}}, &protocol.Result{Usage: &protocol.Usage{Tokens: protocol.TokensMax + 1}}},
		"iterations": {&protocol.Result{Iterations: protocol.IterationsMax},
			&protocol.Result{Iterations: protocol.IterationsMax + 1}},
		"body": {&protocol.Result{Body: json.RawMessage(`{"a":1}`)}, &protocol.Result{Body: json.RawMessage(`{"a":1`)}},
		"command.goto": {&protocol.Result{Command: &protocol.Command{Goto: list(t, ids(protocol.GotoMax))}},
			&protocol.Result{Command: &protocol.Command{Goto: list(t, ids(protocol.GotoMax+1))}}},
	} {
		if err := c.good.Validate(); err != nil {
			t.Errorf("%s: %v", field, err)
		}
		if e := refusal(t, c.bad.Validate()); e.Field != field {
			t.Errorf("%s: %v", field, e)
		}
	}
}

func list(t testing.TB, v any) json.RawMessage {
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestProfileLimits(t *testing.T) {
	long := func(n int) string { return strings.Repeat("n", n) }
	capabilities := func(n int) (all []protocol.Capability) {
		for _, id := range ids(n) {
			all = append(all, protocol.Capability{ID: id, Proficiency: 1})
		}
		return all
	}
	for field, c := range map[string]struct{ good, bad protocol.Profile }{
		"id":                    {protocol.Profile{ID: long(protocol.IDBytesMax)}, protocol.Profile{ID: long(protocol.IDBytesMax + 1)}},
		"name":                  {protocol.Profile{ID: "a", Name: long(protocol.NameBytesMax)}, protocol.Profile{ID: "a", Name: long(protocol.NameBytesMax + 1)}},
		"specialization":        {protocol.Profile{ID: "a", Specialization: long(protocol.IDBytesMax)}, protocol.Profile{ID: "a", Specialization: "quality assurance"}},
		"capabilities":          {protocol.Profile{ID: "a", Capabilities: capabilities(protocol.CapabilitiesMax)}, protocol.Profile{ID: "a", Capabilities: capabilities(protocol.CapabilitiesMax + 1)}},
		"examples":              {protocol.Profile{ID: "a", Examples: ids(protocol.ExamplesMax)}, protocol.Profile{ID: "a", Examples: ids(protocol.ExamplesMax + 1)}},
		"poll_patience_ms":      {protocol.Profile{ID: "a", PollPatienceMS: protocol.PollPatienceMaxMS}, protocol.Profile{ID: "a", PollPatienceMS: protocol.PollPatienceMaxMS + 1}},
		"max_concurrency":       {protocol.Profile{ID: "a", MaxConcurrency: protocol.ConcurrencyMax}, protocol.Profile{ID: "a", MaxConcurrency: protocol.ConcurrencyMax + 1}},
		"max_execution_time_ms": {protocol.Profile{ID: "a", MaxExecutionMS: protocol.WorkTimeoutMaxMS}, protocol.Profile{ID: "a", MaxExecutionMS: protocol.WorkTimeoutMaxMS + 1}},
		"escalates_to":          {protocol.Profile{ID: "a", EscalatesTo: "human"}, protocol.Profile{ID: "a", EscalatesTo: "a b"}},
		"description":           {protocol.Profile{ID: "a", Description: "fine"}, protocol.Profile{ID: "a", Description: "\xff"}},
		"profile":               {protocol.Profile{ID: "a", Description: long(protocol.ProfileBytesMax - 100)}, protocol.Profile{ID: "a", Description: long(protocol.ProfileBytesMax)}},
	} {
		if err := c.good.Validate(); err != nil {
			t.Errorf("%s: %v", field, err)
		}
		if e := refusal(t, c.bad.Validate()); e.Field != field {
			t.Errorf("%s: %v", field, e)
		}
	}
}

func TestTargetString(t *testing.T) {
	for want, target := range map[string]protocol.Target{
		"":                   {},
		"reviewer":           {Agent: "reviewer"},
		"capability go":      {Capability: "go"},
		"a, b":               {Agents: []string{"a", "b"}},
		"a, b, c and 2 more": {Agents: []string{"a", "b", "c", "d", "e"}},
	} {
		if got := target.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if got := (protocol.Package{Target: target}).TargetWords(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for want, pkg := range map[string]protocol.Package{
		"group of 2":             {Members: make([]protocol.Member, 2)},
		"authority above worker": {Type: protocol.Escalation, Source: "worker"},
		"human":                  {Type: protocol.Escalation, Source: "worker", Target: protocol.Target{Agent: protocol.Human}},
	} {
		if got := pkg.TargetWords(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
