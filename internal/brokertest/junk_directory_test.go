package brokertest

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// TestJunkInTheDirectory: an entry that can't be read is not there, for a reader as for
// a watcher, and others are.
func TestJunkInTheDirectory(t *testing.T) {
	n := startNode(t, embedded.Config{})
	ensure(t, n.ClientURL(), jetstream.Topology{})
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
	for i, body := range []string{"", "x", "null", "[]", `{"policy":{"max_attempts":1000}}`, `{"quotas":{}}`, `{"policy":{"on_no_takers":"queue"}}`} {
		put("$KV.HANDOFF_AGENTS.handoff", body)
		var unreadable *protocol.Error
		if fleet, rev, err := e.Fleet(ctx); !errors.As(err, &unreadable) || rev == 0 {
			t.Errorf("settings of the fleet %d: %v at %d, %+v", i, err, rev, fleet)
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
	must(e.RemoveProfile(ctx, "gone"))
	for _, subject := range []string{"handoff.work.x", "handoff.work.a.b.c.d.e", "handoff.work.good.normal.x.1", "handoff.due.x", "handoff.timer.x.1", "$KV.HANDOFF_AGENTS.a.b", "$KV.HANDOFF_HOLDERS.other"} {
		put(subject, "x")
	}
	must(e.PutOffer(ctx, broker.OfferKey{Agent: "good", Lane: protocol.Normal, Ticket: protocol.NewTicket(), Sequence: 1}, []byte("x")))
	must(e.Arm(ctx, protocol.NewTicket(), 1, time.Now().Add(time.Hour)))
	must(e.Beat(ctx, protocol.Holder{ID: uuid.NewString(), Agent: "good", LeaseMS: 60_000}))
	must(e.Beat(ctx, protocol.Holder{ID: "just-come", Agent: "good", LeaseMS: 60_000}))
	strays, err := e.Strays(ctx, d)
	must(err)
	want := []jetstream.Strays{
		{Stream: jetstream.WorkStream, N: 3, Subjects: []string{"handoff.work.a.b.c.d.e", "handoff.work.good.normal.x.1", "handoff.work.x"}},
		{Stream: jetstream.TimerStream, N: 2, Subjects: []string{"handoff.due.x", "handoff.timer.x.1"}},
		{Stream: "KV_HANDOFF_AGENTS", N: 3, Subjects: []string{"$KV.HANDOFF_AGENTS.a.b", "$KV.HANDOFF_AGENTS.handoff", "$KV.HANDOFF_AGENTS.junk"}},
		{Stream: "KV_HANDOFF_HOLDERS", N: 2, Subjects: []string{"$KV.HANDOFF_HOLDERS.holder." + id, "$KV.HANDOFF_HOLDERS.other"}},
	}
	if !reflect.DeepEqual(strays, want) {
		t.Errorf("strays %+v", strays)
	}
	ticket := protocol.NewTicket()
	put("$KV.HANDOFF_HOLDERS.slots.good", `{"`+ticket+`":{"holder":"h","offer":1},"x":{},"> *":{"holder":"h"},"":{}}`)
	if slots, rev, err := e.Slots(ctx, "good"); err != nil || rev == 0 || len(slots) != 1 || slots[ticket].Holder != "h" {
		t.Errorf("slots %v, %v", slots, err)
	}
}
