package jetstream

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// TestNoSubject: what makes no subject is refused before the engine is asked, which
// would not answer.
func TestNoSubject(t *testing.T) {
	j := &Engine{nc: &nats.Conn{}}
	for _, ticket := range []string{"", "a.b", "*", ">", "a b"} {
		if _, err := j.Append(t.Context(), ticket, 0, "x", "", nil); err == nil {
			t.Errorf("appended to %q", ticket)
		}
		if err := j.Arm(t.Context(), ticket, 1, time.Now()); err == nil {
			t.Errorf("armed %q", ticket)
		}
		for _, key := range []broker.OfferKey{{Agent: "a", Lane: protocol.Normal, Ticket: ticket}, {Agent: ticket, Lane: protocol.Normal, Ticket: "t"}, {Agent: "a", Lane: protocol.Priority(ticket), Ticket: "t"}} {
			if err := j.PutOffer(t.Context(), key, []byte("x")); err == nil {
				t.Errorf("offered %+v", key)
			}
			if entry := (&broker.OutboxEntry{Offer: key, Body: []byte("x")}); checkEntry(entry) == nil {
				t.Errorf("%+v is put out", key)
			}
		}
	}
}
