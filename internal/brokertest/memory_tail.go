package brokertest

import (
	"context"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/broker"
)

// LedgerInfo implements broker.Engine.
func (m *Memory) LedgerInfo(ctx context.Context) (broker.LedgerInfo, error) {
	if err := m.checkUsable(ctx); err != nil {
		return broker.LedgerInfo{}, fmt.Errorf("state of the ledger: %w", err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	return broker.LedgerInfo{Created: m.s.created, Began: m.s.created, First: 1, Last: uint64(len(m.s.ledger))}, nil
}

// Since implements broker.Engine.
func (m *Memory) Since(ctx context.Context, at time.Time) (broker.Entry, error) {
	if err := m.checkUsable(ctx); err != nil {
		return broker.Entry{}, fmt.Errorf("first entry since %v: %w", at, err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	for _, r := range m.s.ledger {
		if !r.At.Before(at) {
			return r.Entry, nil
		}
	}
	return broker.Entry{}, fmt.Errorf("first entry since %v: %w", at, broker.ErrNotFound)
}

// Tail implements broker.Engine.
func (m *Memory) Tail(ctx context.Context, from uint64, fn func(broker.Entry) error) error {
	fail := func(err error) error { return fmt.Errorf("follow the ledger from %d: %w", from, err) }
	ledger, err := m.LedgerInfo(ctx)
	if err != nil {
		return fail(err)
	}
	for next := max(from, 1); ; {
		m.mu.Lock()
		changed := m.stateChanged.wait()
		err := m.reachable()
		m.mu.Unlock()
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return fail(err)
		}
		var e broker.Entry
		m.s.mu.Lock()
		last, created, more := uint64(len(m.s.ledger)), m.s.created, m.s.ledgerGrown.wait()
		if next <= last {
			e = m.s.ledger[next-1].Entry
		}
		m.s.mu.Unlock()
		switch {
		case next > last+1 || !created.Equal(ledger.Created):
			return fail(fmt.Errorf("%w: it has the entries 1 to %d", broker.ErrLedgerChanged, last))
		case next <= last:
			if err := fn(e); err != nil {
				return err
			}
			next++
			continue
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-more:
		}
	}
}

// Feed implements broker.Engine.
func (m *Memory) Feed(ctx context.Context, ticket string) (<-chan uint64, func(), error) {
	if err := m.checkUsable(ctx); err != nil {
		return nil, nil, fmt.Errorf("feed of %s: %w", ticket, err)
	}
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastSubscription++
	key, ch := s.lastSubscription, make(chan uint64, 1)
	if s.feeds[ticket] == nil {
		s.feeds[ticket] = map[int]chan uint64{}
	}
	s.feeds[ticket][key] = ch
	remove := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.feeds[ticket], key)
	}
	cancel := context.AfterFunc(ctx, remove)
	return ch, func() { cancel(); remove() }, nil
}

// publishFeed needs s.mu held, which makes it the only sender.
func (s *store) publishFeed(ticket string, seq uint64) {
	if s.faults.DropFeed != nil && s.faults.DropFeed(ticket, seq) {
		return
	}
	for _, ch := range s.feeds[ticket] {
		select {
		case <-ch: // the latest hint replaces one not yet read
		default:
		}
		ch <- seq
	}
}

// TruncateLedger loses the last n appends, as a power cut does without sync. Later appends reuse
// their sequences.
func (m *Memory) TruncateLedger(n int) {
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for range min(n, len(s.ledger)) {
		last := len(s.ledger) - 1
		ticket := s.ledger[last].Ticket
		s.tickets[ticket] = s.tickets[ticket][:len(s.tickets[ticket])-1]
		s.ledger = s.ledger[:last]
	}
	s.follow.clear()
	s.ledgerGrown.notify()
}

// ReplaceLedger replaces the ledger with an empty one.
func (m *Memory) ReplaceLedger() {
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger, s.tickets = nil, map[string][]int{}
	s.created = s.created.Add(time.Microsecond) // a fake clock may stand still
	s.follow.clear()
	s.ledgerGrown.notify()
}
