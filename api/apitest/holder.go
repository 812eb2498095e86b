package apitest

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// lease is the lease of the suite's claims.
const lease = time.Minute

var done = protocol.Result{Status: protocol.Success, Body: json.RawMessage(`"done"`)}

// claim has coder accept the next offer.
func (w *world) claim(h api.Holder) api.Held {
	w.t.Helper()
	held, err := h.Claim(w.ctx, api.Claim{Agent: "coder", Wait: timeout, Lease: lease, Accept: true})
	w.must(err)
	return held
}

func testClaim(t *testing.T, w *world) {
	coder := w.Holder(t, "coder")
	_, err := coder.Claim(w.ctx, api.Claim{Agent: "coder", Lease: lease, Accept: true})
	w.wantCode("an empty queue", err, protocol.CodeNothingToClaim)
	_, err = coder.Claim(w.ctx, api.Claim{Agent: "coder", Lease: time.Millisecond, Accept: true})
	w.wantCode("a lease of a millisecond", err, protocol.CodeInvalid)
	_, err = coder.Claim(w.ctx, api.Claim{Agent: "stranger", Lease: lease, Accept: true})
	w.wantCode("for another agent", err, protocol.CodeForbidden)
	ticket := w.submit()
	held := w.claim(coder)
	if held.State.Ticket != ticket || held.Agent != "coder" || held.Lease == "" || held.State.Fence == 0 || time.Until(held.Expires) > lease {
		t.Errorf("claimed: %s for %s, fence %d, expires %v", held.State.Ticket, held.Agent, held.State.Fence, held.Expires)
	}
	if sent, err := protocol.DecodePackage(held.Package); err != nil || sent.Task.Description != "write it" {
		t.Errorf("its package: %v, %s", err, held.Package)
	}
	state, err := coder.Acknowledge(w.ctx, held.Lease, protocol.Ack{Status: protocol.AckAccepted})
	if w.must(err); state.Phase != protocol.Working {
		t.Errorf("accepted twice: %s", state.Phase)
	}
	state, err = coder.Progress(w.ctx, held.Lease, protocol.Progress{Percent: 40, Message: "12 of 30 files"})
	if w.must(err); state.Progress == nil || state.Progress.Percent != 40 {
		t.Errorf("progress: %+v", state.Progress)
	}
	for _, used := range []protocol.Usage{{Tokens: 100, CostMicros: 50}, {Tokens: 80}, {TokensIn: 90, TokensOut: 30, Calls: 2}} { // the second is old
		state, err = coder.Spend(w.ctx, held.Lease, used)
		w.must(err)
	}
	if used := state.Usage.Total(); used != (protocol.Usage{TokensIn: 90, TokensOut: 30, Tokens: 120, CostMicros: 50, Calls: 2}) {
		t.Errorf("used: %+v", used)
	}
	_, err = coder.Spend(w.ctx, held.Lease, protocol.Usage{Tokens: -1})
	w.wantCode("a usage under 0", err, protocol.CodeInvalid)
	beat, err := coder.Heartbeat(w.ctx, api.Heartbeat{Lease: held.Lease})
	if w.must(err); beat.CancelRequested || beat.State.Ticket != ticket || beat.Expires.Before(held.Expires) {
		t.Errorf("heartbeat: %+v", beat)
	}
	_, err = w.Holder(t, "stranger").Progress(w.ctx, held.Lease, protocol.Progress{Percent: 50})
	w.wantLeaseLost("by another agent", err)
	_, err = w.Source(t, "lead").Cancel(w.ctx, api.Cancel{Ticket: ticket})
	w.must(err)
	if beat, err = coder.Heartbeat(w.ctx, api.Heartbeat{Lease: held.Lease}); err != nil || !beat.CancelRequested {
		t.Errorf("heartbeat after a cancel: %v, %+v", err, beat.Signal)
	}
	if state, err = coder.Release(w.ctx, held.Lease, "cancelled", nil); err != nil || state.Outcome != protocol.OutcomeCancelled {
		t.Errorf("released after a cancel: %v, %s", err, state.Outcome)
	}
}

// wantLeaseLost checks the error of a report under a lost lease.
func (w *world) wantLeaseLost(what string, err error) {
	w.t.Helper()
	if !errors.Is(err, broker.ErrLeaseLost) && !errors.Is(err, &protocol.Error{Code: protocol.CodeLeaseInvalid}) {
		w.t.Errorf("%s: %v, want a lost lease", what, err)
	}
}

// testClaimLater claims, and accepts in a second call.
func testClaimLater(t *testing.T, w *world) {
	coder := w.Holder(t, "coder")
	w.submit()
	held, err := coder.Claim(w.ctx, api.Claim{Agent: "coder", Wait: timeout, Lease: lease, AckWithin: time.Minute})
	if w.must(err); held.State.Fence != 0 {
		t.Error("claimed: accepted as well")
	}
	state, err := coder.Acknowledge(w.ctx, held.Lease, protocol.Ack{Status: protocol.AckAccepted})
	if w.must(err); state.Fence == 0 {
		t.Error("acknowledged: not accepted")
	}
	_, err = coder.Complete(w.ctx, held.Lease, done)
	w.must(err)
}

// testReports ends a claim by each report, and repeats it.
func testReports(t *testing.T, w *world) {
	coder := w.Holder(t, "coder")
	ends := map[string]func(lease string) (protocol.State, error){
		"Complete": func(lease string) (protocol.State, error) { return coder.Complete(w.ctx, lease, done) },
		"Acknowledge": func(lease string) (protocol.State, error) {
			return coder.Acknowledge(w.ctx, lease, protocol.Ack{Status: protocol.AckConditional, NeedsContext: []string{"which branch?"}})
		},
		"Fail": func(lease string) (protocol.State, error) {
			return coder.Fail(w.ctx, lease, broker.Failure{Code: "handler", Message: "no such file"})
		},
		"Escalate": func(lease string) (protocol.State, error) {
			return coder.Escalate(w.ctx, lease, "it touches billing", "the code is fine")
		},
		"RollBackHeld": func(lease string) (protocol.State, error) {
			return coder.RollBackHeld(w.ctx, lease, "the plan has changed", nil)
		},
	}
	for name, end := range ends {
		w.submit()
		held := w.claim(coder)
		state, err := end(held.Lease)
		if w.must(err); state.Ticket != held.State.Ticket || state.Holder == held.State.Holder {
			t.Errorf("%s: %s is held by %q", name, state.Ticket, state.Holder)
		}
		_, err = coder.Progress(w.ctx, held.Lease, protocol.Progress{Percent: 90})
		w.wantLeaseLost("progress after "+name, err)
		again, err := end(held.Lease)
		if w.must(err); again.Ticket != state.Ticket || again.UpdatedAt != state.UpdatedAt {
			t.Errorf("%s a second time: %s, changed at %v, and before at %v", name, again.Ticket, again.UpdatedAt, state.UpdatedAt)
		}
		_, err = coder.Complete(w.ctx, held.Lease, protocol.Result{Body: []byte(`"another"`)})
		w.wantLeaseLost("another result after "+name, err)
		late, err := w.Broker.LateResults(w.ctx, state.Ticket)
		if w.must(err); len(late) != 0 {
			t.Errorf("%s: %d late results of a holder that let go", name, len(late))
		}
	}
}

// testLate checks that a result under a lost lease is kept.
func testLate(t *testing.T, w *world) {
	coder, ticket := w.Holder(t, "coder"), w.submit()
	held := w.claim(coder)
	_, err := w.Broker.Reroute(w.ctx, ticket, "stranger", "human", "coder is away", time.Time{})
	w.must(err)
	_, err = coder.Complete(w.ctx, held.Lease, done)
	w.wantLeaseLost("a late result", err)
	if late := (*api.LateResultError)(nil); !errors.As(err, &late) || late.Unkept != nil {
		t.Errorf("a late result: %v", err)
	}
	late, err := w.Broker.LateResults(w.ctx, ticket)
	if w.must(err); len(late) != 1 {
		t.Errorf("%d late results", len(late))
	}
}

func testHandOff(t *testing.T, w *world) {
	coder := w.Holder(t, "coder")
	w.submit()
	held := w.claim(coder)
	_, err := coder.Await(w.ctx, held.Lease, nil)
	w.wantCode("to await no ticket", err, protocol.CodeIllegal)
	part := protocol.Package{Target: protocol.Target{Agent: "stranger"}, Reason: "it is theirs", Task: protocol.Task{Description: "a part"},
		Type: protocol.Delegation}
	part.Return = &protocol.ReturnProtocol{Expected: true, Wait: protocol.WaitBlock, TimeoutMS: timeout.Milliseconds()}
	child, err := coder.HandOff(w.ctx, api.HandOff{Lease: held.Lease, Package: part})
	if w.must(err); child.Ticket != child.Parent.ChildTicket(0) || child.Parent.Children == nil {
		t.Errorf("handed off %s from %+v", child.Ticket, child.Parent.Children)
	}
	equal, err := coder.HandOff(w.ctx, api.HandOff{Lease: held.Lease, Package: part})
	if w.must(err); equal.Ticket == child.Ticket {
		t.Errorf("an equal one in the same attempt is %s", equal.Ticket)
	}
	named := part
	named.Key = "k"
	keyed, err := coder.HandOff(w.ctx, api.HandOff{Lease: held.Lease, Package: named})
	w.must(err)
	again, err := coder.HandOff(w.ctx, api.HandOff{Lease: held.Lease, Package: named})
	if w.must(err); again.Ticket != keyed.Ticket || keyed.Ticket == child.Ticket {
		t.Errorf("under the same key %s, and then %s", keyed.Ticket, again.Ticket)
	}
	named.Task.Description = "another part"
	_, err = coder.HandOff(w.ctx, api.HandOff{Lease: held.Lease, Package: named})
	w.wantCode("another package under the key", err, protocol.CodeConflict)

	for range 2 { // the second time its answer was lost
		_, err = coder.Release(w.ctx, held.Lease, "", &protocol.Result{Body: []byte(`"half"`)})
		w.must(err)
	}
	if late, err := w.Broker.LateResults(w.ctx, held.State.Ticket); err != nil || len(late) != 1 || late[0].Result.Status != protocol.Partial {
		t.Errorf("released with a partial result: %v, %+v", err, late)
	}
	if held = w.claim(coder); len(held.Children) != 3 || held.Children[0].Ticket != child.Ticket || held.Children[2].Key != "k" || held.Children[1].Asked || held.Children[0].Closed {
		t.Errorf("the second claim lists %+v", held.Children)
	}
	_, err = coder.Await(w.ctx, held.Lease, nil)
	w.wantCode("to await what an earlier attempt asked for", err, protocol.CodeIllegal)
	found, err := coder.HandOff(w.ctx, api.HandOff{Lease: held.Lease, Package: part})
	if w.must(err); found.Ticket != child.Ticket {
		t.Errorf("a second attempt asks for %s, and gets %s", child.Ticket, found.Ticket)
	}
	_, err = coder.Await(w.ctx, held.Lease, []string{protocol.NewTicket()})
	w.wantCode("to wait for another handoff", err, protocol.CodeIllegal)
	state, err := coder.Await(w.ctx, held.Lease, []string{child.Ticket})
	if w.must(err); state.Held() {
		t.Error("awaited: held still")
	}
}
