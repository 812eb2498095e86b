package explain

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// bid lists the cost, the time, the confidence and the conditions of a bid.
func bid(b protocol.Bid) string {
	var words []string
	if b.CostMicros != nil {
		words = append(words, fmt.Sprintf("cost %g", float64(*b.CostMicros)/1e6))
	}
	if b.ETAMS != nil {
		words = append(words, "in "+(time.Duration(*b.ETAMS)*time.Millisecond).String())
	}
	if b.Confidence != nil {
		words = append(words, fmt.Sprintf("%d %% sure", int(math.Round(*b.Confidence*100))))
	}
	for _, c := range b.Conditions {
		words = append(words, "if "+c)
	}
	return strings.Join(words, ", ")
}

// bids lists the bids with their scores, and the agents that made none.
func bids(said protocol.AwardTerms) string {
	var words []string
	for _, b := range said.Bids {
		words = append(words, fmt.Sprintf("%s %.2f (%s)", b.Agent, b.Score, bid(b.Bid)))
	}
	if len(said.Refused) > 0 {
		words = append(words, "no bid of "+enumerate(said.Refused))
	}
	return strings.Join(words, "; ")
}

// Bidding returns the agents that are asked for bids, or the ranking of the bids. It is empty for a
// handoff that asks for none.
func Bidding(s protocol.State) string {
	b := s.Bidding
	if b == nil {
		return ""
	}
	asked := Is(enumerate(b.Calls), len(b.Calls))
	switch {
	case b.AwardedAt.IsZero() && s.Closed:
		return fmt.Sprintf("%s asked, and it closed before they were compared", asked)
	case b.AwardedAt.IsZero():
		return fmt.Sprintf("%s asked, until %s", asked, Instant(b.Until))
	case b.Winner == "":
		return fmt.Sprintf("too few: %d of %d", len(b.Bids), s.Bids.Fewest())
	}
	words := make([]string, len(b.Bids))
	for i, bid := range b.Bids {
		words[i] = fmt.Sprintf("%s %.2f", bid.Agent, bid.Score)
	}
	return fmt.Sprintf("%s of %s", strings.Join(words, ", "), Count(len(b.Calls), "agent"))
}

// Calls returns the tickets of the calls for bids; none before the calls are made.
func Calls(s protocol.State) []string {
	if s.Bidding == nil {
		return nil
	}
	tickets := make([]string, len(s.Bidding.Calls))
	for n := range tickets {
		tickets[n] = protocol.CallTicket(s.Ticket, n)
	}
	return tickets
}

// BidAnswer reports whether the bid of a call won or lost; it is empty while the bid is undecided.
func BidAnswer(answer protocol.BidAnswer, agent string) string {
	switch {
	case answer == protocol.BidWon:
		return "the bid won"
	case answer == protocol.BidLost && agent != "":
		return "the bid lost to that of " + agent
	case answer == protocol.BidLost:
		return "the bid lost"
	}
	return ""
}
