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

// TestSummarize: whose word on time wins.
func TestSummarize(t *testing.T) {
	ms := func(n int64) *int64 { return &n }
	for name, c := range map[string]struct {
		policy       *int64
		expectations int64
		returns      int64
		want         int64
	}{
		"nothing":      {nil, 0, 0, 0},
		"return":       {nil, 0, 3, 3},
		"expectations": {nil, 2, 3, 2},
		"policy":       {ms(1), 2, 3, 1},
	} {
		pkg := whole()
		pkg.Policy.WorkTimeoutMS, pkg.Expectations.TimeoutMS = c.policy, c.expectations
		pkg.Return = &protocol.ReturnProtocol{TimeoutMS: c.returns, OnTimeout: protocol.OnTimeoutFail}
		s := pkg.Summarize("sha256:x")
		got := int64(0)
		if s.Overrides.WorkTimeoutMS != nil {
			got = *s.Overrides.WorkTimeoutMS
		}
		if got != c.want || *s.Overrides.OnTimeout != protocol.OnTimeoutFail {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
		if pkg.Policy.WorkTimeoutMS != c.policy {
			t.Errorf("%s: the package has changed", name)
		}
	}
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
