package apitest

import (
	"testing"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

func testDirectory(t *testing.T, w *world) {
	admin := w.All(t, api.Local("ann"))
	put, err := admin.PutAgent(w.ctx, protocol.Profile{ID: "tester", Description: "runs tests", RegisteredByWork: true})
	if w.must(err); put.RegisteredByWork || put.UpdatedAt.IsZero() {
		t.Errorf("put: %+v", put)
	}
	_, err = admin.PutAgent(w.ctx, protocol.Profile{ID: "tester", MaxRisk: "huge"})
	w.wantCode("a profile that breaks the rules", err, protocol.CodeInvalid)
	paused, err := admin.PauseAgent(w.ctx, "tester")
	if w.must(err); !paused.Paused || paused.Description != "runs tests" {
		t.Errorf("paused: %+v", paused)
	}
	_, err = admin.Claim(w.ctx, api.Claim{Agent: "tester", Lease: lease})
	w.wantCode("a claim for a paused agent", err, protocol.CodeNothingToClaim)
	resumed, err := admin.ResumeAgent(w.ctx, "tester")
	if w.must(err); resumed.Paused {
		t.Error("resumed: paused")
	}
	w.must(w.Broker.Beat(w.ctx, protocol.Holder{ID: protocol.NewTicket(), Agent: "tester", LeaseMS: lease.Milliseconds(), Slots: 2, Busy: 2}))
	for { // the directory of a process lags behind its writes
		all, err := admin.Agents(w.ctx)
		w.must(err)
		if len(all) == 4 && all[3].ID == "tester" && all[3].Availability == api.Busy {
			break
		}
	}
	status, err := admin.Agent(w.ctx, "tester")
	if w.must(err); status.Workers != 1 || status.Slots != 2 || status.Description != "runs tests" {
		t.Errorf("one agent: %+v", status)
	}
	offered, err := admin.Submit(w.ctx, newPackage("tester", protocol.NewTicket()))
	w.must(err)
	for { // a server counts what a consumer has to deliver a moment after it has stored it
		queues, err := admin.Queues(w.ctx)
		if w.must(err); len(queues) == 1 && queues[0].Agent == "tester" && queues[0].Depth == 1 {
			break
		}
	}
	all, err := admin.Agents(w.ctx)
	if w.must(err); len(all) != 4 || all[3].Queued != 1 {
		t.Errorf("agents with an offer at %s: %+v", offered.Agent, all)
	}
	holders, err := admin.Holders(w.ctx, "tester")
	if w.must(err); len(holders) != 1 {
		t.Errorf("%d workers", len(holders))
	}
	seen, err := w.All(t, api.Agent("coder")).Agents(w.ctx)
	if w.must(err); len(seen) != 4 {
		t.Errorf("coder finds %d agents to hand off to", len(seen))
	}
	_, err = w.All(t, api.Agent("coder")).Holders(w.ctx, "tester")
	w.wantCode("the workers of another agent", err, protocol.CodeForbidden)
	_, err = admin.PauseAgent(w.ctx, protocol.Human)
	w.wantCode("a person is paused", err, protocol.CodeInvalid)
	removed, err := admin.RemoveAgent(w.ctx, "tester")
	if w.must(err); removed.ID != "tester" {
		t.Errorf("removed %q", removed.ID)
	}
	_, err = admin.Profile(w.ctx, "tester")
	w.wantCode("the profile of an agent that is removed", err, protocol.CodeUnknownAgent)
	if person, err := admin.Profile(w.ctx, protocol.Human); err != nil || person.ID != protocol.Human {
		t.Errorf("the person: %v, %+v", err, person)
	}
}
