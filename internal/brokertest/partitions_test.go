package brokertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// TestGrowth adds partitions to a ledger in use. Handoffs that exist stay where they are, also for a
// process that learns of the partitions later, and a follower gets the entries of the new ones.
func TestGrowth(t *testing.T) {
	n := startNode(t, embedded.Config{})
	ensure(t, n.ClientURL(), jetstream.Topology{})
	open := func() *kit {
		e, err := jetstream.Dial(t.Context(), jetstream.DialConfig{URL: n.ClientURL(), Config: jetstream.Config{AckWait: AckWait, MapAge: time.Second}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		ctx, cancel := context.WithTimeout(t.Context(), 2*waitTimeout)
		t.Cleanup(cancel)
		return &kit{T: t, Engine: e, ctx: ctx}
	}
	k, other := open(), open()
	agents := []string{"a-agent", "b-agent", "c-agent", "d-agent", "e-agent"}
	first := map[string]uint64{}
	for i := range 20 {
		for _, ticket := range []string{protocol.NewTicket(), protocol.TicketForKey("source", fmt.Sprint(i))} {
			seq, err := k.Append(k.ctx, ticket, 0, "first "+ticket, "", []byte("x"))
			k.must(err)
			first[ticket] = seq
		}
	}
	var moved broker.OfferKey
	for ticket, seq := range first {
		moved = broker.OfferKey{Agent: agents[0], Lane: protocol.Normal, Ticket: ticket, Sequence: seq}
		break
	}
	k.must(k.PutOffer(k.ctx, moved, []byte("x")))
	followed := make(chan broker.Entry, 1_000)
	go func() {
		_ = k.tailOn(nil, func(e broker.Entry) error { followed <- e; return nil })
	}()
	ensure(t, n.ClientURL(), jetstream.Topology{Partitions: 4, GrowAfter: 3 * time.Second})

	k.until("the new partitions to be used", func() bool {
		l, err := other.LedgerInfo(k.ctx)
		k.must(err)
		seq := other.append(protocol.NewTicket(), 0, "x")
		return len(l.Others) == 3 && broker.PartitionOf(seq) > 0
	})
	seen := map[int]bool{}
	for i := range 40 {
		ticket := protocol.TicketForKey("source", fmt.Sprint("new ", i))
		seq := k.append(ticket, 0, "x")
		seen[broker.PartitionOf(seq)] = true
		if head, err := other.Last(k.ctx, ticket, 0); err != nil || head.Seq != seq {
			t.Errorf("entry %d of a new handoff is %d to another process (%v)", seq, head.Seq, err)
		}
	}
	if len(seen) != 4 {
		t.Errorf("new handoffs are in the partitions %v", seen)
	}
	third := open()
	for ticket, seq := range first {
		for _, e := range []*kit{k, other, third} {
			if head, err := e.Last(e.ctx, ticket, 0); err != nil || head.Seq != seq {
				t.Errorf("%s is at %d, not at %d (%v)", ticket, head.Seq, seq, err)
			}
			if head, err := e.Next(e.ctx, ticket, 0); err != nil || head.Seq != seq {
				t.Errorf("%s begins at %d, not at %d (%v)", ticket, head.Seq, seq, err)
			}
			if again, err := e.Append(e.ctx, ticket, 0, "first "+ticket, "", []byte("x")); err != nil || again != seq {
				t.Errorf("%s, begun again, is at %d, not at %d (%v)", ticket, again, seq, err)
			}
			if _, err := e.Append(e.ctx, ticket, 0, "another", "", []byte("y")); !errors.Is(err, broker.ErrConflict) {
				t.Errorf("%s was begun twice: %v", ticket, err)
			}
		}
		if next := other.append(ticket, seq, "y"); broker.PartitionOf(next) != 0 {
			t.Errorf("%s goes on at %d", ticket, next)
		}
		k.must(k.Arm(k.ctx, ticket, seq, time.Now()))
	}
	tickets := map[string]bool{}
	k.must(third.Heads(k.ctx, func(e broker.Entry) error { tickets[e.Ticket] = true; return nil }))
	got := map[string]bool{}
	for len(got) < len(tickets) {
		got[receive(k, "an entry", followed).Ticket] = true
	}
	for _, agent := range agents { // a supervisor queues them again
		key := broker.OfferKey{Agent: agent, Lane: moved.Lane, Ticket: moved.Ticket, Sequence: moved.Sequence}
		k.must(other.PutOffer(k.ctx, key, []byte("x")))
		k.must(k.EnsureQueue(k.ctx, agent))
		offers, err := k.Pull(k.ctx, agent, 1, waitTimeout)
		k.must(err)
		if len(offers) != 1 || offers[0].Key() != key {
			t.Fatalf("%s got %v", agent, offers)
		}
		k.must(offers[0].Remove())
		k.must(k.RemoveOffer(k.ctx, key)) // also where it was before
	}
	left := 0
	k.must(k.Offers(k.ctx, "", func(broker.OfferKey) error { left++; return nil }))
	if left > 0 {
		t.Errorf("%d offers are left", left)
	}
	if err := jetstream.EnsureTopology(k.ctx, jsAt(t, n.ClientURL()).Conn(), jetstream.Topology{Partitions: 2}); !errors.Is(err, &protocol.Error{Code: protocol.CodeConflict}) {
		t.Errorf("fewer partitions: %v", err)
	}
}
