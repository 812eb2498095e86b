package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
)

// beatView is what a heartbeat answers.
type beatView struct {
	Ticket string `json:"ticket"`
	broker.Signal
	Expires time.Time `json:"expires"`     // of the lease, without another heartbeat
	Trace   string    `json:"traceparent"` // of the work, or, until it is accepted, of the handoff
}

func (a *app) beat(beat api.Beat) error {
	if !a.text() {
		return a.value(beatView{beat.State.Ticket, beat.Signal, beat.Expires, a.traces.WorkContext(beat.State).Parent})
	}
	yes := map[bool]string{true: "yes"}
	cancel := "no"
	switch {
	case beat.CancelRequested && beat.Return:
		cancel = "yes, it goes back to its source: stop the work, clean up, then handoff rollback LEASE"
	case beat.CancelRequested:
		cancel = "yes: stop the work, then handoff release LEASE"
	}
	return a.fields("ticket", beat.State.Ticket, "cancel", cancel, "reminder", yes[beat.Reminded],
		"limit", strings.TrimSpace(explain.Instant(beat.Limit)+" "+string(beat.LimitClock)), "deadline", explain.Instant(beat.Deadline), "lease ends", explain.Instant(beat.Expires))
}

func newHeartbeat(a *app) *cobra.Command {
	var (
		extend time.Duration
		reason string
	)
	cmd := a.leaseCommand("heartbeat LEASE",
		"Say that you are still at it, and hear what has changed",
		`Heartbeat prolongs the LEASE by the --lease it was claimed with, and answers whether
the handoff is to be cancelled (stop, then "handoff release" or "handoff fail") or to
go back to its source (clean up, then "handoff rollback LEASE"), whether most of the
time is used up (reminder), when the first clock takes the handoff away and which one
that is (limit: work, return or deadline; acknowledge or queue until it is accepted),
and the deadline. With -o json it also says which span of a trace the work is (traceparent, as W3C Trace Context has it), for agents that
trace what they do.

--extend asks for more time, as an answer to a reminder. The work may take that much
longer, but never past the clocks of those who wait for it (return, deadline). It is
granted once in an attempt; the answer says until when, or why not (exit code 9).`,
		`  handoff heartbeat "$LEASE"
  handoff heartbeat "$LEASE" --extend 10m --reason "the tests take longer"
  handoff heartbeat "$LEASE" -o json | jq .cancel_requested`,
		[]string{"a LEASE"},
		nil)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.onHolder(cmd.Context(), args[0], func(ctx context.Context, s holder) error {
			beat, err := s.Heartbeat(ctx, api.Heartbeat{Lease: args[0], Extend: extend, Reason: reason})
			if err != nil {
				return leaseRefusal(args[0], err)
			}
			return a.beat(beat)
		})
	}
	fieldVar(cmd.Flags(), &extend, "extend", "the work takes this much longer; granted once, up to the return's clock and the deadline")
	cmd.Flags().StringVar(&reason, "reason", "", "why it takes longer; required with --extend")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case cmd.Flags().Changed("extend"):
			return needWords("reason", reason)
		case cmd.Flags().Changed("reason"):
			return usagef("--reason is for --extend")
		}
		return nil
	}
	return cmd
}
