//go:build proof

package sim

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// The planted bugs of bids.
const (
	awardedTwice bug = "two awards"
	loserUntold  bug = "a bidder that is never told"
	bidMisjudged bug = "a bid misjudged"
)

// callsMin is how many calls for bids 200 simulations have at least.
const callsMin = 500

// bidders are the agents that make bids.
var bidders = []string{"a", "b", "c", "lead"}

// bidsKnown is what the judge knows of bids.
type bidsKnown struct {
	made    map[string]protocol.Bid // by call: the bid of its result
	awards  map[string]int          // by handoff: how often its bids were compared
	calls   int
	awarded int // to an agent
}

func newBidsKnown() bidsKnown {
	return bidsKnown{made: map[string]protocol.Bid{}, awards: map[string]int{}}
}

// planBids has some packages that name an agent call for bids in its place.
func (l *simulation) planBids(p *protocol.Package, d uint64) {
	if d%3 != 0 || !slices.Contains(bidders, p.Target.Agent) || strings.HasPrefix(p.Task.Description, knotPrefix) {
		return
	}
	p.Target = protocol.Target{Capability: "work"}
	p.Bids = &protocol.Bids{WindowMS: int64(500 + d>>8%40_000), Most: int(2 + d>>32%3), Least: int(1 + d>>40%2)}
	if d>>44%2 == 0 {
		p.Bids.Weights = &protocol.BidWeights{Cost: 2, Confidence: 1}
	}
	if p.Routing != nil {
		p.Routing.Ranked = nil
	}
}

// Bid bids, refuses, fails, or says nothing until it is too late.
func (h *handler) Bid(ctx context.Context, of worker.Handoff, _ protocol.Call) (protocol.Bid, error) {
	d := h.dice(of, "bid")
	select {
	case <-time.After(time.Duration(d%4_000_000) * time.Microsecond):
	case <-ctx.Done():
		return protocol.Bid{}, context.Cause(ctx)
	}
	cost, eta, sure := int64(d>>8%1000), int64(d>>24%100_000), float64(d>>40%100)/100
	bid := protocol.Bid{CostMicros: &cost, ETAMS: &eta, Confidence: &sure}
	switch d >> 48 % 12 {
	case 0:
		return bid, worker.Reject("not for me", "")
	case 1:
		return bid, errors.New("no luck")
	case 2:
		<-ctx.Done()
		return bid, context.Cause(ctx)
	case 3, 4:
		bid.ETAMS = nil
	case 5:
		bid.ValidMS = int64(1 + d>>52%20_000)
	case 6: // as good as another
		*bid.CostMicros, bid.Confidence, bid.ETAMS = 500, nil, nil
	}
	return bid, nil
}

// checkBids: a handoff is offered to no agent before its bids are compared, which happens once, when
// all calls have ended or the window is over; the best one is first; and each bidder is told the truth.
func (j *judge) checkBids(before, after protocol.State, events []protocol.Event) {
	if after.CallOf != "" {
		j.checkCall(after, events)
	}
	waits := slices.Contains(gateWaits(before), protocol.GateBids)
	for _, e := range events {
		switch e := e.(type) {
		case *protocol.Awarded:
			j.checkAward(before, e.AwardTerms, e.Bids[0].Agent)
			waits = false
		case *protocol.Unawarded:
			j.checkAward(before, e.AwardTerms, "")
			waits = false
		case *protocol.Offered:
			if waits && !after.CancelRequested {
				j.faultLocked("%s is offered to %s, and its bids are not compared", after.Ticket, e.Agent)
			}
		case *protocol.Gated:
			waits = slices.Contains(e.Waits, protocol.GateBids)
			j.bids.calls += len(e.Calls)
		case *protocol.Rerouted, *protocol.Escalated, *protocol.TimedOut, *protocol.Closed:
			waits = false
		}
	}
}

func gateWaits(s protocol.State) []protocol.GateKind {
	if s.Gate == nil {
		return nil
	}
	return s.Gate.Waits
}

// checkCall: a call is to the agent that its number says, and is answered once, as the award was.
func (j *judge) checkCall(call protocol.State, events []protocol.Event) {
	of := j.heads[call.CallOf].state
	for _, e := range events {
		switch e := e.(type) {
		case *protocol.Submitted:
			n := -1
			if of.Bidding != nil {
				n = slices.Index(of.Bidding.Calls, call.Target.Agent)
			}
			if n < 0 || call.Ticket != protocol.CallTicket(call.CallOf, n) {
				j.faultLocked("%s calls %s for a bid for %s, which was not asked", call.Ticket, call.Target.Agent, call.CallOf)
			}
		case *protocol.Completed:
			if result, err := protocol.DecodeResult(e.Result); err == nil {
				if bid, err := protocol.DecodeBid(result.Body); err == nil {
					j.bids.made[call.Ticket] = bid
				}
			}
		case *protocol.BidAnswered:
			if of.Bidding == nil || !of.Closed && of.Bidding.AwardedAt.IsZero() {
				j.faultLocked("%s is told what became of its bid for %s, which is not decided", call.Target.Agent, call.CallOf)
			} else if won := of.Bidding.Winner == call.Target.Agent; won != (e.Answer == protocol.BidWon) {
				j.faultLocked("%s is told that its bid for %s %s, and %q has won", call.Target.Agent, call.CallOf, e.Answer, of.Bidding.Winner)
			}
		}
	}
}

// checkAward checks what was compared with what the calls say.
func (j *judge) checkAward(before protocol.State, said protocol.AwardTerms, winner string) {
	if j.bids.awards[before.Ticket]++; j.bids.awards[before.Ticket] > 1 {
		j.faultLocked("%s is awarded twice, now to %q", before.Ticket, winner)
		return
	}
	if winner != "" {
		j.bids.awarded++
	}
	known := map[string]protocol.Bid{}
	open := 0
	for n, agent := range before.Bidding.Calls {
		ticket := protocol.CallTicket(before.Ticket, n)
		if bid, made := j.bids.made[ticket]; made {
			known[agent] = bid
		}
		if !j.heads[ticket].state.Closed {
			open++
		}
	}
	over := !time.Now().Before(before.Bidding.Until)
	if open > 0 && !over {
		j.faultLocked("%s is awarded, and %d calls are open", before.Ticket, open)
	}
	if !over && len(said.Bids) != len(known) {
		j.faultLocked("%s is awarded by %d bids of %d", before.Ticket, len(said.Bids), len(known))
	}
	if len(said.Bids)+len(said.Refused) != len(before.Bidding.Calls) || (winner == "") != (len(said.Bids) < before.Bids.Fewest()) {
		j.faultLocked("%s: %d bids and %d refusals of %d calls, awarded to %q", before.Ticket, len(said.Bids), len(said.Refused), len(before.Bidding.Calls), winner)
	}
	for i, b := range said.Bids {
		bid, made := known[b.Agent]
		if !made || !sameBid(bid, b.Bid) {
			j.faultLocked("%s is awarded by a bid of %s that it has not made", before.Ticket, b.Agent)
		}
		if worth := worthOf(b.Bid, said.Bids, before.Bids.Weighs()); math.Abs(worth-b.Score) > 1e-5 {
			j.faultLocked("%s: the bid of %s has the score %g, and is worth %g", before.Ticket, b.Agent, b.Score, worth)
		}
		if i > 0 && b.Score > said.Bids[i-1].Score {
			j.faultLocked("%s: the bid of %s is better than that of %s before it", before.Ticket, b.Agent, said.Bids[i-1].Agent)
		}
	}
}

func sameBid(a, b protocol.Bid) bool {
	x, err := protocol.Marshal(a)
	y, err2 := protocol.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(x, y)
}

// worthOf is the score of a bid, computed in another way than the core does: as products of ratios.
func worthOf(bid protocol.Bid, all []protocol.AwardedBid, w protocol.BidWeights) float64 {
	value := func(b protocol.Bid, part int) float64 { // the higher the better; -1 is not said
		switch {
		case part == 0 && b.CostMicros != nil:
			return 1 / math.Max(float64(*b.CostMicros), 1e-9)
		case part == 1 && b.ETAMS != nil:
			return 1 / math.Max(float64(*b.ETAMS), 1e-9)
		case part == 2 && b.Confidence != nil:
			return *b.Confidence
		}
		return -1
	}
	sum, of := 0.0, 0.0
	for part, weight := range []float64{w.Cost, w.ETA, w.Confidence} {
		best := -1.0
		for _, b := range all {
			best = math.Max(best, value(b.Bid, part))
		}
		if best < 0 {
			continue
		}
		of += weight
		switch own := value(bid, part); {
		case own == best: // also of 0 and 0
			sum += weight
		case own > 0:
			sum += weight * own / best
		}
	}
	if of == 0 {
		return 0
	}
	return sum / of
}

// checkBidders: when all is over no call is open, and each bidder knows what became of its bid.
func (j *judge) checkBidders() {
	for ticket, h := range j.heads {
		s := h.state
		if s.Bids != nil && s.Bidding == nil && s.Target.Capability != "" && !s.ClosedAt.Before(s.StartAt) {
			j.faultLocked("%s has bids, and no agent was asked", ticket)
		}
		if s.CallOf == "" {
			continue
		}
		if _, made := j.bids.made[ticket]; made && s.BidAnswer == "" {
			j.faultLocked("%s has made a bid for %s, and was not told what became of it", s.Target.Agent, s.CallOf)
		}
		if s.Inbox != "" || s.Attempt > 1 || s.Reroutes > 0 || s.EscalationLevel > 0 {
			j.faultLocked("the call %s is in the inbox of %q, after %d attempts, %d reroutes and %d escalations", ticket, s.Inbox, s.Attempt, s.Reroutes, s.EscalationLevel)
		}
	}
}

// owesBid tells whether a call with a bid waits to be told.
func (j *judge) owesBid(s protocol.State) bool {
	_, made := j.bids.made[s.Ticket]
	return made && s.BidAnswer == ""
}

// EnsureBids answers no bidder, where that is the planted bug.
func (f *faultyBroker) EnsureBids(ctx context.Context, head broker.Head) (broker.Head, error) {
	if f.bug == loserUntold && head.State.CallOf != "" {
		return head, nil
	}
	return f.Broker.EnsureBids(ctx, head)
}

// awardAgain appends an award once more, on what stands after it.
func (e *engine) awardAgain(ctx context.Context, ticket string, seq uint64, id string, body []byte) {
	if e.l.bug != awardedTwice || !bytes.Contains(body, []byte(`"type":"awarded"`)) {
		return
	}
	if again, err := e.Memory.AppendSilently(ctx, ticket, seq, id+" again", body); err == nil {
		e.l.appended(e.p, ticket, again, body)
	}
}

// misjudge makes the best bid of an award the worst.
func (l *simulation) misjudge(body []byte) []byte {
	if l.bug != bidMisjudged || !bytes.Contains(body, []byte(`"type":"awarded"`)) {
		return body
	}
	return bytes.ReplaceAll(body, []byte(`"score":1,`), []byte(`"score":0,`))
}
