package brokertest

import (
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// testUsage: every way in which an attempt says what it has used counts once, and is priced.
func testUsage(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(3)
	r.must(r.b.PutProfile(r.ctx, protocol.Profile{ID: to[1], Price: &protocol.Price{InMicros: 1_000_000, OutMicros: 2_000_000}}))
	used := func(ticket string, want protocol.Usage) {
		r.Helper()
		if got := r.state(ticket).Usage.Total(); got != want {
			r.Errorf("used %+v, want %+v", got, want)
		}
	}
	ticket := r.submit(pkg(to[0], to[1])).Ticket

	claim := r.accept(to[1])
	report := protocol.Usage{TokensIn: 10, TokensOut: 5}
	entries := len(r.entries(ticket))
	for range 3 {
		r.must(claim.Spend(r.ctx, report))
	}
	if got := len(r.entries(ticket)); got != entries+1 {
		r.Errorf("a report that is repeated is %d appends", got-entries)
	}
	used(ticket, protocol.Usage{TokensIn: 10, TokensOut: 5, Tokens: 15, CostMicros: 20})
	r.must(claim.Progress(r.ctx, protocol.Progress{Percent: 1, Usage: &protocol.Usage{Calls: 2, Tokens: 20}}))
	used(ticket, protocol.Usage{TokensIn: 10, TokensOut: 5, Tokens: 20, CostMicros: 30, Calls: 2})

	// It is taken from its holder, whose result comes late: what is more than it had said counts.
	_, err := r.b.Reroute(r.ctx, ticket, to[2], "lead", "again", time.Time{})
	r.must(err)
	other := r.accept(to[2])
	r.wantErr(claim.Spend(r.ctx, protocol.Usage{Tokens: 500}), broker.ErrLeaseLost)
	r.wantErr(claim.Complete(r.ctx, protocol.Result{Usage: &protocol.Usage{Tokens: 50, CostMicros: 40}}), broker.ErrLeaseLost)
	used(ticket, protocol.Usage{TokensIn: 10, TokensOut: 5, Tokens: 50, CostMicros: 40, Calls: 2})
	r.must(other.Complete(r.ctx, protocol.Result{Usage: &protocol.Usage{Tokens: 7, CostMicros: 1}}))
	used(ticket, protocol.Usage{TokensIn: 10, TokensOut: 5, Tokens: 57, CostMicros: 41, Calls: 2})

	// A result that waits, one that is refused, and a rollback have been used as well.
	ticket = r.submit(pkg(to[0], to[1])).Ticket
	waits := protocol.Result{Usage: &protocol.Usage{Tokens: 3, CostMicros: 1}, Command: &protocol.Command{Await: []byte(`[{"agent":"` + to[0] + `","task":"t"}]`)}}
	r.must(r.accept(to[1]).Complete(r.ctx, waits))
	used(ticket, protocol.Usage{Tokens: 3, CostMicros: 1})
	r.must(r.accept(to[0]).Complete(r.ctx, protocol.Result{}))

	refused := pkg(to[0], to[1])
	refused.Expectations.OutputSchema = []byte(`{"type":"object"}`)
	ticket = r.submit(refused).Ticket
	claim = r.accept(to[1])
	if err := claim.Complete(r.ctx, protocol.Result{Body: []byte(`1`), Usage: &protocol.Usage{Tokens: 9, CostMicros: 2}}); err == nil {
		r.Error("a result that breaks its schema was taken")
	}
	used(ticket, protocol.Usage{Tokens: 9, CostMicros: 2})

	ticket = r.submit(pkg(to[1], to[0])).Ticket
	r.must(r.accept(to[0]).RollBack(r.ctx, "no", &protocol.Result{Usage: &protocol.Usage{Calls: 1}}))
	used(ticket, protocol.Usage{Calls: 1})
}
