package brokertest

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// AckWait is the ack wait that the engines under test are opened with, so that
// redelivery can be waited for.
const AckWait = time.Second

// waitTimeout bounds each wait of a case. It is no claim about speed.
const waitTimeout = time.Minute

// Run checks an engine against every sentence of the contract of broker.Engine.
// open returns an engine whose ack wait is AckWait; it may share its stores
// with those returned before, as every case uses tickets and agents of its
// own, and is closed by the case if it is an io.Closer.
func Run(t *testing.T, open func(t *testing.T) broker.Engine) { run(t, false, open) }

// run is Run; replicated, on three servers.
func run(t *testing.T, replicated bool, open func(t *testing.T) broker.Engine) {
	newCase := func(t *testing.T, timeout time.Duration) *kit {
		e := open(t)
		if c, ok := e.(io.Closer); ok {
			t.Cleanup(func() { _ = c.Close() })
		}
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		t.Cleanup(cancel)
		return &kit{T: t, Engine: e, ctx: ctx, replicated: replicated}
	}
	// Cases that follow the ledger or the due wake-ups share one consumer, so they run one
	// after another, and alone.
	t.Run("shared", func(t *testing.T) {
		for _, c := range slices.Concat(sharedCases, signalCases) {
			t.Run(c.name, func(t *testing.T) { c.run(newCase(t, 2*waitTimeout)) })
		}
	})
	t.Run("own", func(t *testing.T) {
		for _, cases := range [][]conformanceCase{ledgerCases, tailCases, queueCases, turnCases, directoryCases, blobCases, serveCases, everywhereCases, workspaceCases, recordCases} {
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					c.run(newCase(t, 2*waitTimeout))
				})
			}
		}
	})
	// Last, because they leave many queues behind, which replicas have to maintain.
	t.Run("families", func(t *testing.T) {
		for _, c := range slices.Concat(familyCases, familySizes, stuckCases) {
			t.Run(c.name, func(t *testing.T) { c.run(newCase(t, 10*waitTimeout)) })
		}
	})
}

type conformanceCase struct {
	name string
	run  func(k *kit)
}

// kit is what a case works with.
type kit struct {
	*testing.T
	broker.Engine
	ctx        context.Context
	replicated bool
}

func (k *kit) must(err error) {
	k.Helper()
	if err != nil {
		k.Fatal(err)
	}
}

func (k *kit) wantErr(err, want error) {
	k.Helper()
	if !errors.Is(err, want) {
		k.Fatalf("error %v, want one that is %v", err, want)
	}
}

// append appends with an id of its own.
func (k *kit) append(ticket string, after uint64, body string) uint64 {
	k.Helper()
	seq, err := k.Append(k.ctx, ticket, after, protocol.NewTicket(), lifecycle.AttentionNone, []byte(body))
	k.must(err)
	if seq <= after {
		k.Fatalf("sequence %d after %d", seq, after)
	}
	return seq
}

func (k *kit) agent() string { return "agent-" + protocol.NewTicket()[:8] }

func (k *kit) holder(agent string) protocol.Holder {
	return protocol.Holder{ID: protocol.NewTicket(), Agent: agent, LeaseMS: 60_000, Slots: 2}
}

// agentWithQueue returns an agent that can be pulled from.
func (k *kit) agentWithQueue() string {
	k.Helper()
	agent := k.agent()
	k.must(k.EnsureQueue(k.ctx, agent))
	return agent
}

// offer puts an offer with its own key for a body.
func (k *kit) offer(agent string, lane protocol.Priority) broker.OfferKey {
	k.Helper()
	key := broker.OfferKey{Agent: agent, Lane: lane, Ticket: protocol.NewTicket(), Sequence: 7}
	k.must(k.PutOffer(k.ctx, key, []byte("body of "+key.Ticket)))
	return key
}

// pull takes exactly n offers, in as many pulls as that needs.
func (k *kit) pull(agent string, n int) []broker.Delivery {
	k.Helper()
	var all []broker.Delivery
	for len(all) < n {
		got, err := k.Pull(k.ctx, agent, n-len(all), waitTimeout)
		k.must(err)
		if len(got) == 0 {
			k.Fatalf("%d offers, want %d", len(all), n)
		}
		all = append(all, got...)
	}
	return all
}

// noDelivery makes sure that there is nothing to pull.
func (k *kit) noDelivery(agent string) {
	k.Helper()
	got, err := k.Pull(k.ctx, agent, 1, 20*time.Millisecond)
	k.must(err)
	if len(got) > 0 {
		k.Fatalf("got offer %v, want none", got[0].Key())
	}
}

// until asks again until ok.
func (k *kit) until(what string, ok func() bool) {
	k.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(waitTimeout)
	defer end.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-end.C:
			k.Fatalf("not in %v: %s", waitTimeout, what)
		}
	}
}

// receive waits for one value.
func receive[T any](k *kit, what string, ch <-chan T) T {
	k.Helper()
	end := time.NewTimer(waitTimeout)
	defer end.Stop()
	select {
	case v := <-ch:
		return v
	case <-end.C:
		k.Fatalf("not in %v: %s", waitTimeout, what)
		panic("unreachable")
	}
}
