package lifecycle

import (
	"fmt"
	"strings"
	"testing"

	p "github.com/agenthandoff/handoff/protocol"
)

// award is what bids of some of the agents that were asked may lead to.
func (w *world) award(s p.State, m p.Meta, of p.EventType) p.Event {
	said := p.AwardTerms{}
	if s.Bidding != nil {
		for _, agent := range s.Bidding.Calls {
			if cost := int64(w.n(10)); w.n(3) > 0 {
				said.Bids = append(said.Bids, p.AwardedBid{Agent: agent, Score: 1, Bid: p.Bid{CostMicros: &cost, ValidMS: int64(w.n(3)) * 60_000}})
			}
		}
	}
	if of == p.EventUnawarded {
		return &p.Unawarded{Meta: m, AwardTerms: said}
	}
	return &p.Awarded{Meta: m, AwardTerms: said}
}

// TestRankBids ranks bids by their parts.
func TestRankBids(t *testing.T) {
	bid := func(agent string, cost, eta int64, confidence float64) p.AwardedBid {
		b := p.AwardedBid{Agent: agent}
		if cost >= 0 {
			b.Bid.CostMicros = &cost
		}
		if eta >= 0 {
			b.Bid.ETAMS = &eta
		}
		if confidence >= 0 {
			b.Bid.Confidence = &confidence
		}
		return b
	}
	for _, c := range []struct {
		name    string
		weights p.BidWeights
		bids    []p.AwardedBid
		want    []string
		scores  []float64
	}{
		{"the cheapest of equal confidence", p.BidWeights{Cost: 1, ETA: 1, Confidence: 1},
			[]p.AwardedBid{bid("a", 300, -1, 0.9), bid("b", 100, -1, 0.9), bid("c", 200, -1, 0.9)}, []string{"b", "c", "a"}, []float64{1, 0.75, 0.666667}},
		{"what no bid says does not count", p.BidWeights{Cost: 1, ETA: 9, Confidence: 1},
			[]p.AwardedBid{bid("a", 100, -1, -1), bid("b", 50, -1, -1)}, []string{"b", "a"}, []float64{1, 0.5}},
		{"what one does not say is 0 for it", p.BidWeights{Cost: 1, ETA: 1, Confidence: 1},
			[]p.AwardedBid{bid("a", 100, 1000, -1), bid("b", 100, -1, 1)}, []string{"a", "b"}, []float64{0.666667, 0.666667}},
		{"a weight of 0", p.BidWeights{Confidence: 1},
			[]p.AwardedBid{bid("a", 1, -1, 0.5), bid("b", 100, -1, 1)}, []string{"b", "a"}, []float64{1, 0.5}},
		{"a cost of nothing", p.BidWeights{Cost: 1, ETA: 1, Confidence: 1},
			[]p.AwardedBid{bid("a", 10, -1, -1), bid("b", 0, -1, -1)}, []string{"b", "a"}, []float64{1, 0}},
		{"no confidence at all", p.BidWeights{Cost: 1, ETA: 1, Confidence: 1},
			[]p.AwardedBid{bid("a", -1, -1, 0)}, []string{"a"}, []float64{1}},
	} {
		rankBids("ticket", c.weights, c.bids)
		for i, b := range c.bids {
			if c.name != "what one does not say is 0 for it" && b.Agent != c.want[i] || b.Score != c.scores[i] {
				t.Errorf("%s: place %d is %s with %g, want %s with %g", c.name, i, b.Agent, b.Score, c.want[i], c.scores[i])
			}
		}
	}
	// Equal bids are parted by the ticket: not by the order in which they came.
	wins := map[string]int{}
	for _, ticket := range []string{"1", "2", "3", "4", "5", "6", "7", "8"} {
		one, other := []p.AwardedBid{bid("a", 1, 1, 1), bid("b", 1, 1, 1)}, []p.AwardedBid{bid("b", 1, 1, 1), bid("a", 1, 1, 1)}
		weights := p.BidWeights{Cost: 1, ETA: 1, Confidence: 1}
		rankBids(ticket, weights, one)
		rankBids(ticket, weights, other)
		if one[0].Agent != other[0].Agent {
			t.Errorf("ticket %s: %s wins, and %s in another order", ticket, one[0].Agent, other[0].Agent)
		}
		wins[one[0].Agent]++
	}
	if len(wins) != 2 {
		t.Errorf("equal bids: %v", wins)
	}
}

// calls reads how the calls for bids stand: AGENT:COST[:VALID], AGENT:none of one that has ended
// without a bid. Of those that are not named nothing has come.
func (g *stage) calls(args []string) []CallEnd {
	g.t.Helper()
	if g.state.Bidding == nil {
		return nil
	}
	calls := make([]CallEnd, len(g.state.Bidding.Calls))
	for _, arg := range args {
		parts := strings.Split(arg, ":")
		asked := false
		for n, agent := range g.state.Bidding.Calls {
			if agent != parts[0] {
				continue
			}
			asked, calls[n].Ended = true, true
			if parts[1] == "none" {
				continue
			}
			bid := p.Bid{CostMicros: ptr(int64(g.numbers(parts[1:2])[0]))}
			if len(parts) > 2 {
				bid.ValidMS = g.duration(parts[2]).Milliseconds()
			}
			calls[n].Bid = &bid
		}
		if !asked {
			g.t.Fatalf("%s was not asked for a bid: %v", parts[0], g.state.Bidding.Calls)
		}
	}
	return calls
}

// caller is the handoff that a bid was made for: open, to, too_few or gone.
func (g *stage) caller(how string) p.State {
	switch how {
	case "open":
		return p.State{Ticket: "parent", Phase: p.AwaitingApproval, Gate: &p.Gate{GateTerms: p.GateTerms{Waits: []p.GateKind{p.GateBids}}}, Bidding: &p.Bidding{}}
	case "gone":
		return p.State{}
	case "too_few":
		return p.State{Ticket: "parent", Phase: p.PhaseRejected, Bidding: &p.Bidding{AwardedAt: g.now}}
	}
	return p.State{Ticket: "parent", Phase: p.Pending, Bidding: &p.Bidding{AwardedAt: g.now, Winner: how}}
}

func briefOfAward(said p.AwardTerms) string {
	words := ""
	for _, b := range said.Bids {
		words += fmt.Sprintf(" %s:%.2g", b.Agent, b.Score)
	}
	if len(said.Refused) > 0 {
		words += " without " + strings.Join(said.Refused, ",")
	}
	return words
}

// asksForBids has a package for a capability ask for bids, now and then.
func (w *world) asksForBids(s *p.Summary) {
	if s.Target.Capability != "" && w.n(3) == 0 {
		s.Bids = &p.Bids{WindowMS: one(w, int64(1_000), 60_000), Most: 1 + w.n(3), Weights: &p.BidWeights{Cost: 1}}
		s.Bids.Least = 1 + w.n(s.Bids.Most)
	}
}

// asksOneForABid makes a call of a package for an agent, now and then.
func (w *world) asksOneForABid(s *p.Summary) {
	if s.Target.Agent != "" && w.n(20) == 0 {
		s.CallOf, s.Limits, s.ReturnExpected, s.Wait = p.ReturnTicket("another"), nil, false, ""
	}
}

// calls are how the calls stand that a handoff waits for.
func (w *world) calls(s p.State) []CallEnd {
	calls := make([]CallEnd, len(s.Bidding.Calls))
	for i := range calls {
		if calls[i].Ended = w.n(4) > 0; calls[i].Ended && w.n(3) > 0 {
			cost := int64(w.n(10))
			calls[i].Bid = &p.Bid{CostMicros: &cost, ValidMS: int64(w.n(2)) * 60_000}
		}
	}
	return calls
}

// recorded is the event that records a child; nil is none.
func (h *thread) recorded(n int) *p.HandedOff {
	for _, entry := range h.log {
		for _, e := range entry.events {
			if e, ok := e.(*p.HandedOff); ok && e.N == n {
				return e
			}
		}
	}
	return nil
}
