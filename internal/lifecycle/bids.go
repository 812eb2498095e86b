package lifecycle

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Bids: before the first offer of a handoff, some of the eligible agents are asked for their price
// (the gate GateBids). Each is asked by a call, a separate handoff, whose result is the bid. When
// all have answered, or the window is over, the best bid wins (Award). If its agent does not take
// the handoff, the next best follows.

// callBids returns the gate that asks for bids. A *protocol.Error reports that too few agents bid.
func callBids(ticket string, s *p.Summary, q Query, meta p.Meta) (*p.Gated, error) {
	asked := bidders(*s, q.forTicket(ticket))
	if least := s.Bids.Fewest(); len(asked) < least {
		return nil, p.Errorf(p.CodeNoAgent, "bids", "too few agents with %s that may have it make bids: %d of %d; set bids in the profiles of more, or leave bids out",
			s.Target.Capability, len(asked), least)
	}
	until := meta.At.Add(s.Bids.Window())
	if !s.Deadline.IsZero() && s.Deadline.Before(until) {
		until = s.Deadline
	}
	return &p.Gated{Meta: meta, Calls: asked, GateTerms: p.GateTerms{Waits: []p.GateKind{p.GateBids}, Offer: OfferSubmitted,
		Why: fmt.Sprintf("%d agents are asked for bids", len(asked)), Until: until}}, nil
}

// bidders returns the agents to ask: those that bid, available ones first, then in the order of
// choice. Absent agents are asked only if there are too few others.
func bidders(s p.Summary, q Query) (asked []string) {
	there := 0
	for _, c := range fitting(s, q, s.Excluded) {
		if profile, _ := q.Agent(c.Agent); !profile.Bids {
			continue
		}
		if c.standing > 0 {
			there++
		} else if there >= s.Bids.Fewest() {
			break
		}
		if asked = append(asked, c.Agent); len(asked) == s.Bids.Bidders() {
			break
		}
	}
	return asked
}

// asksForBids reports whether bids are asked for before the first offer of a handoff.
func asksForBids(s *p.State) bool {
	return s.Bids != nil && s.Bidding == nil && s.Target.Capability != "" && s.EscalationLevel == 0
}

// AwaitsBids reports whether a handoff waits for bids.
func AwaitsBids(s p.State) bool {
	return !s.Closed && !s.CancelRequested && s.Gate.First() == p.GateBids
}

// CallOf returns the summary of the call to an agent for a bid.
func CallOf(of p.State, pkg p.Package, digest string) p.Summary {
	s := pkg.Summarize(digest)
	s.CallOf, s.Trace = of.Ticket, traceAt(of, p.SpanHandoff, 0)
	return s
}

// CallEnd is the status of a call. Bid is nil while it is open, and if it ended without a bid.
type CallEnd struct {
	Ended bool
	Bid   *p.Bid
}

// Award compares the bids once all calls have ended, or the window is over. calls are in the order
// of the asked agents. The step is empty if the handoff does not wait for bids, or some are
// missing.
func Award(s p.State, q Query, calls []CallEnd) (Step, error) {
	if !AwaitsBids(s) || s.Bidding == nil {
		return Step{}, nil
	}
	over := hasPassed(q.Now, s.Bidding.Until)
	meta, said := p.Meta{At: q.Now, By: By}, p.AwardTerms{}
	for n, agent := range s.Bidding.Calls {
		var call CallEnd
		if n < len(calls) {
			call = calls[n]
		}
		switch {
		case call.Bid != nil:
			said.Bids = append(said.Bids, p.AwardedBid{Agent: agent, Bid: *call.Bid})
		case call.Ended || over:
			said.Refused = append(said.Refused, agent)
		default:
			return Step{}, nil
		}
	}
	rankBids(s.Ticket, s.Bids.Weighs(), said.Bids)
	if len(said.Bids) < s.Bids.Fewest() {
		return decideAfter(s, q, &p.Unawarded{Meta: meta, AwardTerms: said})
	}
	return decideAfter(s, q, &p.Awarded{Meta: meta, AwardTerms: said})
}

// bidDigits is the precision of scores.
const bidDigits = 1e6

// rankBids scores each bid and sorts the best first. Each part of a bid is compared with the best
// of the others: 1 is the best, 0.5 is twice as expensive or half as certain. A part that no bid
// has does not count; a part that one bid lacks is 0 for it. The ticket decides between equal bids.
func rankBids(ticket string, w p.BidWeights, bids []p.AwardedBid) {
	least := func(of func(p.Bid) *int64) func(p.Bid) (float64, bool) {
		best := int64(math.MaxInt64)
		said := false
		for _, b := range bids {
			if v := of(b.Bid); v != nil {
				best, said = min(best, *v), true
			}
		}
		return func(b p.Bid) (float64, bool) {
			v := of(b)
			switch {
			case v == nil:
				return 0, said
			case *v <= best:
				return 1, said
			}
			return float64(best) / float64(*v), said
		}
	}
	surest, said := 0.0, false
	for _, b := range bids {
		if c := b.Bid.Confidence; c != nil {
			surest, said = max(surest, *c), true
		}
	}
	parts := []struct {
		weight float64
		of     func(p.Bid) (float64, bool)
	}{
		{w.Cost, least(func(b p.Bid) *int64 { return b.CostMicros })},
		{w.ETA, least(func(b p.Bid) *int64 { return b.ETAMS })},
		{w.Confidence, func(b p.Bid) (float64, bool) {
			switch c := b.Confidence; {
			case c == nil:
				return 0, said
			case *c >= surest:
				return 1, said
			default:
				return *c / surest, said
			}
		}},
	}
	for i := range bids {
		score, weight := 0.0, 0.0
		for _, part := range parts {
			if worth, counts := part.of(bids[i].Bid); counts {
				score, weight = score+part.weight*worth, weight+part.weight
			}
		}
		if weight > 0 {
			score /= weight
		}
		bids[i].Score = math.Round(score*bidDigits) / bidDigits
	}
	slices.SortStableFunc(bids, func(a, b p.AwardedBid) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(turnOf(ticket, a.Agent), turnOf(ticket, b.Agent)), cmp.Compare(a.Agent, b.Agent))
	})
}

// nextBidder returns the agent with the best remaining bid among those that are fit now.
func nextBidder(s p.State, q Query, excluded []string) (p.Routing, bool) {
	routing := p.Routing{Excluded: excluded, Revision: q.revision()}
	now, from, wanted := s.UpdatedAt, edgesOf(s.Summary, q.Directory), demandOf(s.Summary, q.Directory)
	if q.Now.After(now) {
		now = q.Now
	}
	for _, b := range s.Bidding.Bids {
		c, ok := q.candidate(b.Agent, s.Ticket, &s.Summary, wanted, from, excluded)
		if !ok || hasPassed(now, b.Until) {
			continue
		}
		c.Score = b.Score
		routing.Candidates = append(routing.Candidates, c.Candidate)
		if routing.Choice == "" {
			routing.Choice, routing.Warnings = b.Agent, c.warnings
		}
	}
	return routing, routing.Choice != ""
}

// byBids returns the agent of a handoff by its bids. settled is false if the handoff is routed in
// another way: no bids were asked for, or its policy lets it wait for any agent.
func byBids(s p.State, q Query, excluded []string) (routing p.Routing, ok, settled bool) {
	if s.Bidding == nil || s.Bidding.AwardedAt.IsZero() {
		return p.Routing{}, false, false
	}
	if s.Bidding.Winner != "" { // otherwise there were too few bids
		routing, ok = nextBidder(s, q, excluded)
	}
	return routing, ok, ok || s.Policy.OnNoTaker != p.NoTakerQueue
}

// tooFewBids returns the reason if too few bids were made; ok is false otherwise.
func tooFewBids(s p.State) (why reason, ok bool) {
	if s.Bidding == nil || s.Reason != reasonTooFewBids {
		return reason{}, false
	}
	return reason{code: reasonTooFewBids}.withCount(len(s.Bidding.Bids), s.Bids.Fewest()), true
}

// AwaitsBidAnswer reports whether a call has made a bid whose result its agent does not know.
func AwaitsBidAnswer(s p.State) bool {
	return s.CallOf != "" && s.Closed && s.BidAnswer == "" && closedPhase[s.Outcome] == p.Complete
}

// NotifiesCaller reports whether a call has ended, and the handoff that it is for should learn of
// it.
func NotifiesCaller(s p.State) bool { return s.CallOf != "" && s.Closed && s.BidAnswer == "" }

// LeavesCalls reports whether a handoff closed while it waited for bids: its calls are cancelled.
func LeavesCalls(s p.State) bool {
	return s.Closed && s.Bidding != nil && s.Bidding.AwardedAt.IsZero()
}

// AnswerBid reports the result of a bid to its agent. of is the handoff that the bid is for; the
// zero State means that it no longer exists. The step is empty while that handoff waits for bids.
func AnswerBid(call, of p.State, now time.Time) (Step, error) {
	if !AwaitsBidAnswer(call) || AwaitsBids(of) {
		return Step{}, nil
	}
	answer := &p.BidAnswered{Meta: p.Meta{At: now, By: By}, Answer: p.BidLost}
	if b := of.Bidding; b != nil {
		if answer.Agent = b.Winner; b.Winner != "" && b.Winner == call.Target.Agent {
			answer.Answer = p.BidWon
		}
	}
	return StepOf(call, answer)
}

var (
	staleAwarded     = when("it waits for no bids", func(s *p.State, _ *p.Awarded) bool { return s.Gate.First() != p.GateBids })
	staleUnawarded   = when("it waits for no bids", func(s *p.State, _ *p.Unawarded) bool { return s.Gate.First() != p.GateBids })
	staleBidAnswered = when("that was already reported", func(s *p.State, _ *p.BidAnswered) bool { return s.BidAnswer != "" })
)

// beginBidding records the agents that a gate asks for bids.
func beginBidding(s *p.State, e *p.Gated) error {
	asks := slices.Contains(e.Waits, p.GateBids)
	switch {
	case !asks && len(e.Calls) == 0:
		return nil
	case !asks || len(e.Waits) > 1 || s.Bidding != nil || s.Bids == nil || len(e.Calls) == 0 || len(e.Calls) > p.BiddersMax || e.Until.IsZero():
		return fmt.Errorf("%w: gated for bids of %d agents until %s, and waits for %v", ErrIllegal, len(e.Calls), e.Until, e.Waits)
	}
	s.Bidding = &p.Bidding{Calls: e.Calls, Until: e.Until}
	return nil
}

func applyAwarded(s *p.State, e *p.Awarded) error {
	if len(e.Bids) == 0 {
		return fmt.Errorf("%w: awarded, and there is no bid", ErrIllegal)
	}
	if err := endBidding(s, e.At, &e.AwardTerms); err != nil {
		return err
	}
	s.Bidding.Winner = e.Bids[0].Agent
	return nil
}

func applyUnawarded(s *p.State, e *p.Unawarded) error {
	s.Reason = reasonTooFewBids
	return endBidding(s, e.At, &e.AwardTerms)
}

// endBidding records the bids for a handoff.
func endBidding(s *p.State, at p.Time, said *p.AwardTerms) error {
	if s.Bidding == nil || len(said.Bids) > len(s.Bidding.Calls) {
		return fmt.Errorf("%w: %d bids, which were not asked for", ErrIllegal, len(said.Bids))
	}
	bidding := own(&s.Bidding)
	bidding.AwardedAt = at
	for _, b := range said.Bids {
		if !slices.Contains(bidding.Calls, b.Agent) {
			return fmt.Errorf("%w: a bid of %s, which was not asked", ErrIllegal, b.Agent)
		}
		ranked := p.RankedBid{Agent: b.Agent, Score: b.Score}
		if b.Bid.ValidMS > 0 {
			ranked.Until = at.Add(millis(b.Bid.ValidMS))
		}
		bidding.Bids = append(bidding.Bids, ranked)
	}
	s.Gate = nil
	return nil
}

func applyBidAnswered(s *p.State, e *p.BidAnswered) error {
	if s.CallOf == "" || e.Answer != p.BidWon && e.Answer != p.BidLost {
		return fmt.Errorf("%w: the answer %q to a bid, of a call for %q", ErrIllegal, e.Answer, s.CallOf)
	}
	s.BidAnswer = e.Answer
	return nil
}

// checkBidders checks that the agents that are asked for bids have queues.
func checkBidders(b *p.Bidding) error {
	switch {
	case b == nil:
		return nil
	case len(b.Calls) == 0 || len(b.Calls) > p.BiddersMax || len(b.Bids) > len(b.Calls):
		return fmt.Errorf("state.bidding: %d calls and %d bids", len(b.Calls), len(b.Bids))
	}
	for _, agent := range b.Calls {
		if err := p.CheckID("state.bidding.calls", agent); err != nil {
			return err
		}
	}
	return nil
}

// checkBids checks that the winner has made a bid, and that no call is answered before it has
// ended.
func checkBids(s p.State) error {
	b := s.Bidding
	switch {
	case s.BidAnswer != "" && !(s.CallOf != "" && s.Closed):
		return fmt.Errorf("answered %q, and is no call that has ended", s.BidAnswer)
	case b == nil && s.Gate.First() == p.GateBids:
		return fmt.Errorf("waits for bids of no agent")
	case b == nil:
		return nil
	case b.Winner != "" && (len(b.Bids) == 0 || b.Bids[0].Agent != b.Winner):
		return fmt.Errorf("awarded to %s, with the bids %+v", b.Winner, b.Bids)
	case !b.AwardedAt.IsZero() && s.Gate.First() == p.GateBids:
		return fmt.Errorf("awarded, and waits for bids")
	}
	return nil
}
