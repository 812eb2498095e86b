package broker_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
)

// limited is an engine with the agent clerk, which works on two handoffs at a time.
type limited struct {
	*testing.T
	m *brokertest.Memory
}

func inLimited(t *testing.T, f func(l *limited)) {
	synctest.Test(t, func(t *testing.T) {
		l := &limited{t, brokertest.NewMemory()}
		defer func() { _ = l.m.Close() }()
		l.must(l.m.PutProfile(t.Context(), protocol.Profile{ID: "clerk", MaxConcurrency: 2}))
		f(l)
	})
}

func (l *limited) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

func (l *limited) broker() *broker.Broker {
	l.Helper()
	b := brokertest.Over(l, l.m)
	return b
}

func (l *limited) submit(b *broker.Broker, n int) {
	l.Helper()
	for range n {
		brokertest.Submit(l, b, protocol.Package{Source: "src", Target: protocol.Target{Agent: "clerk"}})
	}
}

// holder is present.
func (l *limited) holder(b *broker.Broker) protocol.Holder {
	l.Helper()
	return brokertest.PutHolder(l, b, "clerk", 30*time.Second)
}

func (l *limited) pull(b *broker.Broker, want int) []*broker.Offer {
	l.Helper()
	offers, err := b.Pull(l.Context(), "clerk", 10, time.Second)
	l.must(err)
	if len(offers) != want {
		l.Fatalf("%d offers, want %d", len(offers), want)
	}
	return offers
}

func (l *limited) accept(o *broker.Offer, h protocol.Holder) *broker.Claim {
	l.Helper()
	claim, err := o.Acknowledge(l.Context(), h, protocol.Ack{Status: protocol.AckAccepted}, true)
	l.must(err)
	return claim
}

func (l *limited) inHand(b *broker.Broker, want int) {
	l.Helper()
	n, limit, err := b.Capacity(l.Context(), "clerk")
	l.must(err)
	if n != want || limit != 2 {
		l.Errorf("%d of %d in hand, want %d of 2", n, limit, want)
	}
}

// TestSlotsLimitAllHolders: a worker with ten slots gets two, another and a claim
// none, until one is done.
func TestSlotsLimitAllHolders(t *testing.T) {
	inLimited(t, func(l *limited) {
		one, other := l.broker(), l.broker()
		l.submit(one, 4)
		h := l.holder(one)
		var claims []*broker.Claim
		for _, o := range l.pull(one, 2) {
			claims = append(claims, l.accept(o, h))
		}
		l.inHand(other, 2)
		began := time.Now()
		l.pull(other, 0)
		if waited := time.Since(began); waited < time.Second {
			l.Errorf("waited %v for room", waited)
		}
		l.must(claims[0].Complete(l.Context(), done))
		l.inHand(other, 1)
		l.accept(l.pull(other, 1)[0], l.holder(other))
		l.pull(one, 0)
	})
}

// TestSlotsRace: where two have pulled for the same room, it is had once.
func TestSlotsRace(t *testing.T) {
	inLimited(t, func(l *limited) {
		one, other := l.broker(), l.broker()
		l.submit(one, 4)
		offers := slices.Concat(l.pull(one, 2), l.pull(other, 2))
		holders := []protocol.Holder{l.holder(one), l.holder(one), l.holder(other), l.holder(other)}
		results := make(chan error, len(offers))
		for i, o := range offers {
			go func() {
				_, err := o.Acknowledge(l.Context(), holders[i], protocol.Ack{Status: protocol.AckAccepted}, true)
				results <- err
			}()
		}
		accepted := 0
		for range offers {
			if err := <-results; err == nil {
				accepted++
			} else if !errors.Is(err, broker.ErrOfferGone) {
				l.Error(err)
			}
		}
		if accepted != 2 {
			l.Errorf("%d were accepted, want 2", accepted)
		}
		l.inHand(one, 2)
	})
}

// TestSlotsOfRefusals: a refusal takes no slot, also where there is none, and what
// was claimed from a command line is freed by the one that answers.
func TestSlotsOfRefusals(t *testing.T) {
	inLimited(t, func(l *limited) {
		b := l.broker()
		l.submit(b, 3)
		offers := l.pull(b, 2)
		refuse := protocol.Ack{Status: protocol.AckRejected, Reason: "no"}
		if _, err := offers[0].Acknowledge(l.Context(), l.holder(b), refuse, true); err != nil {
			l.Error(err)
		}
		l.inHand(b, 0)
		claim, err := offers[1].Claim(l.Context(), l.holder(b), 0)
		l.must(err)
		l.inHand(b, 1)
		later, err := l.broker().Resume(l.Context(), claim.Lease())
		l.must(err)
		l.must(later.Acknowledge(l.Context(), refuse, true))
		l.inHand(b, 0)
	})
}

// TestSlotsAfterACrash: a holder that is gone has no slot, and one that comes back
// with its handoff has it again, if need be over the limit.
func TestSlotsAfterACrash(t *testing.T) {
	inLimited(t, func(l *limited) {
		one, other := l.broker(), l.broker()
		l.submit(one, 4)
		crashed := l.holder(one)
		var claims []*broker.Claim
		for _, o := range l.pull(one, 2) {
			claims = append(claims, l.accept(o, crashed))
		}
		// Only its presence lapses: its offers stay in its hands, and no supervisor is
		// there to judge it.
		beat := func() {
			for _, claim := range claims {
				_, err := claim.Beat(l.Context())
				l.must(err)
			}
		}
		time.Sleep(28 * time.Second) // the bubble's clock
		beat()
		l.pull(other, 0)
		time.Sleep(2 * time.Second)
		second := l.holder(other)
		for _, o := range l.pull(other, 2) {
			l.accept(o, second)
		}
		l.inHand(other, 2)
		l.must(one.Beat(l.Context(), crashed))
		beat()
		l.inHand(other, 4)
	})
}

// slowHolders is an engine that is slow to say who is present, once.
type slowHolders struct {
	*brokertest.Memory
	slow time.Duration
}

func (e *slowHolders) Holder(ctx context.Context, id string) (protocol.Holder, error) {
	h, err := e.Memory.Holder(ctx, id)
	time.Sleep(e.slow)
	e.slow = 0
	return h, err
}

// TestSlotsAreCheckedAgain: a check that takes long, since the engine is away, does not put off the
// next one for long.
func TestSlotsAreCheckedAgain(t *testing.T) {
	inLimited(t, func(l *limited) {
		one, other := l.broker(), brokertest.Over(l, &slowHolders{l.m, 40 * time.Second})
		l.submit(one, 4)
		crashed := l.holder(one)
		for _, o := range l.pull(one, 2) {
			l.accept(o, crashed)
		}
		time.Sleep(28 * time.Second) // the bubble's clock
		l.pull(other, 0)             // the holder was still there when the check began
		time.Sleep(31 * time.Second)
		l.pull(other, 2)
	})
}

// TestSlotsOfWhatWasTaken: the slot of a handoff that was taken from its holder by
// hand is vacant, though its holder has not noticed.
func TestSlotsOfWhatWasTaken(t *testing.T) {
	inLimited(t, func(l *limited) {
		b := l.broker()
		l.submit(b, 3)
		h := l.holder(b)
		for _, o := range l.pull(b, 2) {
			l.accept(o, h)
		}
		slots, _, err := l.m.Slots(l.Context(), "clerk")
		l.must(err)
		person := protocol.Holder{ID: protocol.NewTicket(), Agent: protocol.Human, LeaseMS: 3_600_000, Polling: true}
		l.must(b.Beat(l.Context(), person))
		for ticket := range slots {
			_, err := b.Take(l.Context(), ticket, person, "by hand")
			l.must(err)
			break
		}
		for err = broker.ErrOfferGone; errors.Is(err, broker.ErrOfferGone); { // what was taken stands in the queue still
			_, err = l.pull(b, 1)[0].Acknowledge(l.Context(), h, protocol.Ack{Status: protocol.AckAccepted}, true)
		}
		l.must(err)
		l.inHand(b, 2)
	})
}

// TestNoSlotsWithoutALimit: an agent without max_concurrency pays nothing.
func TestNoSlotsWithoutALimit(t *testing.T) {
	inLimited(t, func(l *limited) {
		l.must(l.m.PutProfile(l.Context(), protocol.Profile{ID: "clerk"}))
		engine := brokertest.NewCountingEngine(l.m)
		b := brokertest.Over(l, engine)
		_, err := b.Directory(l.Context())
		l.must(err)
		l.submit(b, 1)
		h := l.holder(b)
		engine.TakeCounts()
		claim := l.accept(l.pull(b, 1)[0], h)
		_, err = claim.Beat(l.Context())
		l.must(err)
		l.must(claim.Complete(l.Context(), done))
		if got := engine.TakeCounts(); got != "append 2, directory 1, last 1" {
			l.Errorf("its handoff asks for: %s", got)
		}
	})
}
