package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Repaired is what Repair found and did.
type Repaired struct {
	Handoffs int `json:"handoffs"` // all that the ledger has
	Open     int `json:"open"`
	Woken    int `json:"woken"`  // to be looked at within a second: the open ones, and those that may owe something
	Failed   int `json:"failed"` // could not be helped; the log says why
}

// Repair asks for a pass over all heads now. It puts the offer of every open
// handoff where it belongs, and sets the wake-up of every handoff that may need a
// look to now: supervisors find them due, and share the work. It decides nothing
// and is safe beside any number of supervisors; without one, the wake-ups wait for
// the next. It returns once everything is asked for. An engine that does not answer
// ends it with an error.
func Repair(ctx context.Context, b Broker, log *slog.Logger) (Repaired, error) {
	s, err := New(b, Config{Log: log})
	if err != nil {
		return Repaired{}, err
	}
	var done Repaired
	wake := func(ticket string, seq uint64, offered error) error {
		err := errors.Join(offered, b.Arm(ctx, ticket, seq, time.Now()))
		switch {
		case err == nil:
			done.Woken++
		case ctx.Err() != nil, errors.Is(err, broker.ErrUnreachable):
			return fmt.Errorf("repair %s: %w", ticket, err)
		default:
			done.Failed++
			s.log.Error("handoff not put back", "ticket", ticket, "err", err)
		}
		return nil
	}
	kin := newKin()
	done.Handoffs, done.Open, err = pass(ctx, b, func(h broker.Head) error {
		kin.see(h.State)
		if h.State.Closed && !lifecycle.Owes(h.State) {
			return nil
		}
		var offered error
		if lifecycle.DutiesOf(h.State).Offer {
			offered = b.EnsureOffer(ctx, h)
		}
		return wake(h.Ticket, h.Seq, offered)
	})
	if err != nil {
		return done, err
	}
	for parent := range kin.parents() { // whose children never came, or were not noted
		// Under a sequence of its own: it does not replace the parent's own wake-up.
		if err := wake(parent, departureSeq, nil); err != nil {
			return done, err
		}
	}
	return done, nil
}
