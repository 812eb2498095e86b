package supervisor

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
)

// Repaired counts the findings and actions of Repair.
type Repaired struct {
	Handoffs int `json:"handoffs"` // all handoffs of the ledger
	Open     int `json:"open"`
	Woken    int `json:"woken"`   // to be reconciled within a second: open ones, and closed ones with possible duties
	Removed  int `json:"removed"` // ended offers that were removed from the queues
	Failed   int `json:"failed"`  // not repaired; the log has the reasons
}

// Repair sweeps all heads now, and returns once all reconciliations are requested. It restores the
// offer of every open handoff, and sets the wake-up of every handoff that may need a reconciliation
// to now: supervisors find them due, and share the work. It decides nothing and is safe while any
// number of supervisors run; without one, the wake-ups wait for the next. It removes ended offers
// from the queues. An engine that does not answer ends it with an error.
func Repair(ctx context.Context, b Broker, engine Engine, log *slog.Logger) (Repaired, error) {
	s, err := New(b, engine, Config{Log: log})
	if err != nil {
		return Repaired{}, err
	}
	var done Repaired
	var mu sync.Mutex // for done
	woken := func(h broker.Outbox, err error) error {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			done.Woken++
		case isUnanswered(err) && !s.engineAnswers(ctx), ctx.Err() != nil:
			return fmt.Errorf("repair %s: %w", h.Head.Ticket, err)
		default:
			done.Failed++
			s.log.Error("handoff not put back", "ticket", h.Head.Ticket, "err", err)
		}
		return nil
	}
	families := newFamilyMatcher()
	var called []uint64
	var end broker.Cursor
	heads, open, err := s.publishAll(ctx, woken, func(c context.Context, publisher *batchPublisher, h broker.Head) {
		families.add(h.State)
		if end.Pass(h.Seq); lifecycle.OfferStands(h.State) {
			called = append(called, h.State.Offer)
		}
		if !h.State.Closed || lifecycle.HasPendingDuties(h.State) {
			publisher.add(c, broker.Outbox{Head: h, Offer: lifecycle.DutiesOf(h.State).Offer, Seq: h.Seq, At: b.Now()})
		}
	})
	done.Handoffs, done.Open = heads, open
	if err != nil {
		return done, err
	}
	done.Removed = s.removeEnded(ctx, called, end)
	for _, parent := range families.incompleteParents() { // whose children were never submitted, or whose ends were not recorded
		// A sequence of its own keeps the parent's own wake-up.
		err := engine.Arm(ctx, parent, departureSeq, b.Now())
		if err := woken(broker.Outbox{Head: broker.Head{Ticket: parent}}, err); err != nil {
			return done, err
		}
	}
	return done, nil
}
