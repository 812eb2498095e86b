//go:build unix

package worker_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/schema"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// endless is an output schema of 4 KB against which a value is checked 2^60 times.
func endless() json.RawMessage {
	var b strings.Builder
	b.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
	for i := range 60 {
		fmt.Fprintf(&b, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	b.WriteString(`"d60":{}}}`)
	return json.RawMessage(b.String())
}

// slipIn writes a package into the ledger with an output schema that submission
// refuses.
func slipIn(t *testing.T, b *broker.Broker, schema json.RawMessage) string {
	t.Helper()
	prepared, err := b.Prepare(t.Context(), protocol.Package{Source: "lead", Target: protocol.Target{Agent: "coder"}, Reason: "the plan stands",
		Task: protocol.Task{Description: "write it"}, Expectations: protocol.Expectations{OutputSchema: json.RawMessage(`{"title":"here"}`)}})
	if err != nil {
		t.Fatal(err)
	}
	prepared.Body = bytes.Replace(prepared.Body, []byte(`{"title":"here"}`), schema, 1)
	head, err := b.Submit(t.Context(), prepared)
	if err != nil {
		t.Fatal(err)
	}
	return head.Ticket
}

// A schema whose check never ends costs the attempt and not the worker's slot.
func TestEndlessSchemaOnJetStream(t *testing.T) {
	n := node(t)
	b := dial(t, n)
	if err := b.PutProfile(t.Context(), protocol.Profile{ID: "coder"}); err != nil {
		t.Fatal(err)
	}
	e := execOf(t, worker.ExecConfig{Command: []string{script(t, `echo done`)}})
	w, drain := start(t, dial(t, n), worker.Config{Agent: "coder", Concurrency: 1}, e)
	for range 2 {
		state := waitFor(t, b, slipIn(t, b, endless()), func(s protocol.State) bool { return s.Phase == protocol.PhaseFailed })
		if state.Reason != "output_schema" || state.Retryable || !strings.Contains(state.Message, schema.Field) || !strings.Contains(state.Message, "at most 10000 are allowed") {
			t.Errorf("%s, retryable %v: %s", state.Reason, state.Retryable, state.Message)
		}
	}
	next := submitTo(t, b, func(p *protocol.Package) { p.Expectations.OutputSchema = json.RawMessage(`{"type":"string"}`) })
	if state := waitFor(t, b, next, brokertest.Closed); state.Outcome != protocol.OutcomeSuccess {
		t.Errorf("the next one: %+v", state)
	}
	if err := drain(); err != nil {
		t.Error(err)
	}
	if stats := w.Stats(); stats.Completed != 1 || stats.Failed != 2 {
		t.Errorf("stats %+v", stats)
	}
}

// A result whose check takes too many steps fails its attempt, and another attempt may
// do better.
func TestResultOfTooManySteps(t *testing.T) {
	n := node(t)
	b := dial(t, n)
	if err := b.PutProfile(t.Context(), protocol.Profile{ID: "coder"}); err != nil {
		t.Fatal(err)
	}
	deep := strings.Repeat(`{"a":`, 60) + "1" + strings.Repeat("}", 60)
	e := execOf(t, worker.ExecConfig{Command: []string{script(t, `[ "$HANDOFF_ATTEMPT" = 1 ] && echo '`+deep+`' || echo '{"a":{"a":1}}'`)}})
	_, drain := start(t, dial(t, n), worker.Config{Agent: "coder", Concurrency: 1}, e)
	ticket := submitTo(t, b, func(p *protocol.Package) {
		p.Expectations.OutputSchema = json.RawMessage(`{"properties":{"a":{"$ref":"#"}},"patternProperties":{"^a":{"$ref":"#"}}}`)
	})
	state := waitFor(t, b, ticket, func(s protocol.State) bool { return s.Phase == protocol.PhaseFailed })
	if state.Reason != "output_schema" || !state.Retryable || !strings.Contains(state.Message, "takes more than 20000000 steps") {
		t.Errorf("%s, retryable %v: %s", state.Reason, state.Retryable, state.Message)
	}
	supervise(t, n)
	if state := waitFor(t, b, ticket, brokertest.Closed); state.Outcome != protocol.OutcomeSuccess {
		t.Errorf("the second attempt: %+v", state)
	}
	if err := drain(); err != nil {
		t.Error(err)
	}
}
