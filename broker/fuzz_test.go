package broker

import (
	"errors"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// FuzzLease reads anything as a lease: what is none is said to be none, and what is
// one names a ticket.
func FuzzLease(f *testing.F) {
	claim := &Claim{Ticket: protocol.NewTicket(), Agent: "coder", Holder: protocol.Holder{ID: protocol.NewTicket()}, Offer: 7, head: &Head{}}
	f.Add(claim.Lease())
	f.Add("")
	f.Add("lease_e30")
	f.Fuzz(func(t *testing.T, lease string) {
		token, err := ParseLease(lease)
		var refused *protocol.Error
		if err != nil && (!errors.As(err, &refused) || refused.Code != protocol.CodeLeaseInvalid) {
			t.Errorf("%q: %v", lease, err)
		}
		if err == nil {
			if _, err := protocol.ParseTicket(token.Ticket); err != nil {
				t.Errorf("%q: %v", lease, err)
			}
		}
	})
}
