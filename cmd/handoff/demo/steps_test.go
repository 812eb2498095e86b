package demo

import (
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/brokertest"
	"github.com/agenthandoff/handoff/protocol"
)

// TestSecondAttempt hands on twice, as an agent does that was killed between
// handing on and completing: it must come to one handoff, even where the second
// attempt found something else than the first.
func TestSecondAttempt(t *testing.T) {
	b, err := broker.New(brokertest.NewMemory(), broker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.PutProfile(t.Context(), protocol.Profile{ID: historian}); err != nil {
		t.Fatal(err)
	}
	r := relay{b: b, run: t.TempDir()}
	in := first(r.run, "w", t.TempDir())
	var tickets []string
	for _, y := range []yield{
		{body: survey{Files: 1}, summary: "1 file"},
		{body: survey{Files: 1}, summary: "1 file"},
		{body: survey{Files: 2}, summary: "2 files"}, // somebody added one meanwhile
	} {
		pkg, err := next(0, surveyor, protocol.TicketForKey(requester, "w/survey"), in, y)
		if err != nil {
			t.Fatal(err)
		}
		ticket, err := r.submit(t.Context(), pkg)
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, ticket)
	}
	changes, err := readFrom(t.Context(), b, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(changes) != 1 || tickets[0] != tickets[1] || tickets[0] != tickets[2] {
		t.Errorf("%d entries in the ledger, tickets %v", len(changes), tickets)
	}
	if recorded, err := readAcknowledged(r.run); err != nil || len(recorded) != 2 || len(in.Context.KeyPoints) != 0 {
		t.Errorf("recorded %v (%v); the package that was handed in has %v", recorded, err, in.Context.KeyPoints)
	}
}
