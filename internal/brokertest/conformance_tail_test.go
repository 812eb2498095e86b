package brokertest

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// tailOn is Tail, and goes on where a replica lags behind the leader, as readers do.
func (k *kit) tailOn(from uint64, fn func(broker.Entry) error) error {
	for {
		err := k.Tail(k.ctx, from, func(e broker.Entry) error {
			err := fn(e)
			if err == nil {
				from = e.Seq + 1
			}
			return err
		})
		if !errors.Is(err, broker.ErrUnreachable) {
			return err
		}
		k.Logf("the tail goes on from %d: %v", from, err)
	}
}

func ledgerEnd(k *kit) {
	var created time.Time
	for range 50 {
		seq := k.append(protocol.NewTicket(), 0, "x")
		l, err := k.LedgerInfo(k.ctx)
		k.must(err)
		if l.Last < seq || l.First < 1 || l.First > seq {
			k.Fatalf("the ledger has %d to %d after append %d", l.First, l.Last, seq)
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
	var last uint64
	got := 0
	k.wantErr(k.tailOn(first, func(e broker.Entry) error {
		if last == 0 && e.Seq != first || last != 0 && e.Seq != last+1 {
			return fmt.Errorf("%d came after %d, asked from %d", e.Seq, last, first)
		}
		last = e.Seq
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
	first := uint64(0)
	k.wantErr(k.tailOn(0, func(e broker.Entry) error {
		if first == 0 {
			first = e.Seq
		}
		if e.Seq == mine {
			return stop
		}
		return nil
	}), stop)
	if first != l.First {
		k.Errorf("it began at %d, the ledger at %d", first, l.First)
	}
}

func tailWhole(k *kit) {
	const writers, each = 8, 50
	from := k.append(protocol.NewTicket(), 0, "x")
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
	last, left := from-1, writers*each
	k.wantErr(k.tailOn(from, func(e broker.Entry) error {
		if e.Seq != last+1 {
			return fmt.Errorf("%d came after %d", e.Seq, last)
		}
		last = e.Seq
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
	k.wantErr(k.Tail(k.ctx, 1<<40, func(e broker.Entry) error { return fmt.Errorf("entry %d", e.Seq) }), broker.ErrLedgerChanged)
}

func tailStops(k *kit) {
	from := k.append(protocol.NewTicket(), 0, "x")
	stop := errors.New("enough")
	calls := 0
	k.wantErr(k.tailOn(from, func(broker.Entry) error { calls++; return stop }), stop)
	if calls != 1 {
		k.Errorf("%d calls, want one", calls)
	}
}

// tailing begins a tail and returns once it has had its first entry.
func tailing(k *kit, ctx context.Context) <-chan error {
	from := k.append(protocol.NewTicket(), 0, "x")
	began, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- k.Tail(ctx, from, func(e broker.Entry) error {
			if e.Seq == from {
				close(began)
			}
			return nil
		})
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
	k.wantErr(k.Tail(ctx, 0, func(broker.Entry) error { return nil }), context.Canceled)
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
	k.wantErr(k.Tail(k.ctx, 0, func(broker.Entry) error { return nil }), broker.ErrUnreachable)
}

func sinceInstant(k *kit) {
	ticket := protocol.NewTicket()
	first := k.append(ticket, 0, "1")
	before, err := k.Last(k.ctx, ticket, first)
	k.must(err)
	at := before.At.Add(1)
	_, err = k.Since(k.ctx, at.Add(time.Hour))
	k.wantErr(err, broker.ErrNotFound)
	second := k.append(ticket, first, "2")
	e, err := k.Since(k.ctx, at)
	k.must(err)
	if e.Seq <= first || e.Seq > second || e.At.Before(at) {
		k.Errorf("since %v it is entry %d, stored at %v; %d was there before, %d came after", at, e.Seq, e.At, first, second)
	}
	e, err = k.Since(k.ctx, time.Unix(0, 0))
	l, ledgerErr := k.LedgerInfo(k.ctx)
	k.must(errors.Join(err, ledgerErr))
	if e.Seq != l.First || e.Ticket == "" || len(e.Body) == 0 {
		k.Errorf("since ever it is entry %d of %q, and the ledger begins with %d", e.Seq, e.Ticket, l.First)
	}
}
