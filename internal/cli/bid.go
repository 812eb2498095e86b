package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// bidFlags are the flags that make a bid.
type bidFlags struct {
	cost       costValue
	eta, valid time.Duration
	confidence float64
	conditions []string
	file       string
	refuse     string
}

func newBid(a *app) *cobra.Command {
	var (
		flags bidFlags
		bid   protocol.Bid
	)
	cmd := a.leaseCommand("bid LEASE",
		"Answer a call for bids: what the work would cost, or that you refuse",
		`Bid answers a call for bids, which "handoff claim" gives like any other handoff: the
variable "call" of its context says what the work is and until when bids are taken.
Say one of --cost, --eta and --confidence, or several; do not do the work. The
best bid gets it, as an offer of its own. "handoff status" of the call says what
has become of the bid: it won, or it lost to another.

With --refuse there is no bid, and the others decide.`,
		`  handoff bid "$LEASE" --cost 0.05 --eta 10m --confidence 0.9
  handoff bid "$LEASE" --eta 2h --valid 1h --condition "no tests of the browser"
  handoff bid "$LEASE" --refuse "this is Rust"
  ./estimate.sh | handoff bid "$LEASE" -f -`,
		[]string{"a LEASE"},
		func(ctx context.Context, s api.AgentOperations, lease string) (protocol.State, error) {
			if err := checkCall(ctx, s, lease); err != nil {
				return protocol.State{}, err
			}
			if flags.refuse != "" {
				return s.Acknowledge(ctx, lease, protocol.Ack{Status: protocol.AckRejected, Reason: flags.refuse})
			}
			return completeCall(ctx, s, lease, bid)
		})
	fs := cmd.Flags()
	fs.SortFlags = false // the flags that make a bid come first
	fs.Var(&flags.cost, "cost", "what the work would cost, as 0.03")
	fieldVar(fs, &flags.eta, "eta", "from the award to the result")
	fs.Float64Var(&flags.confidence, "confidence", 0, "how sure it is to succeed, `0 to 1`")
	fieldVar(fs, &flags.valid, "valid", "how long the bid stands after the award (default: until the deadline)")
	fs.StringArrayVar(&flags.conditions, "condition", nil, "on `WHAT` the bid rests, in words (repeatable)")
	fs.StringVarP(&flags.file, "file", "f", "", "read the bid from a JSON `FILE`, or stdin with -; flags replace its fields")
	fs.StringVar(&flags.refuse, "refuse", "", "make no bid, and say `WHY`")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) (err error) {
		bid, err = flags.build(a, cmd)
		return err
	}
	return cmd
}

// build makes the bid, before the engine is asked for anything.
func (f *bidFlags) build(a *app, cmd *cobra.Command) (bid protocol.Bid, err error) {
	given := cmd.Flags().Changed
	if given("refuse") {
		if f.refuse == "" {
			return bid, usagef("--refuse needs a reason")
		}
		return bid, nil
	}
	if f.file != "" {
		body, err := a.read(f.file)
		if err != nil {
			return bid, err
		}
		if bid, err = protocol.DecodeBid(body); err != nil {
			return bid, err
		}
	}
	if given("cost") {
		bid.CostMicros = (*int64)(&f.cost)
	}
	if given("eta") {
		eta := f.eta.Milliseconds()
		bid.ETAMS = &eta
	}
	if given("confidence") {
		bid.Confidence = &f.confidence
	}
	if given("valid") {
		bid.ValidMS = f.valid.Milliseconds()
	}
	bid.Conditions = append(bid.Conditions, f.conditions...)
	return bid, bid.Validate()
}

// checkCall refuses a LEASE of work: the bid would be taken for its result.
func checkCall(ctx context.Context, s api.AgentOperations, lease string) error {
	beat, err := s.Heartbeat(ctx, api.Heartbeat{Lease: lease})
	if err == nil && beat.State.CallOf == "" {
		return protocol.Errorf(protocol.CodeConflict, "lease", "is of work, not of a call for bids: accept it, refuse it or complete it")
	}
	return err
}

// completeCall accepts a call, which may be claimed only, and completes it with a bid.
func completeCall(ctx context.Context, s api.AgentOperations, lease string, bid protocol.Bid) (protocol.State, error) {
	body, err := protocol.Marshal(bid)
	if err != nil {
		return protocol.State{}, err
	}
	state, err := s.Acknowledge(ctx, lease, protocol.Ack{Status: protocol.AckAccepted})
	if err != nil {
		return state, err
	}
	return s.Complete(ctx, lease, protocol.Result{Body: body})
}
