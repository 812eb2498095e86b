package apitest

import (
	"encoding/json"
	"testing"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// testFleet: the settings of the fleet hold for what is submitted, an agent's profile wins over
// them and a package over both. Of two changes to one revision the second is refused.
func testFleet(t *testing.T, w *world) {
	admin := w.All(t, api.Local("ann"))
	none, err := admin.Fleet(w.ctx)
	if w.must(err); none.Revision != 0 || none.Policy != (protocol.PolicyOverrides{}) {
		t.Errorf("settings that were never put: %+v", none)
	}
	queue, three, two := protocol.NoTakerQueue, 3, 2
	wanted := none
	wanted.Policy = protocol.PolicyOverrides{OnNoTaker: &queue, MaxReroutes: &three}
	put, err := admin.PutFleet(w.ctx, wanted)
	if w.must(err); put.Revision == 0 || put.UpdatedAt.IsZero() {
		t.Errorf("put: %+v", put)
	}
	_, err = admin.PutFleet(w.ctx, wanted)
	w.wantCode("a change to settings that have changed", err, protocol.CodeConflict)
	absurd := put
	absurd.Policy = protocol.PolicyOverrides{MaxReroutes: new(protocol.ReroutesMax + 1)}
	_, err = admin.PutFleet(w.ctx, absurd)
	w.wantCode("a policy out of its limits", err, protocol.CodeInvalid)
	read, err := w.All(t, api.Agent("coder")).Fleet(w.ctx)
	if w.must(err); read.Revision != put.Revision || *read.Policy.OnNoTaker != queue {
		t.Errorf("coder reads %+v", read)
	}
	_, err = admin.PutAgent(w.ctx, protocol.Profile{ID: "tester", Policy: protocol.PolicyOverrides{MaxReroutes: &two}})
	w.must(err)
	pkg := newPackage("tester", protocol.NewTicket())
	pkg.Policy.OnNoTaker = new(protocol.NoTakerClose)
	state, err := admin.Submit(w.ctx, pkg)
	if w.must(err); state.Policy.OnNoTaker != protocol.NoTakerClose || state.Policy.MaxReroutes != two {
		t.Errorf("with a profile and a package: %+v", state.Policy)
	}
	state, err = admin.Submit(w.ctx, newPackage("coder", protocol.NewTicket()))
	if w.must(err); state.Policy.OnNoTaker != queue || state.Policy.MaxReroutes != three {
		t.Errorf("of the fleet alone: %+v", state.Policy)
	}
	w.must(w.accept("coder").Complete(w.ctx, protocol.Result{Command: &protocol.Command{Goto: json.RawMessage(`"stranger"`)}}))
	next, err := admin.Status(w.ctx, protocol.ChildTicketN(state.Ticket, 0))
	if w.must(err); next.Policy.OnNoTaker != queue || next.Policy.MaxReroutes != three {
		t.Errorf("handed on: %+v", next.Policy)
	}
	put.Policy = protocol.PolicyOverrides{}
	_, err = admin.PutFleet(w.ctx, put)
	w.must(err)
	state, err = admin.Submit(w.ctx, newPackage("coder", protocol.NewTicket()))
	if w.must(err); state.Policy != protocol.DefaultPolicy() {
		t.Errorf("without settings: %+v", state.Policy)
	}
}
