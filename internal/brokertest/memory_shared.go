package brokertest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
)

// sharedConsumer is a durable consumer: it delivers each element to one follower, and again after
// the ack wait unless the follower was done with it. The store's lock guards it.
type sharedConsumer[K comparable] struct {
	exists      bool // made by the first follower; earlier elements are not in it
	undelivered []K
	pending     []unacknowledged[K] // in the order of their deadlines
	changed     notifier
}

type unacknowledged[K comparable] struct {
	key K
	due time.Time
}

func (c *sharedConsumer[K]) add(k K) {
	if c.exists {
		c.undelivered = append(c.undelivered, k)
		c.changed.notify()
	}
}

func (c *sharedConsumer[K]) clear() { c.undelivered, c.pending = nil, nil }

// next returns the next element, an overdue one first, or the time until one is overdue.
func (c *sharedConsumer[K]) next(now time.Time, ackWait time.Duration) (k K, ok bool, wait time.Duration) {
	switch {
	case len(c.pending) > 0 && !c.pending[0].due.After(now):
		k = c.pending[0].key
		c.pending = c.pending[1:]
	case len(c.undelivered) > 0:
		k, c.undelivered = c.undelivered[0], c.undelivered[1:]
	case len(c.pending) > 0:
		return k, false, c.pending[0].due.Sub(now)
	default:
		return k, false, time.Hour
	}
	c.pending = append(c.pending, unacknowledged[K]{k, now.Add(ackWait)})
	return k, true, 0
}

func (c *sharedConsumer[K]) done(k K) {
	c.pending = slices.DeleteFunc(c.pending, func(g unacknowledged[K]) bool { return g.key == k })
}

// consume delivers a share of c to this caller until ctx ends or the connection is closed. A cut
// connection waits.
func consume[K comparable](ctx context.Context, m *Memory, label string, c *sharedConsumer[K], fn func(K, func())) error {
	s := m.s
	s.mu.Lock()
	c.exists = true
	s.mu.Unlock()
	for {
		m.yield(label)
		m.mu.Lock()
		err, closed, state := m.reachable(), m.closed, m.stateChanged.wait()
		m.mu.Unlock()
		if closed {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		wait := time.Hour
		s.mu.Lock()
		changed := c.changed.wait()
		var k K
		var ok bool
		if err == nil {
			k, ok, wait = c.next(time.Now(), min(s.ackWait, broker.FollowWait))
		}
		s.mu.Unlock()
		if ok {
			fn(k, func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				c.done(k)
			})
			continue
		}
		waitAny(ctx, wait, changed, state)
	}
}

// waitAny waits for the first of d, ctx, a and b.
func waitAny(ctx context.Context, d time.Duration, a, b <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-a:
	case <-b:
	}
}

// Follow implements broker.Engine.
func (m *Memory) Follow(ctx context.Context, fn func(broker.Entry, func())) error {
	err := consume(ctx, m, "the ledger", &m.s.follow, func(seq uint64, done func()) {
		m.s.mu.Lock()
		e := m.s.ledger[m.s.places[seq]].Entry
		m.s.mu.Unlock()
		fn(e, done)
	})
	return fmt.Errorf("follow the ledger: %w", err)
}

// wakeUpKey names a wake-up.
type wakeUpKey struct {
	ticket string
	seq    uint64
}

// Due implements broker.Engine.
func (m *Memory) Due(ctx context.Context, fn func(broker.WakeUp, func())) error {
	err := consume(ctx, m, "due wake-ups", &m.s.due, fn)
	return fmt.Errorf("wait for due wake-ups: %w", err)
}

// Arm implements broker.Engine.
func (m *Memory) Arm(ctx context.Context, ticket string, seq uint64, at time.Time) error {
	if err := m.checkUsable(ctx); err != nil {
		return fmt.Errorf("arm %s at %d: %w", ticket, seq, err)
	}
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	// Fired wake-ups are kept for the next supervisor, as the engine's work queue does.
	s.due.exists = true
	if s.faults.DropTimer != nil && s.faults.DropTimer(ticket, seq) {
		return nil
	}
	k := wakeUpKey{ticket, seq}
	if t := s.timers[k]; t != nil {
		t.Stop()
	}
	s.lastArming++
	live := s.lastArming
	s.armed[k] = live
	s.timers[k] = time.AfterFunc(time.Until(at), func() { s.fire(k, live, at) })
	return nil
}

// PublishOutbox implements broker.Engine.
func (m *Memory) PublishOutbox(ctx context.Context, entries []broker.OutboxEntry) []error {
	return PublishOneByOne(ctx, m, m.announce, entries)
}

// PublishOneByOne publishes offers and wake-ups through PutOffer and Arm, and announcements
// through announce.
func PublishOneByOne(ctx context.Context, e broker.Engine, announce func(context.Context, broker.WakeUp) error, entries []broker.OutboxEntry) []error {
	errs := make([]error, len(entries))
	for i, h := range entries {
		switch {
		case h.WakeUp.Attention != "":
			errs[i] = announce(ctx, h.WakeUp)
		case h.Body == nil:
			errs[i] = e.Arm(ctx, h.WakeUp.Ticket, h.WakeUp.Seq, h.WakeUp.At)
		default:
			errs[i] = e.PutOffer(broker.WithTrace(ctx, h.Trace), h.Offer, h.Body)
		}
	}
	return errs
}

// announce publishes the announcement of an append.
func (m *Memory) announce(ctx context.Context, w broker.WakeUp) error {
	if err := m.checkUsable(ctx); err != nil {
		return fmt.Errorf("announce %s at %d: %w", w.Ticket, w.Seq, err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	m.s.due.exists = true // the engine's work queue keeps it for the next supervisor
	m.s.due.add(w)
	return nil
}

func (s *store) fire(k wakeUpKey, live uint64, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.armed[k] != live { // replaced or deleted while it was about to fire
		return
	}
	delete(s.armed, k)
	delete(s.timers, k)
	w := broker.WakeUp{Ticket: k.ticket, Seq: k.seq, At: at.UTC()}
	s.due.add(w)
	if s.faults.DuplicateTimer != nil && s.faults.DuplicateTimer(k.ticket, k.seq) {
		s.due.add(w)
	}
	// Wake-ups of one instant come in the order of their tickets, not of the timers.
	slices.SortStableFunc(s.due.undelivered, func(a, b broker.WakeUp) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Ticket, b.Ticket), cmp.Compare(a.Seq, b.Seq))
	})
}
