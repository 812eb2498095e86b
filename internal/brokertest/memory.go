// Package brokertest has an engine in memory (Memory) that fails on demand, and the conformance
// suite (Run) that it and the engine on JetStream both pass. Only tests import it.
//
// Memory does no I/O and starts no goroutine that outlives a call: it is made of mutexes,
// channels and timers, so that testing/synctest can fake its clock.
package brokertest

import (
	"cmp"
	"context"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
)

// Memory is a broker.Engine in memory. Each value is one connection: Connect makes another one to
// the same stores, as for another process.
//
// A caller sees the behaviour of JetStream: acknowledgements are not fenced, presence counts in
// whole seconds, and the consumers of the ledger and of due wake-ups start with entries that are
// added after the first follower has come.
type Memory struct {
	s *store

	mu               sync.Mutex
	closed           bool
	cut              bool      // see Disconnect
	since            time.Time // ConnectedSince
	stateChanged     notifier  // notified when closed or cut change
	reconnect        map[int]chan struct{}
	lastSubscription int
	snapshot         snapshot

	pulled map[string]int64 // offers pulled, by agent; the store's lock guards it

	announcer *broker.Announcer
}

var _ broker.Engine = (*Memory)(nil)

// store is the state that all connections share. One mutex guards all of it, which keeps
// simulations easy to reason about.
type store struct {
	mu      sync.Mutex
	ackWait time.Duration
	faults  Faults

	ledger      []record
	places      map[uint64]int   // indices into ledger, by sequence
	last        []uint64         // the sequence of the last entry of each partition
	tickets     map[string][]int // indices into ledger, in order
	ledgerGrown notifier
	created     time.Time // of the ledger

	follow     sharedConsumer[uint64]
	due        sharedConsumer[broker.WakeUp]
	timers     map[wakeUpKey]*time.Timer
	armed      map[wakeUpKey]uint64 // which arming of a key is the live one
	lastArming uint64

	queues map[string]*queue

	directory        directory
	workspaces       map[string][]workspaceAppend
	noWorkspaces     bool
	workspaceSeq     uint64
	signals          signals
	blobs            map[string][]byte
	feeds            map[string]map[int]chan uint64
	lastSubscription int
	conns            []*Memory
	services         []*service
}

type record struct {
	broker.Entry
	id string
}

// Faults are the ways in which the engine in memory fails. Each may be nil. The engine calls them
// with its lock held, and they must not call the engine.
type Faults struct {
	DropOffer      func(broker.OfferKey) bool           // the offer is reported as put, and is not there
	DuplicateOffer func(broker.OfferKey) bool           // the offer is delivered twice, at once
	DropTimer      func(ticket string, seq uint64) bool // the wake-up is reported as armed, and never fires
	DuplicateTimer func(ticket string, seq uint64) bool // it fires twice
	DropFeed       func(ticket string, seq uint64) bool // the hint is lost

	// Yield, unlike the others, is called without the lock: by a call that has waited and is
	// about to check its condition again, and by a follower before each delivery. It may
	// block, so that a scheduler decides which call runs next. what names the call.
	Yield func(m *Memory, what string)
}

// NewMemory makes an engine with its own empty stores.
func NewMemory() *Memory { return NewMemoryAckWait(broker.AckWait) }

// NewMemoryAckWait makes an engine that redelivers an offer after ackWait, unless it is
// extended or done. Ledger entries and due wake-ups are redelivered after FollowWait at the
// latest.
func NewMemoryAckWait(ackWait time.Duration) *Memory {
	s := &store{
		ackWait: ackWait,
		created: time.Now().UTC(),
		tickets: map[string][]int{},
		places:  map[uint64]int{},
		last:    []uint64{0},
		timers:  map[wakeUpKey]*time.Timer{},
		armed:   map[wakeUpKey]uint64{},
		queues:  map[string]*queue{},
		blobs:   map[string][]byte{},

		workspaces: map[string][]workspaceAppend{},
		feeds:      map[string]map[int]chan uint64{},
	}
	s.directory.init()
	return connect(s)
}

// Divide divides the ledger into n partitions. It must be empty.
func (m *Memory) Divide(n int) *Memory {
	m.s.last = make([]uint64, n)
	for p := range n {
		m.s.last[p] = broker.PartitionBase(p)
	}
	return m
}

func connect(s *store) *Memory {
	m := &Memory{s: s, since: time.Now(), reconnect: map[int]chan struct{}{}, pulled: map[string]int64{}}
	m.announcer = broker.NewAnnouncer(m, nil)
	s.mu.Lock()
	s.conns = append(s.conns, m)
	s.mu.Unlock()
	return m
}

// Settled implements broker.Engine.
func (m *Memory) Settled(ticket string, seq uint64) { m.announcer.Settled(ticket, seq) }

// Now implements broker.Engine: the clock of the process, which a test may fake.
func (m *Memory) Now() time.Time { return time.Now().UTC() }

// Connect makes another connection to the same stores.
func (m *Memory) Connect() *Memory { return connect(m.s) }

// SetFaults replaces the faults.
func (m *Memory) SetFaults(k Faults) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	m.s.faults = k
}

// yield waits until the scheduler, if there is one, lets the call continue.
func (m *Memory) yield(what string) {
	m.s.mu.Lock()
	yield := m.s.faults.Yield
	m.s.mu.Unlock()
	if yield != nil {
		yield(m, what)
	}
}

// QueuedOffers returns the offers in all queues, delivered or not.
func (m *Memory) QueuedOffers() map[broker.OfferKey]bool {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	all := map[broker.OfferKey]bool{}
	for _, q := range m.s.queues {
		for _, lane := range q.lanes {
			for _, o := range lane {
				all[o.key] = true
			}
		}
	}
	return all
}

// WakeUps returns the tickets with a wake-up that is armed, or fired and not done.
func (m *Memory) WakeUps() map[string]bool {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	all := map[string]bool{}
	for k := range m.s.timers {
		all[k.ticket] = true
	}
	for _, w := range m.s.due.undelivered {
		all[w.Ticket] = true
	}
	for _, g := range m.s.due.pending {
		all[g.key.Ticket] = true
	}
	return all
}

// Disconnect cuts this connection until Reconnect: Append waits, all other calls fail with
// ErrUnreachable. Presence continues to lapse meanwhile.
func (m *Memory) Disconnect() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cut, m.since = true, time.Time{}
	m.snapshot.forget()
	m.stateChanged.notify()
}

// Reconnect ends a Disconnect and notifies the channels of Reconnected.
func (m *Memory) Reconnect() {
	m.mu.Lock()
	m.cut, m.since = false, time.Now()
	m.snapshot.forget()
	m.stateChanged.notify()
	m.mu.Unlock()
	m.notifyReconnected()
}

// Restart acts as the restart of a single node: every connection breaks and comes back, and the
// consumers of the queues lose their state. So the offers of live claims are delivered again at
// once.
func (m *Memory) Restart() {
	s := m.s
	s.mu.Lock()
	for _, q := range s.queues {
		q.release()
	}
	conns := slices.Clone(s.conns)
	s.mu.Unlock()
	for _, c := range conns {
		c.mu.Lock()
		usable := !c.cut && !c.closed
		if usable {
			c.since = time.Now()
			c.snapshot.forget()
		}
		c.mu.Unlock()
		if usable {
			c.notifyReconnected()
		}
	}
}

// DeleteWork loses every offer in every queue.
func (m *Memory) DeleteWork() {
	m.s.mu.Lock()
	m.s.queues = map[string]*queue{}
	m.s.mu.Unlock()
	m.notifyAllReconnected()
}

// DeleteTimers loses every wake-up, fired or not.
func (m *Memory) DeleteTimers() {
	s := m.s
	s.mu.Lock()
	for k, t := range s.timers {
		t.Stop()
		delete(s.timers, k)
		delete(s.armed, k)
	}
	s.due.clear()
	s.mu.Unlock()
	m.notifyAllReconnected()
}

func (m *Memory) notifyAllReconnected() {
	m.s.mu.Lock()
	conns := slices.Clone(m.s.conns)
	m.s.mu.Unlock()
	for _, c := range conns {
		c.notifyReconnected()
	}
}

// Close ends this connection; the stores stay for the others.
func (m *Memory) Close() error {
	m.announcer.Close(context.Background())
	m.mu.Lock()
	m.closed = true
	m.since = time.Time{}
	m.stateChanged.notify()
	m.mu.Unlock()
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = slices.DeleteFunc(s.conns, func(c *Memory) bool { return c == m })
	if len(s.conns) == 0 { // no connection is left to be woken
		for _, t := range s.timers {
			t.Stop()
		}
		s.directory.stop()
	}
	return nil
}

// checkUsable returns the error of a connection that is closed or cut, or of ctx.
func (m *Memory) checkUsable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reachable()
}

// reachable wants m.mu held.
func (m *Memory) reachable() error {
	switch {
	case m.closed:
		return broker.ErrClosed
	case m.cut:
		return fmt.Errorf("%w: this connection is cut", broker.ErrUnreachable)
	}
	return nil
}

// Append implements broker.Engine.
func (m *Memory) Append(ctx context.Context, ticket string, after uint64, id string, attention lifecycle.Attention, body []byte) (uint64, error) {
	seq, err := m.AppendSilently(ctx, ticket, after, id, body)
	if err == nil {
		m.announcer.Appended(ctx, ticket, seq, attention)
	}
	return seq, err
}

// AppendSilently is Append without an announcement.
func (m *Memory) AppendSilently(ctx context.Context, ticket string, after uint64, id string, body []byte) (uint64, error) {
	for {
		if err := ctx.Err(); err != nil {
			return 0, fmt.Errorf("append %s after %d: %w", ticket, after, err)
		}
		m.mu.Lock()
		err, changed, closed := m.reachable(), m.stateChanged.wait(), m.closed
		m.mu.Unlock()
		if closed {
			return 0, fmt.Errorf("append %s after %d: %w", ticket, after, err)
		}
		if err == nil {
			return m.s.append(ticket, after, id, body)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
		m.yield("append " + ticket)
	}
}

func (s *store) append(ticket string, after uint64, id string, body []byte) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if head := s.head(ticket); head != after {
		for _, i := range s.tickets[ticket] {
			if r := s.ledger[i]; r.Seq > after {
				if r.id == id {
					return r.Seq, nil
				}
				break
			}
		}
		return 0, fmt.Errorf("append %s after %d, the head is %d: %w", ticket, after, head, broker.ErrConflict)
	}
	p := int(crc32.ChecksumIEEE([]byte(ticket))) % len(s.last)
	s.last[p]++
	seq := s.last[p]
	s.places[seq] = len(s.ledger)
	e := broker.Entry{Ticket: ticket, Seq: seq, At: time.Now().UTC(), Body: slices.Clone(body)}
	s.tickets[ticket] = append(s.tickets[ticket], len(s.ledger))
	s.ledger = append(s.ledger, record{e, id})
	s.follow.add(seq)
	s.ledgerGrown.notify()
	if after > 0 {
		s.publishFeed(ticket, seq)
	}
	return seq, nil
}

func (s *store) head(ticket string) uint64 {
	if at := s.tickets[ticket]; len(at) > 0 {
		return s.ledger[at[len(at)-1]].Seq
	}
	return 0
}

// Last implements broker.Engine.
func (m *Memory) Last(ctx context.Context, ticket string, min uint64) (broker.Entry, error) {
	for {
		if err := m.checkUsable(ctx); err != nil {
			return broker.Entry{}, fmt.Errorf("last of %s: %w", ticket, err)
		}
		m.s.mu.Lock()
		head, changed := m.s.head(ticket), m.s.ledgerGrown.wait()
		var e broker.Entry
		if head > 0 {
			e = m.s.ledger[m.s.places[head]].Entry
		}
		m.s.mu.Unlock()
		switch {
		case head > 0 && head >= min:
			return e, nil
		case min == 0:
			return broker.Entry{}, fmt.Errorf("last of %s: %w", ticket, broker.ErrNotFound)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
		m.yield("last of " + ticket)
	}
}

// Next implements broker.Engine.
func (m *Memory) Next(ctx context.Context, ticket string, after uint64) (broker.Entry, error) {
	if err := m.checkUsable(ctx); err != nil {
		return broker.Entry{}, fmt.Errorf("next of %s after %d: %w", ticket, after, err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	for _, i := range m.s.tickets[ticket] {
		if e := m.s.ledger[i].Entry; e.Seq > after {
			return e, nil
		}
	}
	return broker.Entry{}, fmt.Errorf("next of %s after %d: %w", ticket, after, broker.ErrNotFound)
}

// Heads implements broker.Engine.
func (m *Memory) Heads(ctx context.Context, fn func(broker.Entry) error) error {
	m.s.mu.Lock()
	var heads []broker.Entry
	for _, at := range m.s.tickets {
		heads = append(heads, m.s.ledger[at[len(at)-1]].Entry)
	}
	m.s.mu.Unlock()
	slices.SortFunc(heads, func(a, b broker.Entry) int { return cmp.Compare(a.Seq, b.Seq) })
	return m.forEachEntry(ctx, heads, fn)
}

// Entries implements broker.Engine.
func (m *Memory) Entries(ctx context.Context, from broker.Cursor, fn func(broker.Entry) error) error {
	m.s.mu.Lock()
	var all []broker.Entry
	for _, r := range m.s.ledger {
		if !from.Passed(r.Seq) {
			all = append(all, r.Entry)
		}
	}
	m.s.mu.Unlock()
	return m.forEachEntry(ctx, all, fn)
}

func (m *Memory) forEachEntry(ctx context.Context, all []broker.Entry, fn func(broker.Entry) error) error {
	if err := m.checkUsable(ctx); err != nil {
		return fmt.Errorf("read the ledger: %w", err)
	}
	for _, e := range all {
		if err := m.checkUsable(ctx); err != nil {
			return fmt.Errorf("read the ledger at %d: %w", e.Seq, err)
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// Reconnected implements broker.Engine.
func (m *Memory) Reconnected(ctx context.Context) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastSubscription++
	key, ch := m.lastSubscription, make(chan struct{}, 1)
	m.reconnect[key] = ch
	context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.reconnect, key)
	})
	return ch
}

func (m *Memory) notifyReconnected() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, ch := range m.reconnect {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// notifier wakes all calls that wait for a change. The lock of its owner guards it.
type notifier struct{ ch chan struct{} }

func (b *notifier) wait() <-chan struct{} {
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

func (b *notifier) notify() {
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}
