package apitest

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// testSignals: a rule is put, paused, resumed and removed, and a signal is sent. A rule that cannot
// apply, or whose template makes no package, is refused by its field, and changes nothing.
func testSignals(t *testing.T, w *world) {
	admin, name := w.All(t, api.Local("ann")), "r-"+protocol.NewTicket()[:8]
	template := func(fields string) json.RawMessage {
		return json.RawMessage(`{"target":{"agent":"coder"},"reason":"an order","task":{"description":{"$":"/order/text"}}` + fields + `}`)
	}
	request := api.PutRule{Name: name, Signal: "order", If: &protocol.NextCondition{Variable: "total", Gt: new(float64)},
		Package: template(`,"priority":{"$":"/priority"},"context":{"variables":{"order":{"$":""}}}`)}
	pkg := func(body string) func(*api.PutRule) {
		return func(r *api.PutRule) { r.Package = json.RawMessage(body) }
	}
	with := func(fields string) func(*api.PutRule) {
		return func(r *api.PutRule) { r.Package = template(fields) }
	}
	refusals := []struct {
		field  string
		code   protocol.Code
		change func(*api.PutRule)
	}{
		{"name", protocol.CodeMissing, func(r *api.PutRule) { r.Name = "" }},
		{"name", protocol.CodeInvalid, func(r *api.PutRule) { r.Name = "a.b" }},
		{"signal", protocol.CodeInvalid, func(r *api.PutRule) { r.Signal = "a.>" }},
		{"rate", protocol.CodeInvalid, func(r *api.PutRule) { r.Rate = -1 }},
		{"rate", protocol.CodeInvalid, func(r *api.PutRule) { r.Rate = 60_000 }},
		{"if.variable", protocol.CodeMissing, func(r *api.PutRule) { r.If = &protocol.NextCondition{} }},
		{"if.eq", protocol.CodeMissing, func(r *api.PutRule) { r.If = &protocol.NextCondition{Variable: "total"} }},
		{"if.status", protocol.CodeInvalid, func(r *api.PutRule) { r.If = &protocol.NextCondition{Status: protocol.Success} }},
		{"package", protocol.CodeMissing, func(r *api.PutRule) { r.Package = nil }},
		{"package", protocol.CodeMalformed, pkg(`[]`)},
		{"package", protocol.CodeTooLarge, with(`,"metadata":{"x":"` + strings.Repeat("x", protocol.TemplateBytesMax) + `"}`)},
		{"package.reason", protocol.CodeMissing, pkg(`{"target":{"agent":"coder"},"task":{"description":{"$":""}}}`)},
		{"package.target.agent", protocol.CodeUnknownAgent, pkg(`{"target":{"agent":"unknown"},"reason":"r","task":{"description":"d"}}`)},
		{"package.priority", protocol.CodeInvalid, with(`,"priority":"soon"`)},
		{"package.context.variables.v", protocol.CodeInvalid, with(`,"context":{"variables":{"v":{"$":"order"}}}`)},
		{"package.source", protocol.CodeConflict, with(`,"source":"lead"`)},
		{"package.source", protocol.CodeConflict, with(`,"source":{"$":"/from"}`)},
		{"package.key", protocol.CodeConflict, with(`,"key":{"$":"/id"}`)},
		{"package.start_at", protocol.CodeConflict, with(`,"start_at":"2030-01-01T00:00:00Z"`)},
		{"package.constraints.deadline", protocol.CodeConflict, with(`,"constraints":{"deadline":"2030-01-01T00:00:00Z"}`)},
		{"package.parent", protocol.CodeConflict, with(`,"parent":"` + protocol.NewTicket() + `"`)},
	}
	refuse := func() {
		for _, c := range refusals {
			r := request
			c.change(&r)
			if _, err := admin.PutRule(w.ctx, r); !errors.Is(err, &protocol.Error{Code: c.code, Field: c.field}) {
				t.Errorf("%s: %v, want %s", c.field, err, c.code)
			}
		}
	}
	refuse()
	all, err := admin.Rules(w.ctx)
	if w.must(err); len(all.Rules) != 0 {
		t.Errorf("refused, and there: %+v", all)
	}
	put, err := admin.PutRule(w.ctx, request)
	if w.must(err); put.By != "ann" || put.Rate != protocol.RuleRateDefault || put.Signal != "order" {
		t.Errorf("put: %+v", put)
	}
	refuse()
	read, err := admin.Rule(w.ctx, name)
	if w.must(err); !read.UpdatedAt.Equal(put.UpdatedAt) || !strings.Contains(string(read.Package), "/order/text") || read.If.Variable != "total" {
		t.Errorf("read: %+v", read)
	}
	paused, err := admin.PauseRule(w.ctx, name)
	if w.must(err); paused.PausedAt.IsZero() {
		t.Errorf("paused: %+v", paused)
	}
	resumed, err := admin.ResumeRule(w.ctx, name)
	if w.must(err); !resumed.PausedAt.IsZero() || !resumed.CreatedAt.Equal(put.CreatedAt) {
		t.Errorf("resumed: %+v", resumed)
	}
	source := w.All(t, api.Caller{Name: "lead", Roles: api.RoleSubmitter, Sources: []string{"lead"}})
	sent, err := source.SendSignal(w.ctx, api.SendSignal{Name: "order", ID: "7", Payload: json.RawMessage(`{"total":3}`)})
	if w.must(err); sent.ID != "7" {
		t.Errorf("sent: %+v", sent)
	}
	if sent, err = source.SendSignal(w.ctx, api.SendSignal{Name: "unknown"}); err != nil || sent.ID == "" {
		t.Errorf("sent with a name that no rule has: %+v, %v", sent, err)
	}
	_, err = source.SendSignal(w.ctx, api.SendSignal{Name: "order", Payload: json.RawMessage(`"` + strings.Repeat("x", protocol.SignalBytesMax) + `"`)})
	w.wantCode("a payload over the limit", err, protocol.CodeTooLarge)
	_, err = source.SendSignal(w.ctx, api.SendSignal{Name: "a.b"})
	w.wantCode("a signal with a dot", err, protocol.CodeInvalid)
	_, err = source.SendSignal(w.ctx, api.SendSignal{Name: "order", ID: "a b"})
	w.wantCode("an id with a space", err, protocol.CodeInvalid)
	_, err = admin.RemoveRule(w.ctx, name)
	w.must(err)
	for _, do := range []func() error{
		func() error { _, err := admin.Rule(w.ctx, name); return err },
		func() error { _, err := admin.PauseRule(w.ctx, name); return err },
		func() error { _, err := admin.RemoveRule(w.ctx, name); return err },
	} {
		w.wantCode("a rule that is removed", do(), protocol.CodeNotFound)
	}
	spoof := newPackage("coder", protocol.SignalKey(name, "1"))
	spoof.Source = protocol.SignalSource
	_, err = admin.Submit(w.ctx, spoof)
	w.wantCode("a package with the source of signals", err, protocol.CodeReserved)
}
