package protocol_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

func TestNormalize(t *testing.T) {
	pkg := protocol.Package{Target: protocol.Target{Agents: []string{"a"}}}
	pkg.Normalize(vectorNow)
	want := protocol.Package{Version: protocol.Version, Type: protocol.Broadcast, Trigger: protocol.TriggerExplicitRequest,
		Priority: protocol.Normal, CreatedAt: vectorNow, Target: protocol.Target{Agents: []string{"a"}}}
	if !reflect.DeepEqual(pkg, want) {
		t.Errorf("%+v", pkg)
	}
	given := &protocol.ReturnProtocol{TimeoutMS: 1}
	east := time.FixedZone("east", 3600)
	pkg = protocol.Package{Version: "1.3", Type: protocol.Delegation, Trigger: protocol.TriggerTimeout, Priority: protocol.Low, Return: given,
		Parent:    "6BA7B810-9DAD-41D1-80B4-00C04FD430C8",
		CreatedAt: vectorNow.In(east), Constraints: protocol.Constraints{Deadline: vectorNow.In(east)}}
	pkg.Normalize(vectorNow.Add(time.Hour))
	if pkg.Version != "1.3" || pkg.Type != protocol.Delegation || pkg.Trigger != protocol.TriggerTimeout || pkg.Priority != protocol.Low {
		t.Errorf("what was given has changed: %+v", pkg)
	}
	if pkg.Parent != "6ba7b810-9dad-41d1-80b4-00c04fd430c8" || pkg.CreatedAt != vectorNow || pkg.Constraints.Deadline != vectorNow {
		t.Errorf("not in its canonical form: %+v", pkg)
	}
	if !pkg.Return.Expected || given.Expected {
		t.Error("a delegation expects a return, and the caller's value stays as it is")
	}
	again := pkg
	again.Normalize(vectorNow)
	if !reflect.DeepEqual(again, pkg) {
		t.Error("a second time changes something")
	}
}

// TestNormalizeReturns: who expects a return without saying so.
func TestNormalizeReturns(t *testing.T) {
	for name, c := range map[string]struct {
		kind  protocol.Type
		given *protocol.ReturnProtocol
		want  *protocol.ReturnProtocol
	}{
		"escalation":              {protocol.Escalation, nil, &protocol.ReturnProtocol{Expected: true}},
		"escalation with a wait":  {protocol.Escalation, &protocol.ReturnProtocol{Wait: "block"}, &protocol.ReturnProtocol{Expected: true, Wait: "block"}},
		"delegation":              {protocol.Delegation, &protocol.ReturnProtocol{TimeoutMS: 5}, &protocol.ReturnProtocol{Expected: true, TimeoutMS: 5}},
		"delegation without one":  {protocol.Delegation, nil, nil}, // refused, since it does not say how long it waits
		"sequential":              {protocol.Sequential, nil, nil},
		"sequential, not awaited": {protocol.Sequential, &protocol.ReturnProtocol{TimeoutMS: 5}, &protocol.ReturnProtocol{TimeoutMS: 5}},
		"broadcast":               {protocol.Broadcast, nil, nil},
	} {
		pkg := protocol.Package{Type: c.kind, Return: c.given}
		pkg.Normalize(vectorNow)
		if !reflect.DeepEqual(pkg.Return, c.want) {
			t.Errorf("%s: %+v, want %+v", name, pkg.Return, c.want)
		}
	}
	pkg := protocol.Package{Members: []protocol.Member{{Target: protocol.Target{Agent: "a"}}}}
	if pkg.Normalize(vectorNow); pkg.Type != protocol.Broadcast {
		t.Errorf("a package with members is of type %s", pkg.Type)
	}
}

// TestSummarize: whose word on time wins, and that the work's and the return's
// clock are two.
func TestSummarize(t *testing.T) {
	ms := func(n int64) *int64 { return &n }
	on := func(word protocol.OnTimeout) *protocol.OnTimeout { return &word }
	for name, c := range map[string]struct {
		policy       protocol.PolicyOverrides
		expectations int64
		returns      protocol.ReturnProtocol
		want         protocol.PolicyOverrides
	}{
		"nothing":      {},
		"expectations": {expectations: 2, want: protocol.PolicyOverrides{WorkTimeoutMS: ms(2)}},
		"return": {returns: protocol.ReturnProtocol{TimeoutMS: 3, OnTimeout: protocol.OnTimeoutFail},
			want: protocol.PolicyOverrides{ReturnTimeoutMS: ms(3), OnReturnTimeout: on(protocol.OnTimeoutFail)}},
		"both": {expectations: 2, returns: protocol.ReturnProtocol{TimeoutMS: 3},
			want: protocol.PolicyOverrides{WorkTimeoutMS: ms(2), ReturnTimeoutMS: ms(3)}},
		"policy": {protocol.PolicyOverrides{WorkTimeoutMS: ms(1), OnTimeout: on(protocol.OnTimeoutRetry), ReturnTimeoutMS: ms(4), OnReturnTimeout: on(protocol.OnTimeoutEscalate)},
			2, protocol.ReturnProtocol{TimeoutMS: 3, OnTimeout: protocol.OnTimeoutFail},
			protocol.PolicyOverrides{WorkTimeoutMS: ms(1), OnTimeout: on(protocol.OnTimeoutRetry), ReturnTimeoutMS: ms(4), OnReturnTimeout: on(protocol.OnTimeoutEscalate)}},
	} {
		pkg := whole()
		pkg.Policy, pkg.Expectations.TimeoutMS, pkg.Return = c.policy, c.expectations, &c.returns
		if s := pkg.Summarize("sha256:x"); !reflect.DeepEqual(s.Overrides, c.want) {
			t.Errorf("%s: %+v", name, s.Overrides)
		}
		if !reflect.DeepEqual(pkg.Policy, c.policy) {
			t.Errorf("%s: the package has changed", name)
		}
	}
	for wait, r := range map[string]*protocol.ReturnProtocol{
		"": {Wait: "block"}, "continue": {Expected: true}, "block": {Expected: true, Wait: "block"},
	} {
		pkg := whole()
		pkg.Return = r
		if s := pkg.Summarize("d"); s.Wait != wait || s.ReturnExpected != r.Expected {
			t.Errorf("%+v: wait %q, expected %t", r, s.Wait, s.ReturnExpected)
		}
	}
	pkg := whole()
	pkg.Origin, pkg.Returned = groupTicket, &protocol.Return{HandoffID: "h"}
	if s := pkg.Summarize("d"); s.Origin != groupTicket || s.ReturnOf != "h" {
		t.Errorf("%+v", s)
	}
}

func TestSummaryOfAll(t *testing.T) {
	pkg := whole()
	pkg.Context.ConversationID, pkg.Context.WorkflowID, pkg.Task.ID, pkg.Parent = of("c"), "w", "t", "p"
	pkg.Audit.RiskLevel, pkg.Constraints.Deadline = protocol.RiskHigh, vectorNow
	pkg.RequiredCapabilities = []protocol.RequiredCapability{{ID: "go"}}
	want := protocol.Summary{Type: protocol.Sequential, Source: "implementer", Target: pkg.Target, Priority: protocol.Normal,
		Deadline: vectorNow, Parent: "p", WorkflowID: "w", ConversationID: "c", TaskID: "t",
		Requires: pkg.RequiredCapabilities, Risk: protocol.RiskHigh, Digest: "d"}
	if got := pkg.Summarize("d"); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

func TestNormalizeResult(t *testing.T) {
	path := "a"
	for want, r := range map[string]protocol.Result{
		"":                       {},
		protocol.ContentText:     {Body: json.RawMessage(` "x"`)},
		protocol.ContentJSON:     {Body: json.RawMessage(`[1]`)},
		protocol.ContentArtifact: {Artifacts: protocol.Artifacts{ByName: map[string]*string{"a": &path}}},
	} {
		r.Normalize()
		if r.ContentType != want || r.Status != protocol.Success {
			t.Errorf("%+v, want %q", r, want)
		}
	}
	r := protocol.Result{Status: protocol.Partial, ContentType: protocol.ContentJSON, Body: json.RawMessage("null")}
	r.Normalize()
	if r.Status != protocol.Partial || r.ContentType != protocol.ContentJSON || r.Body != nil {
		t.Errorf("%+v", r)
	}
}
