package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// offersAt waits until nothing happens any more, and compares the offers of a handoff
// that stand with the agents that should have one.
func (w *world) offersAt(ticket string, agents ...string) {
	w.Helper()
	synctest.Wait()
	var got []string
	for key := range w.m.QueuedOffers() {
		if key.Ticket == ticket {
			got = append(got, key.Agent)
		}
	}
	if slices.Sort(got); !slices.Equal(got, agents) {
		w.Errorf("offers stand at %v, want %v", got, agents)
	}
}

// An offer leaves its queue with the append that ends it, however that comes, where
// the agent that it stands at never pulls. Nothing waits for a sweep.
func TestEndedOfferLeavesItsQueue(t *testing.T) {
	must := func(w *world, err error) {
		w.Helper()
		if err != nil {
			w.Fatal(err)
		}
	}
	patient := func(p *protocol.Package) { p.Policy.AckTimeoutMS = new(staying.Milliseconds()) }
	poller := func(w *world) *broker.Claim {
		h := w.holder("coder", staying)
		h.Polling = true
		return w.work(h)
	}
	for name, story := range map[string]func(w *world){
		"cancelled": func(w *world) {
			ticket := w.submit(patient)
			w.offersAt(ticket, "coder")
			_, err := w.b.Cancel(w.ctx, ticket, "lead", "")
			must(w, err)
			w.offersAt(ticket)
		},
		"not acknowledged": func(w *world) {
			ticket := w.submit(func(p *protocol.Package) { p.Policy.AckTimeoutMS = new(int64(10_000)) })
			w.until(ticket, func(s protocol.State) bool { return s.Agent == protocol.Human })
			w.offersAt(ticket, protocol.Human)
		},
		"sent elsewhere": func(w *world) {
			w.agent("tester", nil)
			ticket := w.submit(patient)
			_, err := w.b.Reroute(w.ctx, ticket, "tester", "lead", "", time.Time{})
			must(w, err)
			w.offersAt(ticket, "tester")
		},
		"taken from a worker": func(w *world) {
			ticket := w.submit(patient)
			w.work(w.holder("coder", staying)) // and the queue's delivery with it
			w.offersAt(ticket, "coder")
			_, err := w.b.Take(w.ctx, ticket, w.holder(protocol.Human, staying), "mine")
			must(w, err)
			w.offersAt(ticket)
		},
		"its deadline passes": func(w *world) {
			ticket := w.submit(func(p *protocol.Package) {
				patient(p)
				p.Constraints.Deadline = time.Now().UTC().Add(time.Minute)
				p.Policy.InterventionTimeoutMS = new(time.Minute.Milliseconds())
			})
			w.closed(ticket)
			w.offersAt(ticket)
		},
		"its agent is removed": func(w *world) {
			ticket := w.submit(nil)
			must(w, w.b.RemoveProfile(w.ctx, "coder"))
			w.until(ticket, func(s protocol.State) bool { return s.Agent == protocol.Human })
			w.offersAt(ticket, protocol.Human)
		},
		"its worker dies": func(w *world) {
			ticket := w.submit(patient)
			w.work(w.holder("coder", 10*time.Second))
			w.until(ticket, func(s protocol.State) bool { return s.LeasesLost == 1 })
			w.offersAt(ticket, "coder") // the next one
		},
		"completed by an agent that polls": func(w *world) {
			ticket := w.submit(patient)
			claim := poller(w)
			w.offersAt(ticket)
			again, err := w.b.Resume(w.ctx, claim.Lease())
			must(w, err)
			w.complete(again)
			w.offersAt(ticket)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.agent("coder", nil)
				w.supervise(supervisor.Config{SweepInterval: staying})
				pass(time.Minute) // what comes with the start of a supervisor is over
				story(w)
			})
		})
	}
}

// What the entry that names an offer does not bear out stays where it is.
func TestEndedOfferIsNotBelieved(t *testing.T) {
	inBubble(t, func(w *world) {
		w.agent("coder", nil)
		w.supervise(supervisor.Config{SweepInterval: staying})
		w.saying(lifecycle.AttentionLater.WithEnded(lifecycle.EndedOffer{Agent: "coder", Lane: protocol.Normal, Offer: 1}))
		ticket := w.submit(nil)
		pass(5 * time.Second)
		w.offersAt(ticket, "coder")
	})
}

// A writer that names no ended offer, or dies before the queue gets one that has ended
// meanwhile, leaves it until the next sweep; one that the ledger does not know stays.
func TestPassRemovesEndedOffers(t *testing.T) {
	inBubble(t, func(w *world) {
		w.agent("coder", nil)
		w.supervise(supervisor.Config{})
		w.saying(lifecycle.AttentionNone)
		cancelled := w.submit(nil)
		if _, err := w.b.Cancel(w.ctx, cancelled, "lead", ""); err != nil {
			t.Fatal(err)
		}
		open := w.submit(func(p *protocol.Package) { p.Policy.AckTimeoutMS = new(staying.Milliseconds()) })
		unknown := broker.OfferKey{Agent: "coder", Lane: protocol.Normal, Ticket: protocol.NewTicket(), Sequence: 1}
		if err := w.m.PutOffer(w.ctx, unknown, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		w.offersAt(cancelled, "coder")
		pass(6 * time.Minute)
		w.offersAt(cancelled)
		w.offersAt(open, "coder")
		w.offersAt(unknown.Ticket, "coder")
	})
}

// What repair finds in the queues that has ended it takes out, without a supervisor.
func TestRepairRemovesEndedOffers(t *testing.T) {
	inBubble(t, func(w *world) {
		w.agent("coder", nil)
		cancelled, open := w.submit(nil), w.submit(nil)
		if _, err := w.b.Cancel(w.ctx, cancelled, "lead", ""); err != nil {
			t.Fatal(err)
		}
		repaired, err := supervisor.Repair(w.ctx, w.b, w.m, nil)
		if want := (supervisor.Repaired{Handoffs: 2, Open: 1, Woken: 1, Removed: 1}); err != nil || repaired != want {
			t.Errorf("%+v, %v; want %+v", repaired, err, want)
		}
		w.offersAt(cancelled)
		w.offersAt(open, "coder")
	})
}

// unremoving is an engine that removes no offer while there is a reason against it.
type unremoving struct {
	*brokertest.Memory
	why atomic.Value // of refusal
}

type refusal struct{ err error }

func (e *unremoving) because(err error) { e.why.Store(refusal{err}) }

func (e *unremoving) RemoveOffer(ctx context.Context, key broker.OfferKey) error {
	if why := e.why.Load().(refusal); why.err != nil {
		return why.err
	}
	return e.Memory.RemoveOffer(ctx, key)
}

// While the engine does not answer, the removal is tried again; one that is refused is
// not, and the handoff goes on as ever.
func TestEndedOfferThatCannotBeRemoved(t *testing.T) {
	inBubble(t, func(w *world) {
		w.agent("coder", nil)
		engine := &unremoving{Memory: w.m.Connect()}
		engine.because(fmt.Errorf("%w: busy", broker.ErrUnreachable))
		b := brokertest.Over(t, engine)
		w.superviseOver(engine.Memory, b, engine, supervisor.Config{SweepInterval: staying})
		ticket := w.submit(nil)
		w.until(ticket, func(s protocol.State) bool { return s.Agent == protocol.Human })
		w.offersAt(ticket, "coder", protocol.Human)
		engine.because(nil)
		pass(2 * broker.FollowWait)
		w.offersAt(ticket, protocol.Human)

		engine.because(errors.New("not allowed"))
		refused := w.submit(nil)
		w.until(refused, func(s protocol.State) bool { return s.Agent == protocol.Human })
		pass(time.Minute)
		if state, err := w.b.Status(w.ctx, refused); err != nil || state.StuckReason != "" {
			t.Errorf("stuck: %q, %v", state.StuckReason, err)
		}
	})
}
