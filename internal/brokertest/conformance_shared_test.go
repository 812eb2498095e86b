package brokertest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

var sharedCases = []conformanceCase{
	{"a follower gets every new entry", followAll},
	{"followers share, and what is not done comes again", followShare},
	{"done may be called later", followLater},
	{"a follower ends with its context", followEnds},
	{"a wake-up fires when its time has come", armFires},
	{"a wake-up in the past fires at once", armPast},
	{"an append is announced as its attention says", announced},
	{"an append that is superseded or settled is not announced", notAnnounced},
	{"arming again under the same sequence replaces", armReplaces},
	{"wake-ups of several sequences each fire", armSeveral},
	{"outbox entries that are published together stand each", outboxTogether},
	{"a due wake-up that is not done comes again", dueAgain},
	{"a due wake-up waits for a supervisor", dueWaits},
}

// followedEntries is what a follower got of the tickets that a case cares for.
type followedEntries struct {
	mu   sync.Mutex
	seen map[uint64]int
	body map[uint64]string
}

// follow follows until the returned function is called, which waits for the
// end. accept tells whether an entry counts as done.
func (k *kit) follow(ticket func(string) bool, accept func(seq uint64, times int) bool) (*followedEntries, func() error) {
	f := &followedEntries{seen: map[uint64]int{}, body: map[uint64]string{}}
	ctx, cancel := context.WithCancel(k.ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- k.Follow(ctx, func(e broker.Entry, done func()) {
			if !ticket(e.Ticket) {
				done() // another case's
				return
			}
			f.mu.Lock()
			f.seen[e.Seq]++
			f.body[e.Seq] = string(e.Body)
			n := f.seen[e.Seq]
			f.mu.Unlock()
			if accept(e.Seq, n) {
				done()
			}
		})
	}()
	var once sync.Once
	var err error
	stop := func() error {
		once.Do(func() { cancel(); err = receive(k, "the end of a follower", ended) })
		return err
	}
	k.Cleanup(func() { _ = stop() })
	return f, stop
}

func (f *followedEntries) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.seen)
}

// partitions adds the partitions of which an entry came.
func (f *followedEntries) partitions(to map[int]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for seq := range f.seen {
		to[broker.PartitionOf(seq)] = true
	}
}

func (f *followedEntries) times(seq uint64) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[seq]
}

// awaitFollowing appends until the followers have seen an entry of each partition.
func (k *kit) awaitFollowing(mine map[string]bool, mu *sync.Mutex, f ...*followedEntries) {
	k.Helper()
	l, err := k.LedgerInfo(k.ctx)
	k.must(err)
	live := map[int]bool{}
	k.until("a live follower", func() bool {
		ticket := protocol.NewTicket()
		mu.Lock()
		mine[ticket] = true
		mu.Unlock()
		k.append(ticket, 0, "are you there")
		for _, one := range f {
			one.partitions(live)
		}
		return len(live) == len(l.Partitions())
	})
}

// ticketSet is a set of tickets that may be asked from a follower's goroutine.
func ticketSet() (map[string]bool, *sync.Mutex, func(string) bool) {
	set, mu := map[string]bool{}, &sync.Mutex{}
	return set, mu, func(t string) bool {
		mu.Lock()
		defer mu.Unlock()
		return set[t]
	}
}

func followAll(k *kit) {
	set, mu, is := ticketSet()
	f, stop := k.follow(is, func(uint64, int) bool { return true })
	k.awaitFollowing(set, mu, f)
	ticket := protocol.NewTicket()
	mu.Lock()
	set[ticket] = true
	mu.Unlock()
	var head uint64
	var seqs []uint64
	for range 50 {
		head = k.append(ticket, head, "entry")
		seqs = append(seqs, head)
	}
	for _, seq := range seqs {
		k.until("every entry", func() bool { return f.times(seq) > 0 })
	}
	k.wantErr(stop(), context.Canceled)
	for _, seq := range seqs {
		if n := f.times(seq); n != 1 {
			k.Errorf("entry %d came %d times", seq, n)
		}
		if f.body[seq] != "entry" {
			k.Errorf("entry %d is %q", seq, f.body[seq])
		}
	}
}

func followShare(k *kit) {
	set, mu, is := ticketSet()
	// The first follower never finishes the entry; the second delivery counts.
	var all sync.Mutex
	total := map[uint64]int{}
	accept := func(seq uint64, _ int) bool {
		all.Lock()
		defer all.Unlock()
		total[seq]++
		return total[seq] > 1
	}
	a, stopA := k.follow(is, accept)
	b, stopB := k.follow(is, accept)
	k.awaitFollowing(set, mu, a, b)
	ticket := protocol.NewTicket()
	mu.Lock()
	set[ticket] = true
	mu.Unlock()
	var head uint64
	var seqs []uint64
	for range 20 {
		head = k.append(ticket, head, "entry")
		seqs = append(seqs, head)
	}
	for _, seq := range seqs {
		k.until("each entry again", func() bool { return a.times(seq)+b.times(seq) >= 2 })
	}
	k.wantErr(errors.Join(stopA(), stopB()), context.Canceled)
	for _, seq := range seqs {
		if n := a.times(seq) + b.times(seq); n != 2 {
			k.Errorf("entry %d came %d times, want 2", seq, n)
		}
	}
}

func followLater(k *kit) {
	ctx, cancel := context.WithCancel(k.ctx)
	type held struct {
		e    broker.Entry
		done func()
	}
	entries, ended := make(chan held, 1000), make(chan error, 1)
	go func() {
		ended <- k.Follow(ctx, func(e broker.Entry, done func()) { entries <- held{e, done} })
	}()
	ticket := protocol.NewTicket()
	var head uint64
	var first held
	k.until("a live follower", func() bool {
		head = k.append(ticket, head, "x")
		select {
		case first = <-entries:
			return true
		default:
			return false
		}
	})
	for first.e.Ticket != ticket {
		first.done()
		first = receive(k, "an entry of ours", entries)
	}
	first.done() // from another goroutine than the follower's
	// Later entries come, while that one does not come again.
	head = k.append(ticket, head, "y")
	for {
		h := receive(k, "the next entry", entries)
		h.done()
		if h.e.Seq == first.e.Seq {
			k.Errorf("entry %d came again", h.e.Seq)
		}
		if h.e.Seq == head {
			break
		}
	}
	cancel()
	k.wantErr(receive(k, "the end of the follower", ended), context.Canceled)
}

func followEnds(k *kit) {
	ctx, cancel := context.WithTimeout(k.ctx, 20*time.Millisecond)
	defer cancel()
	k.wantErr(k.Follow(ctx, func(_ broker.Entry, done func()) { done() }), context.DeadlineExceeded)
	k.wantErr(k.Due(ctx, func(_ broker.WakeUp, done func()) { done() }), context.DeadlineExceeded)
}

// firedWakeUp is one that was delivered.
type firedWakeUp struct {
	ticket string
	seq    uint64
	asked  time.Time
	at     time.Time
	done   func()
}

// dueWakeUps delivers the due wake-ups of a ticket until the case ends.
func (k *kit) dueWakeUps(ticket string) <-chan firedWakeUp {
	ctx, cancel := context.WithCancel(k.ctx)
	all, ended := make(chan firedWakeUp, 100), make(chan error, 1)
	go func() {
		ended <- k.Due(ctx, func(w broker.WakeUp, done func()) {
			if w.Ticket != ticket {
				done()
				return
			}
			all <- firedWakeUp{w.Ticket, w.Seq, w.At, time.Now(), done}
		})
	}()
	k.Cleanup(func() { cancel(); receive(k, "the end of Due", ended) })
	return all
}

func armFires(k *kit) {
	ticket := protocol.NewTicket()
	dues := k.dueWakeUps(ticket)
	at := time.Now().Add(600 * time.Millisecond)
	k.must(k.Arm(k.ctx, ticket, 3, at))
	w := receive(k, "the wake-up", dues)
	w.done()
	if w.seq != 3 || w.at.Before(at) {
		k.Errorf("%d fired %v before its time", w.seq, at.Sub(w.at))
	}
	if !w.asked.Equal(at) {
		k.Errorf("it was armed for %v, and says %v", at, w.asked)
	}
}

func armPast(k *kit) {
	ticket := protocol.NewTicket()
	dues := k.dueWakeUps(ticket)
	k.must(k.Arm(k.ctx, ticket, 3, time.Now().Add(-time.Hour)))
	receive(k, "the wake-up", dues).done()
}

func armReplaces(k *kit) {
	ticket := protocol.NewTicket()
	dues := k.dueWakeUps(ticket)
	k.must(k.Arm(k.ctx, ticket, 3, time.Now().Add(time.Hour)))
	early := time.Now().Add(400 * time.Millisecond)
	k.must(k.Arm(k.ctx, ticket, 3, early))
	later := early.Add(600 * time.Millisecond)
	k.must(k.Arm(k.ctx, ticket, 3, later))
	w := receive(k, "the wake-up", dues)
	w.done()
	if w.at.Before(later) {
		k.Errorf("fired %v before the time it was moved to", later.Sub(w.at))
	}
	// Whatever else was armed before would have to come before this one.
	k.must(k.Arm(k.ctx, ticket, 4, time.Now()))
	if w := receive(k, "the other wake-up", dues); w.seq != 4 {
		k.Errorf("%d fired again", w.seq)
	} else {
		w.done()
	}
}

func armSeveral(k *kit) {
	ticket := protocol.NewTicket()
	dues := k.dueWakeUps(ticket)
	want := map[uint64]bool{}
	for seq := range uint64(10) {
		want[seq] = true
		k.must(k.Arm(k.ctx, ticket, seq, time.Now().Add(time.Duration(seq)*20*time.Millisecond)))
	}
	for len(want) > 0 {
		w := receive(k, "every wake-up", dues)
		w.done()
		if !want[w.seq] {
			k.Errorf("%d came again", w.seq)
		}
		delete(want, w.seq)
	}
}

// outboxTogether publishes more entries than are ever under way, small and large, of
// which some stand already.
func outboxTogether(k *kit) {
	const n = 700
	agent, ticket := k.agentWithQueue(), protocol.NewTicket()
	dues := k.dueWakeUps(ticket)
	var entries []broker.OutboxEntry
	for i := range uint64(n) {
		body := []byte("small")
		if i%100 == 0 {
			body = make([]byte, 300<<10)
		}
		key := broker.OfferKey{Agent: agent, Lane: protocol.Priorities[i%4], Ticket: ticket, Sequence: i + 1}
		if i%10 == 0 {
			k.must(k.PutOffer(k.ctx, key, []byte("stands")))
		}
		entries = append(entries, broker.OutboxEntry{Offer: key, Body: body}, broker.OutboxEntry{WakeUp: broker.WakeUp{Ticket: ticket, Seq: i + 1, At: time.Now()}})
	}
	for i, err := range k.PublishOutbox(k.ctx, entries) {
		if err != nil {
			k.Fatalf("entry %d: %v", i, err)
		}
	}
	k.awaitDepth(agent, n)
	for fired := map[uint64]bool{}; len(fired) < n; {
		w := receive(k, "every wake-up", dues)
		w.done()
		fired[w.seq] = true
	}
	if none := k.PublishOutbox(k.ctx, nil); len(none) != 0 {
		k.Errorf("of no entries came %v", none)
	}
}

func dueAgain(k *kit) {
	ticket := protocol.NewTicket()
	dues := k.dueWakeUps(ticket)
	k.must(k.Arm(k.ctx, ticket, 9, time.Now()))
	first := receive(k, "the wake-up", dues)
	second := receive(k, "the wake-up again", dues)
	second.done()
	if first.seq != 9 || second.seq != 9 {
		k.Errorf("%d, then %d came", first.seq, second.seq)
	}
}

func dueWaits(k *kit) {
	ticket := protocol.NewTicket()
	k.must(k.Arm(k.ctx, ticket, 9, time.Now().Add(-time.Second)))
	receive(k, "the wake-up", k.dueWakeUps(ticket)).done()
}
