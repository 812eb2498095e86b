package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Bidder is an optional interface of a Handler that bids for work. Bid is called for a
// call for bids, in the place of Handle and of Acknowledge; it shall look, not work. call
// describes the work. The window ends at call.BidUntil, and ctx a little later.
//
// Refuse makes no bid. Any other error, and a bid that breaks the rules
// (protocol.Bid.Validate), is none either. A Handler that is no Bidder makes the bid of
// Handoff.DefaultBid.
type Bidder interface {
	Bid(ctx context.Context, h Handoff, call protocol.Call) (protocol.Bid, error)
}

// bid answers a call for bids: the result is the bid.
func (r *run) bid(h Handoff) (protocol.Result, error) {
	call, err := protocol.ReadCall(h.Package)
	if err != nil {
		return protocol.Result{}, Permanent(err)
	}
	bid := h.DefaultBid(call)
	if bidder, is := r.w.handler.(Bidder); is {
		ctx := broker.WithTrace(r.ctx, h.Trace)
		bid, err = recoverPanic(r.log, func() (protocol.Bid, error) { return bidder.Bid(ctx, h, call) })
	}
	if err == nil {
		if err = bid.Validate(); err != nil {
			err = &Failure{Code: "invalid_bid", Permanent: true, Err: err}
		}
	}
	if err != nil {
		return protocol.Result{}, err
	}
	body, err := protocol.Marshal(bid)
	return protocol.Result{Body: body}, err
}

// DefaultBid returns a bid from the figures of the worker. The cost is that of the package's
// tokens at the price of the profile, the time the mean of the handoffs that this worker has
// completed, once more for each of its slots' worth of work in hand, and the confidence the
// proficiency in the capability. An unknown figure is left out.
func (h Handoff) DefaultBid(call protocol.Call) protocol.Bid {
	var bid protocol.Bid
	if h.r == nil {
		return bid
	}
	w := h.r.w
	profile := w.profile.Load()
	if profile == nil {
		return bid
	}
	for _, c := range profile.Capabilities {
		if c.ID == call.Capability {
			sure := c.Proficiency
			bid.Confidence = &sure
		}
	}
	if bid.Confidence == nil && profile.Specialization == call.Capability {
		sure := 1.0
		bid.Confidence = &sure
	}
	if profile.Price != nil {
		cost := profile.Price.Of(protocol.Usage{TokensIn: call.EstimatedTokens}).CostMicros
		bid.CostMicros = &cost
	}
	if mean := w.worked.mean(); mean > 0 {
		others, slots := max(0, w.runs.len()-1), max(1, int(w.slotCount.Load()))
		eta := min(int64(float64(mean.Milliseconds())*(1+float64(others)/float64(slots))), protocol.EstimateMaxMS)
		bid.ETAMS = &eta
	}
	return bid
}

// workTime is how long the handoffs took that a worker has completed.
type workTime struct{ sum, count atomic.Int64 }

func (t *workTime) add(d time.Duration) {
	t.sum.Add(int64(d))
	t.count.Add(1)
}

func (t *workTime) mean() time.Duration {
	return time.Duration(t.sum.Load() / max(1, t.count.Load()))
}

// Bid runs the program for bids, and reads the bid that it prints. It implements Bidder. Without such
// a program, and where it prints nothing, it is the DefaultBid.
func (e *Exec) Bid(ctx context.Context, h Handoff, call protocol.Call) (protocol.Bid, error) {
	if len(e.cfg.Bid) == 0 {
		return h.DefaultBid(call), nil
	}
	p := &program{cfg: e.cfg, command: e.cfg.Bid, log: h.logger().With("bid", true), input: h.Raw, env: environment(e.cfg, h, "")}
	state, err := p.run(ctx)
	if err != nil {
		return protocol.Bid{}, err
	}
	last := cmp.Or(p.stderr.last(), state.String())
	switch code := state.ExitCode(); {
	case code == exitRejected:
		return protocol.Bid{}, Reject(last, "")
	case code == exitCannotRun, code == exitNotFound:
		return protocol.Bid{}, Stop(fmt.Errorf("%s cannot run (%s): %s", e.cfg.Bid[0], state, last))
	case code != exitComplete:
		return protocol.Bid{}, &Failure{Code: fmt.Sprintf("exit_%d", code), Permanent: true, Err: errors.New(p.message(state))}
	case p.stdout.buf.Len() == 0:
		return h.DefaultBid(call), nil
	}
	bid, err := protocol.DecodeBid(p.stdout.buf.Bytes())
	if err != nil {
		return protocol.Bid{}, &Failure{Code: "invalid_bid", Permanent: true, Err: fmt.Errorf("the bid that %s has printed: %w", e.cfg.Bid[0], err)}
	}
	return bid, nil
}
