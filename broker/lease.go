package broker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// LeaseToken is the content of a LEASE on the command line. The holder's id is random and made for
// this claim alone, or for one worker: it proves the holder. The ledger records whether the lease
// is still valid, and for how long a beat prolongs it. A client that can read the ledger can forge
// a lease; it could append as well.
type LeaseToken struct {
	Ticket string `json:"t"`
	Agent  string `json:"a"`
	Offer  uint64 `json:"o"`
	Holder string `json:"h"`
	Slot   bool   `json:"s,omitempty"` // it counts against its agent's max_concurrency
	Suited bool   `json:"f,omitempty"` // its agent's profile may change its package
	Worker bool   `json:"w,omitempty"` // its holder is a worker, which beats by itself
	Remote bool   `json:"g,omitempty"` // it was claimed through a gateway, and is used there
	// Gateway is the name of that gateway, which has the claim in its memory; empty if it has none.
	Gateway string `json:"n,omitempty"`
}

// Lease encodes the claim as a token from which Resume restores it, in any process.
func (c *Claim) Lease() string {
	return LeaseToken{Ticket: c.Ticket, Agent: c.Agent, Offer: c.Offer, Holder: c.Holder.ID, Slot: c.limited, Suited: c.suited}.String()
}

// WorkerLease is the Lease that a worker gives to the program that it runs: reports under it do not
// affect the worker's presence.
func (c *Claim) WorkerLease() string {
	return LeaseToken{Ticket: c.Ticket, Agent: c.Agent, Offer: c.Offer, Holder: c.Holder.ID, Slot: c.limited, Suited: c.suited, Worker: true}.String()
}

// RemoteLease marks a lease as one to use at a gateway, best at the one with this name.
func RemoteLease(lease, gateway string) string {
	token, err := ParseLease(lease)
	if err != nil {
		return lease
	}
	token.Remote, token.Gateway = true, gateway
	return token.String()
}

// String encodes the lease.
func (t LeaseToken) String() string {
	raw, _ := json.Marshal(t) // cannot fail
	var room [512]byte        // one allocation
	return string(base64.RawURLEncoding.AppendEncode(append(room[:0], "lease_"...), raw))
}

const leasePrefix = len("lease_")

// ParseLease decodes a lease, which may be lost or forged. An invalid one is a *protocol.Error with
// CodeLeaseInvalid.
func ParseLease(lease string) (LeaseToken, error) {
	var token LeaseToken
	bad := protocol.Errorf(protocol.CodeLeaseInvalid, "lease", "is not a lease; give the one that claim printed")
	if len(lease) <= leasePrefix || lease[:leasePrefix] != "lease_" || len(lease) > 1024 {
		return token, bad
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(lease[leasePrefix:])
	if err != nil || json.Unmarshal(raw, &token) != nil {
		return token, bad
	}
	_, ticketErr := protocol.ParseTicket(token.Ticket)
	_, holderErr := uuid.Parse(token.Holder)
	if ticketErr != nil || holderErr != nil || token.Offer == 0 || protocol.CheckID("lease", token.Agent) != nil ||
		token.Gateway != "" && protocol.CheckID("lease", token.Gateway) != nil {
		return token, bad
	}
	return token, nil
}

// Resume restores a claim from its lease. For an ended claim it returns ErrLeaseLost and changes
// nothing.
//
// A lease that was never issued is a *protocol.Error with CodeLeaseInvalid. The error does not
// depend on whether the handoff exists: a forged lease reveals nothing about tickets. ErrLeaseLost
// is for a lease that names the agent, the offer and the holder of a claim in the handoff's
// history, which only its holder can know.
func (b *Broker) Resume(ctx context.Context, lease string) (*Claim, error) {
	token, err := ParseLease(lease)
	if err != nil {
		return nil, err
	}
	head, err := b.Head(ctx, token.Ticket, 0)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	there := err == nil
	holder := protocol.Holder{ID: token.Holder, Agent: token.Agent, LeaseMS: head.State.LeaseMS, Slots: 1, Busy: 1, Polling: !token.Worker}
	if there && token.Agent == head.State.Agent {
		claim, err := b.claimOf(ctx, head, holder, token.Offer)
		if err == nil {
			claim.limited, claim.keys = token.Slot, head.State.LimitKeys
			err = claim.suit(ctx, token.Suited)
		}
		if !errors.Is(err, ErrLeaseLost) {
			return claim, err
		}
	}
	given, err := b.wasIssued(ctx, token)
	switch {
	case err != nil:
		return nil, err
	case !given || !there:
		return nil, protocol.Errorf(protocol.CodeLeaseInvalid, "lease", "was never issued, or its handoff is too old; a claim returns a lease")
	}
	return nil, leaseLostError(&head.State, token.Ticket, token.Holder)
}

// clockError is an ErrLeaseLost with its own text: the lease was valid, and a clock ran out.
type clockError struct{ words string }

func (e *clockError) Error() string { return e.words }
func (e *clockError) Unwrap() error { return ErrLeaseLost }

// timeoutReason returns the reason of a state that a clock has changed.
func timeoutReason(c protocol.Clock) string { return string(c) + "_timeout" }

// leaseLostError returns the error for a holder whose claim has ended.
func leaseLostError(s *protocol.State, ticket, holder string) error {
	clock := protocol.Clock("")
	switch {
	case lifecycle.DeadlinePassed(*s):
		clock = protocol.ClockDeadline
	case s.Held(): // by another
	case s.Reason == timeoutReason(protocol.ClockWork):
		clock = protocol.ClockWork
	case s.Reason == timeoutReason(protocol.ClockProgress):
		clock = protocol.ClockProgress
	}
	return fmt.Errorf("handoff %s, holder %s: %w", ticket, holder, LostTo(clock))
}

// clockErrors are the errors of holders whose claim a clock has ended.
var clockErrors = map[protocol.Clock]error{protocol.ClockWork: ErrWorkTimeout,
	protocol.ClockProgress: ErrProgressTimeout, protocol.ClockDeadline: ErrDeadlinePassed}

// LostTo returns the ErrLeaseLost for a holder whose claim a clock has ended. Without a clock, or
// for one that ends no claim, it is ErrLeaseLost itself.
func LostTo(clock protocol.Clock) error {
	if err := clockErrors[clock]; err != nil {
		return err
	}
	return ErrLeaseLost
}

// ClockOf returns the clock that ended a claim, from its error. It is empty if no clock did.
func ClockOf(err error) protocol.Clock {
	for clock, its := range clockErrors {
		if errors.Is(err, its) {
			return clock
		}
	}
	return ""
}

// errRead ends the reading of a history early.
var errRead = errors.New("read as far as needed")

// wasIssued reports whether a lease was ever issued. It reads the history from the lease's offer
// on, while that offer is the current one. That is one request, with one answer, for a handoff that
// does not exist and for one that never had this offer.
func (b *Broker) wasIssued(ctx context.Context, lease LeaseToken) (given bool, err error) {
	first := true
	err = b.EachChangeAfter(ctx, lease.Ticket, lease.Offer-1, func(c protocol.Change) error {
		if first && c.Seq != lease.Offer || c.Record.State.Offer != lease.Offer {
			return errRead
		}
		first = false
		if given = slices.ContainsFunc(c.Record.Events, lease.issuedFor); given {
			return errRead
		}
		return nil
	})
	if errors.Is(err, errRead) {
		err = nil
	}
	return given, err
}

// issuedFor reports whether the lease was issued for this event.
func (t LeaseToken) issuedFor(e protocol.Event) bool {
	switch e := e.(type) {
	case *protocol.Claimed:
		return e.Agent == t.Agent && e.Holder == t.Holder && e.Offer == t.Offer
	case *protocol.Accepted:
		return e.Agent == t.Agent && e.Holder == t.Holder && e.Offer == t.Offer
	case *protocol.Taken: // its record is the offer
		return e.Agent == t.Agent && e.Holder == t.Holder
	}
	return false
}

// Ending is how a holder itself released its handoff: with a report.
type Ending struct {
	Event protocol.Event // nil: it still has the handoff, never had it, or lost it
	Fence uint64         // under which it had it; 0 if it had only claimed it
}

// EndingOf returns how the holder of a lease released its handoff. It is for a caller that repeats
// a report, which may have been stored the first time. It changes nothing.
func (b *Broker) EndingOf(ctx context.Context, lease LeaseToken) (Ending, error) {
	var ending Ending
	holds := false
	err := b.eachChange(ctx, lease.Ticket, func(c protocol.Change) error {
		for _, e := range c.Record.Events {
			switch e := e.(type) {
			case *protocol.Claimed:
				if lease.issuedFor(e) {
					holds, ending = true, Ending{}
				}
			case *protocol.Accepted:
				if lease.issuedFor(e) {
					holds, ending = true, Ending{Fence: c.Seq}
				}
			case *protocol.LeaseLost:
				holds = holds && e.Holder != lease.Holder
			case *protocol.Answered: // by an authority that held it
				if holds && e.By == lease.Agent {
					ending.Event = e
				}
				holds = false
			default:
				if holds && releasingHolder(e) == lease.Holder {
					holds, ending.Event = false, e
				}
			}
		}
		return nil
	})
	return ending, err
}
