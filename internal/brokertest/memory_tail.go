package brokertest

import (
	"context"
	"fmt"
	"slices"
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
	return m.s.info(), nil
}

// info needs s.mu held.
func (s *store) info() (all broker.LedgerInfo) {
	for p, last := range s.last {
		one := broker.LedgerInfo{Created: s.created, Began: s.created, First: broker.PartitionBase(p) + 1, Last: last}
		if p == 0 {
			all = one
			continue
		}
		all.Others = append(all.Others, one)
	}
	return all
}

// Since implements broker.Engine.
func (m *Memory) Since(ctx context.Context, at time.Time) (broker.Cursor, error) {
	if err := m.checkUsable(ctx); err != nil {
		return nil, fmt.Errorf("entries since %v: %w", at, err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	since := m.s.info().End()
	for _, r := range slices.Backward(m.s.ledger) {
		if r.At.Before(at) {
			break
		}
		since[broker.PartitionOf(r.Seq)] = r.Seq
	}
	return since, nil
}

// Tail implements broker.Engine.
func (m *Memory) Tail(ctx context.Context, from broker.Cursor, fn func(broker.Entry) error) error {
	fail := func(err error) error { return fmt.Errorf("follow the ledger from %v: %w", from, err) }
	ledger, err := m.LedgerInfo(ctx)
	if err != nil {
		return fail(err)
	}
	// Entries of all partitions come in the order in which they were appended.
	for next := 0; ; {
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
		now, entries, more := m.s.info(), len(m.s.ledger), m.s.ledgerGrown.wait()
		if next < entries {
			e = m.s.ledger[next].Entry
		}
		m.s.mu.Unlock()
		if !now.Created.Equal(ledger.Created) {
			return fail(fmt.Errorf("%w: it has another ledger", broker.ErrLedgerChanged))
		}
		for p, end := range now.End() {
			if from.Next(p) > end {
				return fail(fmt.Errorf("%w: its last entry is %d", broker.ErrLedgerChanged, end-1))
			}
		}
		if next < entries {
			if !from.Passed(e.Seq) {
				if err := fn(e); err != nil {
					return err
				}
				from = slices.Clone(from)
				from.Pass(e.Seq)
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
		ticket, seq := s.ledger[last].Ticket, s.ledger[last].Seq
		delete(s.places, seq)
		s.last[broker.PartitionOf(seq)]--
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
	s.ledger, s.tickets, s.places = nil, map[string][]int{}, map[uint64]int{}
	for p := range s.last {
		s.last[p] = broker.PartitionBase(p)
	}
	s.created = s.created.Add(time.Microsecond) // a fake clock may stand still
	s.follow.clear()
	s.ledgerGrown.notify()
}
