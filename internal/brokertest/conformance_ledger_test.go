package brokertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

var ledgerCases = []conformanceCase{
	{"an append is read back as it was", appendReadBack},
	{"an append after anything but the head conflicts and writes nothing", appendConflicts},
	{"an append again with the same id returns the sequence it had", appendAgain},
	{"of eight racing writers exactly one wins", appendRace},
	{"tickets don't disturb each other", appendApart},
	{"the caller may use its buffer again", appendBuffer},
	{"large bodies", appendLarge},
	{"last of an unknown ticket", lastUnknown},
	{"last waits for a minimum sequence", lastWaits},
	{"last gives up a minimum that never comes when the context ends", lastGivesUp},
	{"last is never older than an append acknowledged before", lastFresh},
	{"next goes through a ticket", nextWalks},
	{"heads are each ticket's last entry, in order", headsOnce},
	{"heads and entries stop with the caller's error", walksStop},
	{"entries come in order, from where they are asked for", entriesInOrder},
	{"a feed hints at the latest head", feedHints},
	{"a feed ends", feedEnds},
}

func appendReadBack(k *kit) {
	ticket, before := protocol.NewTicket(), time.Now().Add(-time.Minute)
	seq := k.append(ticket, 0, "one")
	e, err := k.Last(k.ctx, ticket, 0)
	k.must(err)
	if e.Ticket != ticket || e.Seq != seq || string(e.Body) != "one" {
		k.Errorf("read back %q %d %q", e.Ticket, e.Seq, e.Body)
	}
	if e.At.Before(before) || e.At.After(time.Now().Add(time.Minute)) || e.At.Location() != time.UTC {
		k.Errorf("stored at %v", e.At)
	}
}

func appendConflicts(k *kit) {
	ticket := protocol.NewTicket()
	_, err := k.Append(k.ctx, ticket, 1<<40, "x", "", []byte("x"))
	k.wantErr(err, broker.ErrConflict)
	first := k.append(ticket, 0, "one")
	_, err = k.Append(k.ctx, ticket, 0, "x", "", []byte("x"))
	k.wantErr(err, broker.ErrConflict)
	second := k.append(ticket, first, "two")
	for _, after := range []uint64{0, first, second + 1000} {
		_, err = k.Append(k.ctx, ticket, after, "x", "", []byte("x"))
		k.wantErr(err, broker.ErrConflict)
	}
	e, err := k.Last(k.ctx, ticket, 0)
	k.must(err)
	if e.Seq != second {
		k.Errorf("the head is %d, want %d", e.Seq, second)
	}
}

func appendAgain(k *kit) {
	ticket, id := protocol.NewTicket(), protocol.NewTicket()
	first := k.append(ticket, 0, "one")
	for range 3 {
		seq, err := k.Append(k.ctx, ticket, first, id, "", []byte("two"))
		k.must(err)
		e, err := k.Last(k.ctx, ticket, 0)
		k.must(err)
		if e.Seq != seq {
			k.Fatalf("returned %d, the head is %d", seq, e.Seq)
		}
	}
	second, err := k.Append(k.ctx, ticket, first, id, "", []byte("two"))
	k.must(err)
	k.append(ticket, second, "three") // the head has moved on
	seq, err := k.Append(k.ctx, ticket, first, id, "", []byte("two"))
	k.must(err)
	if seq != second {
		k.Errorf("returned %d, want %d", seq, second)
	}
}

func appendRace(k *kit) {
	const writers, rounds = 8, 10
	ticket := protocol.NewTicket()
	var head uint64
	for round := range rounds {
		var wg sync.WaitGroup
		seqs, errs := make([]uint64, writers), make([]error, writers)
		for w := range writers {
			wg.Go(func() {
				id := fmt.Sprintf("%d-%d", round, w)
				seqs[w], errs[w] = k.Append(k.ctx, ticket, head, id, "", []byte(id))
			})
		}
		wg.Wait()
		won := 0
		for w, err := range errs {
			if err == nil {
				won++
				head = seqs[w]
			} else if !errors.Is(err, broker.ErrConflict) {
				k.Fatal(err)
			}
		}
		if won != 1 {
			k.Fatalf("round %d: %d winners", round, won)
		}
		e, err := k.Last(k.ctx, ticket, head)
		k.must(err)
		if e.Seq != head {
			k.Fatalf("round %d: the head is %d, the winner's %d", round, e.Seq, head)
		}
	}
}

func appendApart(k *kit) {
	a, b := protocol.NewTicket(), protocol.NewTicket()
	a1 := k.append(a, 0, "a1")
	b1 := k.append(b, 0, "b1")
	a2 := k.append(a, a1, "a2")
	k.append(b, b1, "b2")
	e, err := k.Last(k.ctx, a, 0)
	k.must(err)
	if e.Seq != a2 || string(e.Body) != "a2" {
		k.Errorf("the head of a is %d %q", e.Seq, e.Body)
	}
}

func appendBuffer(k *kit) {
	ticket, body := protocol.NewTicket(), []byte("kept")
	_, err := k.Append(k.ctx, ticket, 0, "x", "", body)
	k.must(err)
	copy(body, "gone")
	e, err := k.Last(k.ctx, ticket, 0)
	k.must(err)
	if string(e.Body) != "kept" {
		k.Errorf("stored %q", e.Body)
	}
}

func appendLarge(k *kit) {
	ticket, body := protocol.NewTicket(), strings.Repeat("0123456789abcdef", 40<<10) // 640 KiB
	k.append(ticket, 0, body)
	e, err := k.Last(k.ctx, ticket, 0)
	k.must(err)
	if string(e.Body) != body {
		k.Error("the body came back changed")
	}
}

func lastUnknown(k *kit) {
	_, err := k.Last(k.ctx, protocol.NewTicket(), 0)
	k.wantErr(err, broker.ErrNotFound)
}

func lastWaits(k *kit) {
	ticket := protocol.NewTicket()
	first := k.append(ticket, 0, "one")
	type answer struct {
		e   broker.Entry
		err error
	}
	got := make(chan answer, 1)
	go func() {
		e, err := k.Last(k.ctx, ticket, first+1)
		got <- answer{e, err}
	}()
	second := k.append(ticket, first, "two")
	a := receive(k, "the head that was waited for", got)
	k.must(a.err)
	if a.e.Seq != second {
		k.Errorf("the head is %d, want %d", a.e.Seq, second)
	}
}

func lastGivesUp(k *kit) {
	ticket := protocol.NewTicket()
	first := k.append(ticket, 0, "one")
	ctx, cancel := context.WithTimeout(k.ctx, 50*time.Millisecond)
	defer cancel()
	_, err := k.Last(ctx, ticket, first+1<<40)
	k.wantErr(err, context.DeadlineExceeded)
	ctx, cancel = context.WithTimeout(k.ctx, 50*time.Millisecond)
	defer cancel()
	_, err = k.Last(ctx, protocol.NewTicket(), 1)
	k.wantErr(err, context.DeadlineExceeded)
}

func lastFresh(k *kit) {
	ticket := protocol.NewTicket()
	var head uint64
	for range 100 {
		head = k.append(ticket, head, "x")
		e, err := k.Last(k.ctx, ticket, 0)
		k.must(err)
		if e.Seq != head {
			k.Fatalf("the head is %d after append %d", e.Seq, head)
		}
	}
}

func nextWalks(k *kit) {
	ticket := protocol.NewTicket()
	_, err := k.Next(k.ctx, ticket, 0)
	k.wantErr(err, broker.ErrNotFound)
	first := k.append(ticket, 0, "one")
	k.append(protocol.NewTicket(), 0, "another's")
	second := k.append(ticket, first, "two")
	for after, want := range map[uint64]uint64{0: first, first - 1: first, first: second, second - 1: second} {
		e, err := k.Next(k.ctx, ticket, after)
		k.must(err)
		if e.Seq != want || e.Ticket != ticket {
			k.Errorf("next after %d is %d of %s, want %d", after, e.Seq, e.Ticket, want)
		}
	}
	_, err = k.Next(k.ctx, ticket, second)
	k.wantErr(err, broker.ErrNotFound)
}

func headsOnce(k *kit) {
	want := map[string]uint64{}
	var tickets []string
	for range 20 {
		ticket := protocol.NewTicket()
		tickets = append(tickets, ticket)
		want[ticket] = k.append(ticket, 0, "one")
	}
	for _, ticket := range tickets[:10] {
		want[ticket] = k.append(ticket, want[ticket], "two")
	}
	var last uint64
	got := map[string]uint64{}
	k.must(k.Heads(k.ctx, func(e broker.Entry) error {
		if e.Seq <= last {
			return fmt.Errorf("%d came after %d", e.Seq, last)
		}
		last = e.Seq
		if _, mine := want[e.Ticket]; mine {
			got[e.Ticket] = e.Seq
		}
		return nil
	}))
	for ticket, seq := range want {
		if got[ticket] != seq {
			k.Errorf("the head of %s is %d, want %d", ticket, got[ticket], seq)
		}
	}
}

func walksStop(k *kit) {
	k.append(protocol.NewTicket(), 0, "one")
	stop := errors.New("enough")
	calls := 0
	enough := func(broker.Entry) error { calls++; return stop }
	k.wantErr(k.Heads(k.ctx, enough), stop)
	k.wantErr(k.Entries(k.ctx, broker.From(1), enough), stop)
	if calls != 2 {
		k.Errorf("%d calls, want one each", calls)
	}
}

func entriesInOrder(k *kit) {
	ticket := protocol.NewTicket()
	var seqs []uint64
	var head uint64
	for i := range 10 {
		head = k.append(ticket, head, fmt.Sprint(i))
		seqs = append(seqs, head)
	}
	for _, from := range []int{0, 4, 9} {
		var last uint64
		i := from
		k.must(k.Entries(k.ctx, k.from(seqs[from]), func(e broker.Entry) error {
			if e.Seq <= last || e.Seq < seqs[from] && broker.PartitionOf(e.Seq) == broker.PartitionOf(seqs[from]) {
				return fmt.Errorf("%d came after %d, asked from %d", e.Seq, last, seqs[from])
			}
			last = e.Seq
			if e.Ticket != ticket {
				return nil
			}
			if e.Seq != seqs[i] || string(e.Body) != fmt.Sprint(i) {
				return fmt.Errorf("entry %d is %d %q", i, e.Seq, e.Body)
			}
			i++
			return nil
		}))
		if i != 10 {
			k.Errorf("from %d: up to entry %d, want 10", from, i)
		}
	}
	k.must(k.Entries(k.ctx, k.from(1<<40), func(e broker.Entry) error {
		if broker.PartitionOf(e.Seq) == 0 {
			return fmt.Errorf("entry %d", e.Seq)
		}
		return nil // of another partition, and newer
	}))
}

func feedHints(k *kit) {
	ticket := protocol.NewTicket()
	hints, stop, err := k.Feed(k.ctx, ticket)
	k.must(err)
	defer stop()
	var head uint64
	for range 5 { // hints are coalesced: the reader must still see the latest
		head = k.append(ticket, head, "x")
		k.append(protocol.NewTicket(), 0, "another's")
	}
	k.until("a hint at the latest head", func() bool {
		select {
		case seq := <-hints:
			if seq > head {
				k.Fatalf("hint at %d, the head is %d", seq, head)
			}
			return seq == head
		default:
			return false
		}
	})
}

func feedEnds(k *kit) {
	ticket := protocol.NewTicket()
	hints, stop, err := k.Feed(k.ctx, ticket)
	k.must(err)
	stop()
	stop()
	other, stopOther, err := k.Feed(k.ctx, ticket)
	k.must(err)
	defer stopOther()
	head := k.append(ticket, k.append(ticket, 0, "x"), "y")
	if seq := receive(k, "a hint", other); seq != head {
		k.Errorf("hint at %d, want %d", seq, head)
	}
	select {
	case seq := <-hints:
		k.Errorf("hint at %d after stop", seq)
	default:
	}
}
