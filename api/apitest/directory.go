package apitest

import (
	"context"
	"testing"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// directoryCalls calls each operation of api.Directory.
func directoryCalls() map[string]func(context.Context, All, string) error {
	calls := map[string]func(context.Context, All, string) error{
		"Agents":  func(ctx context.Context, s All, _ string) error { _, err := s.Agents(ctx); return err },
		"Agent":   func(ctx context.Context, s All, _ string) error { _, err := s.Agent(ctx, "coder"); return err },
		"Holders": func(ctx context.Context, s All, _ string) error { _, err := s.Holders(ctx, "coder"); return err },
		"FindAgents": func(ctx context.Context, s All, _ string) error {
			_, err := s.FindAgents(ctx, "write code", 3)
			return err
		},
		"RecommendAgents": func(ctx context.Context, s All, _ string) error {
			_, err := s.RecommendAgents(ctx, "lead", "write code", 3)
			return err
		},
		"Queues":   func(ctx context.Context, s All, _ string) error { _, err := s.Queues(ctx); return err },
		"Fleet":    func(ctx context.Context, s All, _ string) error { _, err := s.Fleet(ctx); return err },
		"Breakers": func(ctx context.Context, s All, _ string) error { _, err := s.Breakers(ctx); return err },
		"ResetBreaker": func(ctx context.Context, s All, _ string) error {
			_, err := s.ResetBreaker(ctx, "coder")
			return err
		},
		"PutFleet": func(ctx context.Context, s All, _ string) error {
			_, err := s.PutFleet(ctx, api.Fleet{})
			return err
		},
		"PutAgent": func(ctx context.Context, s All, _ string) error {
			_, err := s.PutAgent(ctx, protocol.Profile{ID: "newcomer"})
			return err
		},
	}
	for name, call := range map[string]func(context.Context, All, string) (protocol.Profile, error){
		"Profile": func(ctx context.Context, s All, agent string) (protocol.Profile, error) { return s.Profile(ctx, agent) },
		"PauseAgent": func(ctx context.Context, s All, agent string) (protocol.Profile, error) {
			return s.PauseAgent(ctx, agent)
		},
		"ResumeAgent": func(ctx context.Context, s All, agent string) (protocol.Profile, error) {
			return s.ResumeAgent(ctx, agent)
		},
		"RemoveAgent": func(ctx context.Context, s All, agent string) (protocol.Profile, error) {
			return s.RemoveAgent(ctx, agent)
		},
	} {
		calls[name] = func(ctx context.Context, s All, _ string) error {
			_, err := call(ctx, s, "stranger")
			return err
		}
	}
	return calls
}

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
