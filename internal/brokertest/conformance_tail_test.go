package brokertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

var tailCases = []conformanceCase{
	{"the ledger's end is never behind an append", ledgerEnd},
	{"a tail has what is there, and then what comes", tailGoesOn},
	{"a tail from 0 begins with what there is", tailFromZero},
	{"a tail has no gap while many write", tailWhole},
	{"a tail from behind the end is another ledger's", tailBeyond},
	{"a tail stops with the caller's error", tailStops},
	{"a tail ends with its context", tailEnds},
	{"closing ends a tail", tailCloses},
	{"the first entry since an instant", sinceInstant},
}

// from returns the place before a sequence, and behind the last entries of the other partitions.
func (k *kit) from(seq uint64) broker.Cursor {
	k.Helper()
	l, err := k.LedgerInfo(k.ctx)
	k.must(err)
	from := l.End()
	from.Begin(seq)
	return from
}

// tailOn is Tail, and goes on where a replica lags behind the leader, as readers do. It checks that no
// entry is left out.
func (k *kit) tailOn(from broker.Cursor, fn func(broker.Entry) error) error {
	from = slices.Clone(from)
	for {
		err := k.Tail(k.ctx, from, func(e broker.Entry) error {
			if next := from.Next(broker.PartitionOf(e.Seq)); next > 0 && e.Seq != next {
				return fmt.Errorf("%d came in place of %d", e.Seq, next)
			}
			err := fn(e)
			if err == nil {
				from.Pass(e.Seq)
			}
			return err
		})
		if !errors.Is(err, broker.ErrUnreachable) {
			return err
		}
		k.Logf("the tail goes on from %v: %v", from, err)
	}
}

func ledgerEnd(k *kit) {
	var created time.Time
	for range 50 {
		seq := k.append(protocol.NewTicket(), 0, "x")
		l, err := k.LedgerInfo(k.ctx)
		k.must(err)
		if !l.End().Passed(seq) || l.Begin().Passed(seq) || l.First < 1 {
			k.Fatalf("the ledger has %v to %v after append %d", l.Begin(), l.End(), seq)
		}
		if !created.IsZero() && !l.Created.Equal(created) {
			k.Fatalf("made at %v, a moment ago at %v", l.Created, created)
		}
		created = l.Created
	}
}

func tailGoesOn(k *kit) {
	ticket := protocol.NewTicket()
	first := k.append(ticket, 0, "0")
	head, n := first, 1
	stop := errors.New("enough")
	got := 0
	k.wantErr(k.tailOn(k.from(first), func(e broker.Entry) error {
		if e.Ticket != ticket {
			return nil
		}
		if string(e.Body) != fmt.Sprint(got) || e.At.IsZero() || e.At.Location() != time.UTC {
			return fmt.Errorf("entry %d is %q, stored at %v", got, e.Body, e.At)
		}
		if got++; got == 20 {
			return stop
		}
		head = k.append(ticket, head, fmt.Sprint(n))
		n++
		return nil
	}), stop)
}

func tailFromZero(k *kit) {
	mine := k.append(protocol.NewTicket(), 0, "x")
	l, err := k.LedgerInfo(k.ctx)
	k.must(err)
	stop := errors.New("enough")
	var seen broker.Cursor
	k.wantErr(k.tailOn(nil, func(e broker.Entry) error {
		p := broker.PartitionOf(e.Seq)
		if first := l.Partitions()[p].First; seen.Next(p) == 0 && e.Seq != first {
			return fmt.Errorf("it began at %d, the ledger at %d", e.Seq, first)
		}
		seen.Pass(e.Seq)
		if e.Seq == mine {
			return stop
		}
		return nil
	}), stop)
}

func tailWhole(k *kit) {
	const writers, each = 8, 50
	from := k.from(k.append(protocol.NewTicket(), 0, "x"))
	wrote := make(chan error, writers)
	tickets := map[string]int{}
	for range writers {
		ticket := protocol.NewTicket()
		tickets[ticket] = 0
		go func() {
			var head uint64
			var err error
			for i := range each {
				if head, err = k.Append(k.ctx, ticket, head, fmt.Sprint(i), "", []byte(fmt.Sprint(i))); err != nil {
					break
				}
			}
			wrote <- err
		}()
	}
	stop := errors.New("enough")
	left := writers * each
	k.wantErr(k.tailOn(from, func(e broker.Entry) error {
		if n, mine := tickets[e.Ticket]; mine {
			if string(e.Body) != fmt.Sprint(n) {
				return fmt.Errorf("%q came where %d was due", e.Body, n)
			}
			tickets[e.Ticket]++
			left--
		}
		if left == 0 {
			return stop
		}
		return nil
	}), stop)
	for range writers {
		k.must(receive(k, "the end of a writer", wrote))
	}
}

func tailBeyond(k *kit) {
	k.append(protocol.NewTicket(), 0, "x")
	k.wantErr(k.Tail(k.ctx, broker.From(1<<40), func(e broker.Entry) error {
		if broker.PartitionOf(e.Seq) > 0 { // is read from its first entry on, until the tail ends
			return nil
		}
		return fmt.Errorf("entry %d", e.Seq)
	}), broker.ErrLedgerChanged)
}

func tailStops(k *kit) {
	from := k.append(protocol.NewTicket(), 0, "x")
	stop := errors.New("enough")
	calls := 0
	k.wantErr(k.tailOn(k.from(from), func(broker.Entry) error { calls++; return stop }), stop)
	if calls != 1 {
		k.Errorf("%d calls, want one", calls)
	}
}

// tailing begins a tail and returns once it has had its first entry. A tail that the engine ends before is
// begun again, as its callers do.
func tailing(k *kit, ctx context.Context) <-chan error {
	from := k.append(protocol.NewTicket(), 0, "x")
	began, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for has := false; ; {
			err := k.Tail(ctx, broker.From(from), func(e broker.Entry) error {
				if e.Seq == from {
					has = true
					close(began)
				}
				return nil
			})
			if has || !errors.Is(err, broker.ErrUnreachable) {
				ended <- err
				return
			}
		}
	}()
	receive(k, "the first entry", began)
	return ended
}

func tailEnds(k *kit) {
	ctx, cancel := context.WithCancel(k.ctx)
	ended := tailing(k, ctx)
	cancel()
	k.wantErr(receive(k, "the end of the tail", ended), context.Canceled)
	_, err := k.LedgerInfo(ctx)
	k.wantErr(err, context.Canceled)
	k.wantErr(k.Tail(ctx, nil, func(broker.Entry) error { return nil }), context.Canceled)
}

func tailCloses(k *kit) {
	c, ok := k.Engine.(io.Closer)
	if !ok {
		k.Skip("it cannot be closed")
	}
	ended := tailing(k, k.ctx)
	k.must(c.Close())
	k.wantErr(receive(k, "the end of the tail", ended), broker.ErrUnreachable)
	_, err := k.LedgerInfo(k.ctx)
	k.wantErr(err, broker.ErrUnreachable)
	k.wantErr(k.Tail(k.ctx, nil, func(broker.Entry) error { return nil }), broker.ErrUnreachable)
}

func sinceInstant(k *kit) {
	ticket := protocol.NewTicket()
	first := k.append(ticket, 0, "1")
	before, err := k.Last(k.ctx, ticket, first)
	k.must(err)
	at := before.At.Add(1)
	later, err := k.Since(k.ctx, at.Add(time.Hour))
	k.must(err)
	l, err := k.LedgerInfo(k.ctx)
	k.must(err)
	if !later.Passed(first) {
		k.Errorf("since an hour from now it is %v, and the ledger ends at %v", later, l.End())
	}
	second := k.append(ticket, first, "2")
	since, err := k.Since(k.ctx, at)
	k.must(err)
	if !since.Passed(first) || since.Passed(second) {
		k.Errorf("since %v it is %v; %d was there before, %d came after", at, since, first, second)
	}
	since, err = k.Since(k.ctx, time.Unix(0, 0))
	k.must(err)
	if l, err = k.LedgerInfo(k.ctx); err != nil || !slices.Equal(since, l.Begin()) {
		k.Errorf("since ever it is %v, and the ledger begins at %v (%v)", since, l.Begin(), err)
	}
}
