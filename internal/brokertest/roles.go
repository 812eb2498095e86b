package brokertest

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// The actions of sources, workers and operators in tests. Each function ends the test if it fails.

// Over returns a broker with the defaults over an engine.
func Over(t testing.TB, engine broker.Engine) *broker.Broker {
	t.Helper()
	b, err := broker.New(engine, broker.Config{})
	must(t, err)
	return b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Register makes agents with empty profiles.
func Register(t testing.TB, b *broker.Broker, agents ...string) {
	t.Helper()
	for _, agent := range agents {
		must(t, b.PutProfile(t.Context(), protocol.Profile{ID: agent}))
	}
}

// Update appends what decide returns to the head of a ticket.
func Update(ctx context.Context, b *broker.Broker, ticket string, decide broker.Decider) (broker.Head, bool, error) {
	head, err := b.Head(ctx, ticket, 0)
	if err != nil {
		return broker.Head{}, false, err
	}
	return b.Update(ctx, head, decide)
}

// Submit submits a package. Its source is lead and its target coder, unless it names others.
func Submit(t testing.TB, b *broker.Broker, pkg protocol.Package) broker.Head {
	t.Helper()
	pkg.Source, pkg.Reason = cmp.Or(pkg.Source, "lead"), cmp.Or(pkg.Reason, "the plan stands")
	pkg.Task.Description = cmp.Or(pkg.Task.Description, "write it")
	if to := pkg.Target; to.Agent == "" && to.Capability == "" && len(to.Agents) == 0 && len(pkg.Members) == 0 {
		pkg.Target.Agent = "coder"
	}
	prepared, err := b.Prepare(t.Context(), pkg)
	must(t, err)
	head, err := b.Submit(t.Context(), prepared)
	must(t, err)
	return head
}

// PutHolder makes a holder of ten slots, whose presence lasts for its lease and is not renewed.
func PutHolder(t testing.TB, b *broker.Broker, agent string, lease time.Duration) protocol.Holder {
	t.Helper()
	h := protocol.Holder{ID: protocol.NewTicket(), Agent: agent, LeaseMS: lease.Milliseconds(), Slots: 10}
	must(t, b.Beat(t.Context(), h))
	return h
}

// Offer waits for an offer in an agent's queue.
func Offer(t testing.TB, b *broker.Broker, agent string) *broker.Offer {
	t.Helper()
	offers, err := b.Pull(t.Context(), agent, 1, 24*time.Hour)
	if err != nil || len(offers) != 1 {
		t.Fatalf("pull for %s: %d offers, %v", agent, len(offers), err)
	}
	return offers[0]
}

// Accept waits for an offer to the holder's agent, beats and accepts it. It skips an offer that
// has lapsed by then.
func Accept(t testing.TB, b *broker.Broker, h protocol.Holder) *broker.Claim {
	t.Helper()
	for {
		offer := Offer(t, b, h.Agent)
		must(t, b.Beat(t.Context(), h))
		claim, err := offer.Acknowledge(t.Context(), h, protocol.Ack{Status: protocol.AckAccepted}, true)
		if !errors.Is(err, broker.ErrOfferGone) {
			must(t, err)
			return claim
		}
	}
}

// Wait blocks until the state of a handoff meets cond, or ctx ends. It returns the last state that it
// read. It waits on while an engine that it has reached cannot be reached.
func Wait(ctx context.Context, b *broker.Broker, ticket string, cond func(protocol.State) bool) (protocol.State, error) {
	hints, stop, err := b.Feed(ctx, ticket) // before the first read, so that no append in between is missed
	if err != nil {
		return protocol.State{}, err
	}
	defer stop()
	var last broker.Head
	for {
		head, err := b.Head(ctx, ticket, last.Seq)
		switch {
		case err != nil && ctx.Err() != nil:
			return last.State, ctx.Err()
		case last.Seq > 0 && errors.Is(err, broker.ErrUnreachable) && !errors.Is(err, broker.ErrClosed):
			head = last
		case err != nil:
			return last.State, err
		case cond(head.State):
			return head.State, nil
		}
		last = head
		select {
		case <-ctx.Done():
			return last.State, ctx.Err()
		case <-hints:
		case <-time.After(1500 * time.Millisecond): // the feed may lose hints
		}
	}
}

// Closed is the condition of most waiters.
func Closed(s protocol.State) bool { return s.Closed }

// Until waits until the state of a handoff meets cond.
func Until(t testing.TB, b *broker.Broker, ticket string, cond func(protocol.State) bool) protocol.State {
	t.Helper()
	state, err := Wait(t.Context(), b, ticket, cond)
	if err != nil {
		t.Fatalf("wait for %s: %v; %s, %s, %s", ticket, err, state.Phase, state.Reason, state.Message)
	}
	return state
}

// Status returns the state of a handoff.
func Status(t testing.TB, b *broker.Broker, ticket string) protocol.State {
	t.Helper()
	state, err := b.Status(t.Context(), ticket)
	must(t, err)
	return state
}

// History returns the appends of a handoff, and for each the types of its events, joined by sep.
func History(t testing.TB, b *broker.Broker, ticket, sep string) (appends []protocol.Change, events []string) {
	t.Helper()
	appends, err := b.History(t.Context(), ticket)
	must(t, err)
	for _, a := range appends {
		var names []string
		for _, e := range a.Record.Events {
			names = append(names, string(e.EventType()))
		}
		events = append(events, strings.Join(names, sep))
	}
	return appends, events
}
