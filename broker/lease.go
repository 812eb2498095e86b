package broker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/protocol"
)

// leaseToken is what a LEASE on the command line holds. The holder's id is
// random and made for this claim alone: whoever knows it is the holder, and the
// ledger says whether it still is, and for how long a beat prolongs it. Whoever
// can read the ledger can make a lease, as he could append to it.
type leaseToken struct {
	Ticket string `json:"t"`
	Agent  string `json:"a"`
	Offer  uint64 `json:"o"`
	Holder string `json:"h"`
}

// Lease writes the claim as a token from which Resume makes it again, in any process.
func (c *Claim) Lease() string {
	raw, _ := json.Marshal(leaseToken{Ticket: c.Ticket, Agent: c.Agent, Offer: c.Offer, Holder: c.Holder.ID}) // cannot fail
	return "lease_" + base64.RawURLEncoding.EncodeToString(raw)
}

const leasePrefix = len("lease_")

func parseLease(lease string) (leaseToken, error) {
	var token leaseToken
	bad := protocol.Errorf(protocol.CodeLeaseInvalid, "lease", "not a lease; a lease is what handoff claim prints")
	if len(lease) <= leasePrefix || lease[:leasePrefix] != "lease_" || len(lease) > 1024 {
		return token, bad
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(lease[leasePrefix:])
	if err != nil || json.Unmarshal(raw, &token) != nil {
		return token, bad
	}
	_, ticketErr := protocol.ParseTicket(token.Ticket)
	_, holderErr := uuid.Parse(token.Holder)
	if ticketErr != nil || holderErr != nil || token.Offer == 0 || protocol.CheckID("lease", token.Agent) != nil {
		return token, bad
	}
	return token, nil
}

// LeaseTicket is the ticket of the handoff that a lease was given out for. The
// lease may be lost by now.
func LeaseTicket(lease string) (string, error) {
	token, err := parseLease(lease)
	return token.Ticket, err
}

// Resume makes a claim from its lease. A lease that was never given out is a
// *protocol.Error with CodeLeaseInvalid, one that has ended is ErrLeaseLost;
// neither changes anything.
func (b *Broker) Resume(ctx context.Context, lease string) (*Claim, error) {
	token, err := parseLease(lease)
	if err != nil {
		return nil, err
	}
	head, err := b.Head(ctx, token.Ticket, 0)
	if errors.Is(err, ErrNotFound) {
		return nil, protocol.Errorf(protocol.CodeLeaseInvalid, "lease", "no handoff has this lease")
	}
	if err != nil {
		return nil, err
	}
	holder := protocol.Holder{ID: token.Holder, Agent: token.Agent, LeaseMS: head.State.LeaseMS, Slots: 1, Busy: 1, Polling: true}
	claim, err := b.claimOf(ctx, head, holder, token.Offer)
	if err == nil && token.Agent != head.State.Agent {
		// The holder is this one, and has it for another agent: somebody wrote
		// the name. A beat would make the agent of that name look alive.
		return nil, protocol.Errorf(protocol.CodeLeaseInvalid, "lease", "names %s, and the handoff is with another agent", token.Agent)
	}
	return claim, err
}
