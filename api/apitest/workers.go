package apitest

import (
	"testing"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// key is that of a worker's holder.
const key = "a-key-that-is-never-guessed"

// testWorkers registers an agent, and serves it with slots.
func testWorkers(t *testing.T, w *world) {
	coder, holder := w.Workers(t, "coder"), w.Holder(t, "coder")
	_, err := w.Workers(t, "absent").Present(w.ctx, api.Presence{Agent: "absent", Key: key, LeaseMS: lease.Milliseconds()})
	w.wantCode("an agent that is not registered", err, protocol.CodeUnknownAgent)
	registered, err := w.Workers(t, "fresh").Register(w.ctx, api.Registration{Profile: protocol.Profile{ID: "fresh", Description: "helps"}, Lease: lease})
	if w.must(err); registered.Profile.Description != "helps" || !registered.Profile.RegisteredByWork {
		t.Errorf("registered: %+v", registered.Profile)
	}
	registered, err = coder.Register(w.ctx, api.Registration{Profile: protocol.Profile{ID: "coder", Description: "other"}})
	if w.must(err); registered.Profile.Description != "" {
		t.Errorf("registered again: %+v", registered.Profile)
	}
	_, err = coder.Register(w.ctx, api.Registration{Profile: protocol.Profile{ID: "coder", Description: "other"}, Replace: true})
	w.wantCode("another profile", err, protocol.CodeForbidden)
	_, err = coder.Register(w.ctx, api.Registration{Profile: protocol.Profile{ID: "stranger"}})
	w.wantCode("another agent", err, protocol.CodeForbidden)

	worker := api.Presence{Agent: "coder", Key: key, LeaseMS: lease.Milliseconds(), Slots: 4}
	short := worker
	short.Key = "short"
	_, err = coder.Present(w.ctx, short)
	w.wantCode("a short key", err, protocol.CodeInvalid)
	present, err := coder.Present(w.ctx, worker)
	if w.must(err); present.Holder != api.HolderID("coder", key) || present.Paused {
		t.Errorf("present: %+v", present)
	}
	if h, err := w.Broker.Holder(w.ctx, present.Holder); err != nil || h.Agent != "coder" || h.Slots != 4 {
		t.Errorf("its holder: %+v, %v", h, err)
	}

	request := api.ClaimMany{Agent: "coder", Key: key, Lease: lease, Most: 3, Accept: true}
	none := request
	none.Most = 0
	_, err = coder.ClaimMany(w.ctx, none)
	w.wantCode("no offers", err, protocol.CodeInvalid)
	if claims, err := coder.ClaimMany(w.ctx, request); err != nil || len(claims.Held) != 0 || claims.Paused {
		t.Errorf("an empty queue: %+v, %v", claims, err)
	}
	tickets := map[string]bool{w.submit(): true, w.submit(): true, w.submit(): true}
	for request.Wait = time.Second; len(tickets) > 0; {
		request.Most = len(tickets)
		claims, err := coder.ClaimMany(w.ctx, request)
		w.must(err)
		for _, held := range claims.Held {
			if !tickets[held.State.Ticket] || held.State.Fence == 0 || held.State.Holder != present.Holder {
				t.Errorf("claimed: %s, fence %d, by %s", held.State.Ticket, held.State.Fence, held.State.Holder)
			}
			delete(tickets, held.State.Ticket)
			_, err := w.Holder(t, "stranger").Heartbeat(w.ctx, api.Heartbeat{Lease: held.Lease})
			w.wantLeaseLost("by another agent", err)
			_, err = holder.Complete(w.ctx, held.Lease, done)
			w.must(err)
		}
	}
	ticket := w.submit()
	request.Accept = false
	var held []api.Held
	for len(held) == 0 {
		claims, err := coder.ClaimMany(w.ctx, request)
		w.must(err)
		held = claims.Held
	}
	if held[0].State.Ticket != ticket || held[0].State.Fence != 0 {
		t.Errorf("claimed without accepting: %s, fence %d", held[0].State.Ticket, held[0].State.Fence)
	}
	if state, err := holder.Release(w.ctx, held[0].Lease, "not now", nil); err != nil || state.AttemptsTotal != 0 {
		t.Errorf("released: %d attempts, %v", state.AttemptsTotal, err)
	}
	w.must(w.Broker.PutProfile(w.ctx, protocol.Profile{ID: "coder", Paused: true}))
	for paused := false; !paused; {
		claims, err := coder.ClaimMany(w.ctx, api.ClaimMany{Agent: "coder", Key: key, Lease: lease, Most: 1})
		w.must(err)
		for _, held := range claims.Held { // claimed before the directory had the pause
			_, err := holder.Release(w.ctx, held.Lease, "paused", nil)
			w.must(err)
		}
		paused = claims.Paused
	}
	w.must(coder.Leave(w.ctx, worker))
	if _, err := w.Broker.Holder(w.ctx, present.Holder); err == nil {
		t.Error("it is present after it has left")
	}
}
