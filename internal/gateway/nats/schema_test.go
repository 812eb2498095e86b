package natsgateway_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/api"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/internal/schema"
	"github.com/agenthandoff/handoff/protocol"
)

// attacks are output schemas that stopped a gateway: the check of one never ended, the
// regular expressions of another took 0.7 GB.
func attacks() map[string]json.RawMessage {
	var twice strings.Builder
	twice.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
	for i := range 60 {
		fmt.Fprintf(&twice, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	twice.WriteString(`"d60":{}}}`)
	var patterns strings.Builder
	patterns.WriteString(`{"anyOf":[`)
	for i := range 1000 {
		fmt.Fprintf(&patterns, `{"pattern":"((abcdefghijklmnopqrstuvwxyz%d){30}){30}"},`, i)
	}
	patterns.WriteString(`{}]}`)
	return map[string]json.RawMessage{"references": json.RawMessage(twice.String()), "patterns": json.RawMessage(patterns.String())}
}

// A gateway refuses such a schema from every way in, and nothing changes.
func TestGatewayRefusesSchemas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder", "other")
	w.open(natsgateway.Config{})
	c := w.client("coder")
	w.submit("coder", nil)
	claim := w.accept(c, "coder")
	for name, attack := range attacks() {
		refused := func(what string, err error) {
			t.Helper()
			if !hasCode(err, protocol.CodeTooLarge) || !strings.Contains(err.Error(), schema.Field) {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
		pkg := protocol.Package{Source: "coder", Key: name, Target: protocol.Target{Agent: "other"}, Reason: "the plan stands",
			Task: protocol.Task{Description: "write it"}, Expectations: protocol.Expectations{OutputSchema: attack}}
		w.unchanged(name, func() {
			for range 3 { // which ended a gateway
				_, err := c.Submit(w.ctx, pkg)
				refused("submit", err)
			}
			child := pkg
			child.Source, child.Key = "", ""
			_, err := claim.HandOff(w.ctx, api.HandOff{Package: child})
			refused("hand-off", err)
		})
	}
	if err := claim.Complete(w.ctx, protocol.Result{}); err != nil {
		t.Errorf("the gateway goes on: %v", err)
	}
}

// One that something else wrote into the ledger fails the attempt, and the gateway goes on.
func TestGatewayFailsWhatCannotBeChecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder")
	w.open(natsgateway.Config{})
	c := w.client("coder")
	for name, attack := range attacks() {
		prepared, err := w.b.Prepare(t.Context(), protocol.Package{Source: "lead", Target: protocol.Target{Agent: "coder"}, Reason: "the plan stands",
			Task: protocol.Task{Description: "write it"}, Expectations: protocol.Expectations{OutputSchema: json.RawMessage(`{"title":"here"}`)}})
		if err != nil {
			t.Fatal(err)
		}
		prepared.Body = bytes.Replace(prepared.Body, []byte(`{"title":"here"}`), attack, 1)
		head, err := w.b.Submit(w.ctx, prepared)
		if err != nil {
			t.Fatal(err)
		}
		err = w.accept(c, "coder").Complete(w.ctx, protocol.Result{Body: text("x")})
		if !hasCode(err, protocol.CodeOutputSchema) {
			t.Errorf("%s: %v", name, err)
		}
		state := w.status(head.Ticket)
		if state.Phase != protocol.PhaseFailed || state.Reason != "output_schema" || state.Retryable || !strings.Contains(state.Message, schema.Field) {
			t.Errorf("%s: %s, %s, %s", name, state.Phase, state.Reason, state.Message)
		}
	}
	next := w.submit("coder", nil)
	if err := w.accept(c, "coder").Complete(w.ctx, protocol.Result{}); err != nil {
		t.Error(err)
	}
	if state := w.status(next); state.Outcome != protocol.OutcomeSuccess {
		t.Errorf("the next one: %+v", state)
	}
}
