package brokertest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// queue is the queue of an agent: a list of offers per lane, oldest first.
type queue struct {
	lanes   map[protocol.Priority][]*offer
	changed notifier
	ackWait time.Duration // see KeepOffers
}

// offer is an offer in a queue. A delivery acts on its address: as with JetStream, an
// acknowledgement names a message, not a delivery.
type offer struct {
	key       broker.OfferKey
	body      []byte
	at        time.Time // when it was put
	heldUntil time.Time // zero: free
}

func (s *store) queue(agent string) *queue {
	q := s.queues[agent]
	if q == nil {
		q = &queue{lanes: map[protocol.Priority][]*offer{}, ackWait: s.ackWait}
		s.queues[agent] = q
	}
	return q
}

// release frees all offers, as a restart does.
func (q *queue) release() {
	for _, lane := range q.lanes {
		for _, o := range lane {
			o.heldUntil = time.Time{}
		}
	}
	q.changed.notify()
}

// EnsureQueue implements broker.Engine.
func (m *Memory) EnsureQueue(ctx context.Context, agent string) error {
	if err := m.checkUsable(ctx); err != nil {
		return fmt.Errorf("queue of %s: %w", agent, err)
	}
	return nil
}

// KeepOffers implements broker.Engine. A queue whose offers are all free counts as one that no worker
// pulls from.
func (m *Memory) KeepOffers(ctx context.Context, agent string, wait time.Duration) error {
	if err := m.checkUsable(ctx); err != nil {
		return fmt.Errorf("queue of %s: %w", agent, err)
	}
	wait = min(max(wait, broker.AckWaitMin), m.s.ackWait)
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	q, idle := m.s.queue(agent), true
	for _, lane := range q.lanes {
		for _, o := range lane {
			idle = idle && !o.heldUntil.After(time.Now())
		}
	}
	if wait > q.ackWait || idle {
		q.ackWait = wait
	}
	return nil
}

// PutOffer implements broker.Engine.
func (m *Memory) PutOffer(ctx context.Context, key broker.OfferKey, body []byte) error {
	if err := m.checkUsable(ctx); err != nil {
		return fmt.Errorf("offer %s to %s: %w", key.Ticket, key.Agent, err)
	}
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults.DropOffer != nil && s.faults.DropOffer(key) {
		return nil
	}
	q := s.queue(key.Agent)
	if slices.ContainsFunc(q.lanes[key.Lane], func(o *offer) bool { return o.key == key }) {
		return nil
	}
	times := 1
	if s.faults.DuplicateOffer != nil && s.faults.DuplicateOffer(key) {
		times = 2
	}
	for range times {
		q.lanes[key.Lane] = append(q.lanes[key.Lane], &offer{key: key, body: slices.Clone(body), at: time.Now().UTC()})
	}
	q.changed.notify()
	return nil
}

// RemoveOffer implements broker.Engine.
func (m *Memory) RemoveOffer(ctx context.Context, key broker.OfferKey) error {
	if err := m.checkUsable(ctx); err != nil {
		return fmt.Errorf("remove offer %s: %w", key.Ticket, err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	q := m.s.queue(key.Agent)
	q.lanes[key.Lane] = slices.DeleteFunc(q.lanes[key.Lane], func(o *offer) bool { return o.key == key })
	return nil
}

// Offers implements broker.Engine.
func (m *Memory) Offers(ctx context.Context, agent string, fn func(broker.OfferKey) error) error {
	if err := m.checkUsable(ctx); err != nil {
		return fmt.Errorf("offers: %w", err)
	}
	all := slices.SortedFunc(maps.Keys(m.QueuedOffers()), func(a, b broker.OfferKey) int { // in an order that a simulation can repeat
		return cmp.Or(cmp.Compare(a.Sequence, b.Sequence), cmp.Compare(a.Ticket, b.Ticket))
	})
	for _, key := range all {
		if agent != "" && key.Agent != agent {
			continue
		}
		if err := fn(key); err != nil {
			return err
		}
	}
	return nil
}

// OffersBetween implements broker.Engine.
func (m *Memory) OffersBetween(ctx context.Context, from, until time.Time, fn func(broker.OfferKey, time.Time) error) error {
	if err := m.checkUsable(ctx); err != nil {
		return fmt.Errorf("offers from %v: %w", from, err)
	}
	for _, o := range m.offersBetween(from, until) {
		if err := fn(o.key, o.at); err != nil {
			return err
		}
	}
	return nil
}

func (m *Memory) offersBetween(from, until time.Time) (found []offer) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	for _, q := range m.s.queues {
		for _, lane := range q.lanes {
			for _, o := range lane {
				if !o.at.Before(from) && o.at.Before(until) {
					found = append(found, *o)
				}
			}
		}
	}
	slices.SortFunc(found, func(a, b offer) int { // a simulation repeats it
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.key.Sequence, b.key.Sequence), cmp.Compare(a.key.Ticket, b.key.Ticket))
	})
	return found
}

// Pull implements broker.Engine.
func (m *Memory) Pull(ctx context.Context, agent string, most int, wait time.Duration) ([]broker.Delivery, error) {
	end := time.Now().Add(wait)
	for {
		if err := m.checkUsable(ctx); err != nil {
			return nil, fmt.Errorf("pull for %s: %w", agent, err)
		}
		m.mu.Lock()
		state := m.stateChanged.wait()
		m.mu.Unlock()
		now := time.Now()
		m.s.mu.Lock()
		q := m.s.queue(agent)
		got, next := q.takeFree(m.s, m.pulled[agent], most, now)
		m.pulled[agent] += int64(len(got))
		changed := q.changed.wait()
		m.s.mu.Unlock()
		left := end.Sub(now)
		if len(got) > 0 || left <= 0 || most <= 0 {
			return got, nil
		}
		if !next.IsZero() {
			left = min(left, next.Sub(now))
		}
		if waitAny(ctx, left, changed, state); time.Until(end) > 0 {
			m.yield("pull for " + agent)
		}
	}
}

// takeFree delivers free offers in the order of broker.LaneOrder, to a connection that has taken
// so many before. next is when the first held offer becomes free.
func (q *queue) takeFree(s *store, taken int64, most int, now time.Time) (got []broker.Delivery, next time.Time) {
	for len(got) < most {
		o := q.nextFree(broker.LaneOrder(taken+int64(len(got))), now)
		if o == nil {
			break
		}
		o.heldUntil = now.Add(q.ackWait)
		got = append(got, &delivery{s: s, o: o})
	}
	for _, lane := range q.lanes {
		for _, o := range lane {
			if o.heldUntil.After(now) && (next.IsZero() || o.heldUntil.Before(next)) {
				next = o.heldUntil
			}
		}
	}
	return got, next
}

// nextFree is the first offer that no worker holds.
func (q *queue) nextFree(order []protocol.Priority, now time.Time) *offer {
	for _, lane := range order {
		for _, o := range q.lanes[lane] {
			if !o.heldUntil.After(now) {
				return o
			}
		}
	}
	return nil
}

// QueueDepth implements broker.Engine.
func (m *Memory) QueueDepth(ctx context.Context, agent string) (int, error) {
	if err := m.checkUsable(ctx); err != nil {
		return 0, fmt.Errorf("depth of the queue of %s: %w", agent, err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	n := 0
	for _, lane := range m.s.queue(agent).lanes {
		n += len(lane)
	}
	return n, nil
}

// Queues implements broker.Engine.
func (m *Memory) Queues(ctx context.Context) ([]broker.QueueStatus, error) {
	if err := m.checkUsable(ctx); err != nil {
		return nil, fmt.Errorf("status of the queues: %w", err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	all := []broker.QueueStatus{}
	for _, agent := range slices.Sorted(maps.Keys(m.s.queues)) {
		for _, lane := range protocol.Priorities {
			status := broker.QueueStatus{Agent: agent, Lane: lane}
			for _, o := range m.s.queues[agent].lanes[lane] {
				status.Depth++
				if !o.heldUntil.IsZero() { // lapsed or not, no other worker has it yet
					status.Delivered++
				} else if status.Waiting.IsZero() || o.at.Before(status.Waiting) {
					status.Waiting = o.at
				}
				if status.Oldest.IsZero() || o.at.Before(status.Oldest) {
					status.Oldest = o.at
				}
			}
			if status.Depth > 0 {
				all = append(all, status)
			}
		}
	}
	return all, nil
}

// delivery implements broker.Delivery. An acknowledgement of a removed offer is dropped silently,
// as with JetStream.
type delivery struct {
	s *store
	o *offer
}

func (d *delivery) Key() broker.OfferKey { return d.o.key }
func (d *delivery) Body() []byte         { return d.o.body }

func (d *delivery) Remove() error {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	q := d.s.queue(d.o.key.Agent)
	lane := d.o.key.Lane
	q.lanes[lane] = slices.DeleteFunc(q.lanes[lane], func(o *offer) bool { return o == d.o })
	return nil
}

func (d *delivery) Release() error {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	d.o.heldUntil = time.Time{}
	d.s.queue(d.o.key.Agent).changed.notify()
	return nil
}

func (d *delivery) Extend() error {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	d.o.heldUntil = time.Now().Add(d.s.queue(d.o.key.Agent).ackWait)
	return nil
}
