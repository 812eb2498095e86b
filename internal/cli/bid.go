package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

func newBid(a *app) *cobra.Command {
	var (
		given, bid   protocol.Bid
		file, refuse string
	)
	cmd := a.leaseCommand("bid LEASE",
		"Answer a call for bids, or refuse to bid",
		`Bid answers a call for bids, which "handoff claim" gives like any other handoff: the
variable "call" of its context has the work and the end of the call. Give one of --cost,
--eta and --confidence, or several; do not do the work. The best bid gets it, as an offer
of its own. "handoff status" of the call shows if the bid won, or lost to another.

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
			if refuse != "" {
				return s.Acknowledge(ctx, lease, protocol.Ack{Status: protocol.AckRejected, Reason: refuse})
			}
			return completeCall(ctx, s, lease, bid)
		})
	fs := cmd.Flags()
	fs.SortFlags = false // the flags that make a bid come first
	flags := bind(fs, &given)
	fs.StringVarP(&file, "file", "f", "", "read the bid from a JSON `FILE`, or stdin with -; flags replace its fields")
	fs.StringVar(&refuse, "refuse", "", "make no bid, for the reason `WHY`")
	// The bid is made before the engine is asked for anything.
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("refuse") {
			if refuse == "" {
				return usagef("--refuse needs a reason")
			}
			return nil
		}
		if file != "" {
			var err error
			if bid, err = readAs(a, file, protocol.DecodeBid); err != nil {
				return err
			}
		}
		flags.over(&bid)
		return bid.Validate()
	}
	return cmd
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
