package apitest

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// testContract: what an agent expects is asked for before anything is written.
func testContract(t *testing.T, w *world) {
	w.must(w.Broker.PutProfile(w.ctx, protocol.Profile{ID: "coder", Contract: &protocol.Contract{
		ContextSchema: json.RawMessage(`{"required": ["variables"], "properties": {"variables": {"required": ["branch"]}}}`)}}))
	lead := w.Source(t, "lead")
	pkg := newPackage("coder", "contract")
	_, err := lead.Submit(w.ctx, pkg)
	w.wantCode("a package without what its agent expects", err, protocol.CodeContract)
	pkg.Context.Variables = map[string]json.RawMessage{"other": json.RawMessage("1")}
	_, err = lead.Submit(w.ctx, pkg)
	if e := (*protocol.Error)(nil); !errors.As(err, &e) || e.Code != protocol.CodeContract || e.Field != "context.variables.branch" {
		t.Errorf("without a branch: %v", err)
	}
	pkg.Context.Variables = map[string]json.RawMessage{"branch": json.RawMessage(`"main"`)}
	state, err := lead.Submit(w.ctx, pkg)
	if w.must(err); state.Agent != "coder" {
		t.Errorf("with a branch it goes to %q", state.Agent)
	}
}

// testProvides: where a package has no schema, the results of an agent have that of its contract, also
// by a lease alone.
func testProvides(t *testing.T, w *world) {
	w.must(w.Broker.PutProfile(w.ctx, protocol.Profile{ID: "coder", MaxContextTokens: 30, Contract: &protocol.Contract{ResultSchema: json.RawMessage(`{"type": "array"}`)}}))
	pkg, once := newPackage("coder", "provides"), 1
	pkg.Policy.MaxAttempts = &once
	for range 9 {
		pkg.Context.ConversationHistory = append(pkg.Context.ConversationHistory, protocol.Message(`{"role":"user","content":"one more"}`))
	}
	var held api.Held
	for n := range 100 {
		pkg.Key = fmt.Sprint("provides-", n)
		_, err := w.Source(t, "lead").Submit(w.ctx, pkg)
		w.must(err)
		held = w.claim(w.Holder(t, "coder"))
		got, err := protocol.DecodePackage(held.Package)
		if w.must(err); string(got.Expectations.OutputSchema) == `{"type":"array"}` && got.Context.HistoryTransfer.MaxTokens == 30 && len(got.Context.ConversationHistory) <= 8 {
			break
		}
		if n == 99 {
			t.Fatalf("it gets the schema %s, %d messages and %+v", got.Expectations.OutputSchema, len(got.Context.ConversationHistory), got.Context.HistoryTransfer)
		}
		_, err = w.Holder(t, "coder").Complete(w.ctx, held.Lease, protocol.Result{}) // a gateway hears of profiles a moment later
		w.must(err)
		time.Sleep(10 * time.Millisecond)
	}
	_, err := w.Holder(t, "coder").Complete(w.ctx, held.Lease, protocol.Result{Body: json.RawMessage(`{"a": 1}`)})
	w.wantCode("a result that is no list", err, protocol.CodeOutputSchema)
}
