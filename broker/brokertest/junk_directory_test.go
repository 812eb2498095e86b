package brokertest

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/embedded"
	"github.com/agenthandoff/handoff/protocol"
)

// TestJunkInTheDirectory: an entry that can't be read is not there, for a reader as for
// a watcher, and others are.
func TestJunkInTheDirectory(t *testing.T) {
	n := startNode(t, embedded.Config{})
	ensure(t, n.ClientURL(), broker.Topology{})
	ctx, js, e := t.Context(), jsAt(t, n.ClientURL()), dial(t, n.ClientURL())
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	put := func(subject, body string) {
		t.Helper()
		_, err := js.Publish(ctx, subject, []byte(body))
		must(err)
	}
	must(e.PutProfile(ctx, protocol.Profile{ID: "good"}))
	for i, body := range []string{"", "x", "null", "[]", "{}", `{"id":"other"}`, `{"id":7}`, `{"id":"junk","max_concurrency":-1}`, `{"id":"junk","name":"\u0000"}`} {
		put("$KV.HANDOFF_AGENTS.junk", body)
		if _, err := e.Profile(ctx, "junk"); !errors.Is(err, broker.ErrNotFound) {
			t.Errorf("profile %d: %v", i, err)
		}
	}
	id := uuid.NewString()
	for i, body := range []string{"", "x", "null", "{}", `{"id":"x","agent":"good"}`, `{"id":"` + id + `"}`, `{"id":"` + id + `","agent":"a b"}`,
		`{"id":"` + id + `","agent":"good","lease_ms":9223372036854775807}`, `{"id":"` + id + `","agent":"good","slots":1000000000}`, `{"id":"` + id + `","agent":"good","busy":-1}`} {
		put("$KV.HANDOFF_HOLDERS.holder."+id, body)
		if _, err := e.Holder(ctx, id); !errors.Is(err, broker.ErrNotFound) {
			t.Errorf("holder %d: %v", i, err)
		}
	}
	for _, name := range []string{"", "*", ">", "a b", "a.b"} {
		_, profile := e.Profile(ctx, name)
		_, holder := e.Holder(ctx, name)
		if !errors.Is(profile, broker.ErrNotFound) || !errors.Is(holder, broker.ErrNotFound) {
			t.Errorf("%q: %v, %v", name, profile, holder)
		}
	}
	d, err := e.Directory(ctx)
	must(err)
	if _, good := d.Agents["good"]; !good || len(d.Agents) != 1 || len(d.Holders) != 0 {
		t.Errorf("%d agents, %d holders", len(d.Agents), len(d.Holders))
	}
	ticket := protocol.NewTicket()
	put("$KV.HANDOFF_HOLDERS.slots.good", `{"`+ticket+`":{"holder":"h","offer":1},"x":{},"> *":{"holder":"h"},"":{}}`)
	if slots, rev, err := e.Slots(ctx, "good"); err != nil || rev == 0 || len(slots) != 1 || slots[ticket].Holder != "h" {
		t.Errorf("slots %v, %v", slots, err)
	}
}
