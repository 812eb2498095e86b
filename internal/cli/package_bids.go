package cli

import (
	"strconv"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
)

// declareBids declares the flags of a call for bids.
func (f *packageFlags) declareBids() {
	type pkg = protocol.Package
	own := func(p *pkg) *protocol.Bids { return orNew(&p.Bids) }
	asks := f.fs.Bool("bids", false, "ask agents with the --capability what they would do it for; it goes to the one with the best bid")
	f.millis("bid-window", "how long they may take to bid, 100ms to 1h (default 5s)", func(p *pkg) *int64 { return &own(p).WindowMS })
	most := f.fs.Int("bid-most", protocol.BiddersDefault, "ask at most `N` agents")
	f.onGiven("bid-most", func(p *pkg) { own(p).Most = *most })
	least := f.fs.Int("bid-least", 1, "with fewer than `N` bids no agent gets it by one, and the policy on_no_taker says what follows")
	f.onGiven("bid-least", func(p *pkg) { own(p).Least = *least })
	weights := new(weightsValue)
	f.fs.Var(weights, "bid-weights", "what counts in a bid, `cost=2,eta=1,confidence=0.5`; what is left out does not count (default: each counts the same)")
	f.onGiven("bid-weights", func(p *pkg) { own(p).Weights = (*protocol.BidWeights)(weights) })
	f.onGiven("bids", func(p *pkg) { // the last word, for --bids=false
		own(p)
		if !*asks {
			p.Bids = nil
		}
	})
}

// weightsValue is a flag of weights, as cost=2,eta=1.
type weightsValue protocol.BidWeights

func (w *weightsValue) String() string { return "" }

func (w *weightsValue) Type() string { return "WEIGHTS" }

func (w *weightsValue) Set(text string) error {
	of := map[string]*float64{"cost": &w.Cost, "eta": &w.ETA, "confidence": &w.Confidence}
	for _, part := range strings.Split(text, ",") {
		name, number, _ := strings.Cut(strings.TrimSpace(part), "=")
		weight, err := strconv.ParseFloat(number, 64)
		if of[name] == nil || err != nil {
			return protocol.Errorf(protocol.CodeInvalid, "", "%q is no weight; write cost=2,eta=1,confidence=0.5, or some of them", part)
		}
		*of[name] = weight
	}
	return nil
}
