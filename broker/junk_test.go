package broker_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// junkWorld is a queue with one honest offer, and what that looks like.
type junkWorld struct {
	*testing.T
	b      *broker.Broker
	mem    *brokertest.Memory
	holder protocol.Holder
	head   broker.Head
	key    broker.OfferKey
	body   []byte
}

func newJunkWorld(t *testing.T, words string) *junkWorld {
	t.Helper()
	w := &junkWorld{T: t, mem: brokertest.NewMemory(), holder: protocol.Holder{ID: uuid.NewString(), Agent: "coder", LeaseMS: protocol.LeaseDefaultMS, Slots: 1}}
	w.b = brokertest.Over(t, w.mem)
	brokertest.Register(t, w.b, "coder")
	w.must(w.b.Beat(t.Context(), w.holder))
	w.submit(words)
	return w
}

func (w *junkWorld) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *junkWorld) submit(words string) {
	w.Helper()
	w.head = brokertest.Submit(w, w.b, protocol.Package{Task: protocol.Task{Description: words}})
	w.key = broker.OfferKey{Agent: "coder", Lane: w.head.State.Priority, Ticket: w.head.Ticket, Sequence: w.head.State.Offer}
	deliveries, err := w.mem.Pull(w.Context(), "coder", 1, 0)
	w.must(err)
	w.body = slices.Clone(deliveries[0].Body())
	w.must(deliveries[0].Release())
}

// entries counts what the ledger has.
func (w *junkWorld) entries() uint64 {
	w.Helper()
	ledger, err := w.b.LedgerInfo(w.Context())
	w.must(err)
	return ledger.Last
}

// TestPullSkipsJunk: one pull for one offer gets the honest one, whatever stands before
// it, and all else is removed.
func TestPullSkipsJunk(t *testing.T) {
	other := protocol.NewTicket()
	const honest = "HONEST" // its ticket
	w := newJunkWorld(t, "honest")
	valid := strings.ReplaceAll(string(w.body), w.head.Ticket, honest)
	own := func(body string) string { return strings.ReplaceAll(body, honest, other) }
	for i, junk := range []struct {
		ticket string
		seq    uint64
		body   string
	}{
		{other, 1, ""}, {other, 1, "\xff\x00"}, {other, 1, "null"}, {other, 1, "{}"}, {other, 1, `{"state":{}}`}, {other, 1, strings.Repeat("[", 20_000)},
		{other, w.key.Sequence, valid}, // another's
		{"no-ticket", 1, strings.ReplaceAll(valid, honest, "no-ticket")},
		{other, w.key.Sequence + 1, own(valid)},                                           // another offer
		{other, 0, own(strings.Replace(valid, `"seq":1`, `"seq":0`, 1))},                  // of no entry
		{other, 1, own(strings.Replace(valid, `"seq":1`, `"seq":0`, 1))},                  // made before the ledger began
		{other, 1, own(strings.Replace(valid, `"hash":"`+w.head.Hash, `"hash":"`, 1))},    // of nothing
		{other, 1, own(strings.ReplaceAll(valid, `"agent":"coder"`, `"agent":"tester"`))}, // another agent's
	} {
		w, ctx := newJunkWorld(t, "honest"), t.Context()
		before := w.entries()
		junk.body = strings.ReplaceAll(junk.body, honest, w.head.Ticket)
		key := broker.OfferKey{Agent: "coder", Lane: protocol.Critical, Ticket: junk.ticket, Sequence: junk.seq}
		w.must(w.mem.PutOffer(ctx, key, []byte(junk.body)))
		offers, err := w.b.Pull(ctx, "coder", 1, 0)
		if err != nil || len(offers) != 1 || offers[0].Ticket != w.head.Ticket {
			t.Fatalf("junk %d: %d offers, %v", i, len(offers), err)
		}
		w.must(offers[0].Release())
		w.must(w.mem.Offers(ctx, "", func(k broker.OfferKey) error {
			if k != w.key {
				t.Errorf("junk %d stands: %v", i, k)
			}
			return nil
		}))
		if after := w.entries(); after != before {
			t.Errorf("junk %d: %d entries became %d", i, before, after)
		}
	}
}

// TestForgedOffers: an offer whose state was forged makes no claim panic. Where nothing
// can follow from its state the ledger's counts.
func TestForgedOffers(t *testing.T) {
	var offering map[string]json.RawMessage
	var state map[string]json.RawMessage
	w := newJunkWorld(t, "honest")
	w.must(json.Unmarshal(w.body, &offering))
	w.must(json.Unmarshal(offering["state"], &state))
	for _, field := range []string{"deadline", "queued_since", "holder", "fence", "closed_at", "return_since", "group", "n", "parent", "aggregate", "children", "claimed_at", "timed_out", "retry_at", "reason"} {
		state[field] = nil
	}
	absurd := []string{"", "null", "true", "-1", "0", "9223372036854775807", `""`, `"x"`, `"a b.>"`, `"working"`, `"accepted"`, `"timeout"`, `"9999-12-31T23:59:59Z"`, `"0001-01-02T00:00:00Z"`, "{}", "[]"}
	for _, field := range slices.Sorted(maps.Keys(state)) {
		for _, value := range absurd {
			for _, cancelled := range []bool{false, true} {
				w := newJunkWorld(t, "honest")
				forged := maps.Clone(state)
				forged["ticket"], forged["cancel_requested"] = json.RawMessage(`"`+w.head.Ticket+`"`), json.RawMessage(fmt.Sprint(cancelled))
				if forged[field] = json.RawMessage(value); value == "" {
					delete(forged, field)
				}
				maps.DeleteFunc(forged, func(_ string, v json.RawMessage) bool { return v == nil })
				var err error
				offering["hash"] = json.RawMessage(`"` + w.head.Hash + `"`)
				offering["state"], err = json.Marshal(forged)
				w.must(err)
				body, err := json.Marshal(offering)
				w.must(err)
				w.must(w.mem.RemoveOffer(t.Context(), w.key))
				w.must(w.mem.PutOffer(t.Context(), w.key, body))
				offers, err := w.b.Pull(t.Context(), "coder", 1, 0)
				w.must(err)
				for _, offer := range offers {
					_, _ = offer.Acknowledge(t.Context(), w.holder, protocol.Ack{Status: protocol.AckAccepted}, true)
				}
			}
		}
	}
}

// TestLostPackage: an agent can't accept what it can't read, and refuses it.
func TestLostPackage(t *testing.T) {
	w := newJunkWorld(t, strings.Repeat("large ", 60_000))
	e, err := w.b.Next(t.Context(), w.head.Ticket, 0)
	w.must(err)
	change, err := broker.DecodeChange(e)
	w.must(err)
	_, ref := protocol.BodyOf(change.Record.Events[0])
	w.mem.ReplaceBlob(ref.Digest, []byte("{}"))
	offers, err := w.b.Pull(t.Context(), "coder", 1, 0)
	w.must(err)
	var damaged *jetstream.DamagedBody
	if _, err := offers[0].Claim(t.Context(), w.holder, 0); !errors.As(err, &damaged) {
		t.Errorf("claimed: %v", err)
	}
	if _, err := offers[0].Acknowledge(t.Context(), w.holder, protocol.Ack{Status: protocol.AckAccepted}, true); !errors.As(err, &damaged) {
		t.Errorf("accepted: %v", err)
	}
	refusal := protocol.Ack{Status: protocol.AckRejected, ReasonCode: protocol.ReasonUnreadable, Reason: damaged.Error()}
	if _, err := offers[0].Acknowledge(t.Context(), w.holder, refusal, false); err != nil {
		t.Fatal(err)
	}
	if s, err := w.b.Status(t.Context(), w.head.Ticket); err != nil || s.Phase != protocol.PhaseRejected || s.Reason != protocol.ReasonUnreadable {
		t.Errorf("%s %s, %v", s.Phase, s.Reason, err)
	}
}
