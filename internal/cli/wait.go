package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/explain"
	"github.com/agenthandoff/handoff/protocol"
)

func newWait(a *app) *cobra.Command {
	var (
		timeout time.Duration
		until   string
		cancel  bool
		gateway bool
		chain   bool
	)
	cmd := &cobra.Command{
		Use:   "wait TICKET",
		Short: "Wait until a handoff is closed, accepted, asks, or has come back",
		Long: `Wait blocks until the handoff is closed, and prints how it ended. Without --timeout it
waits as long as that takes, through elections too. Waiting changes nothing, and any
number may wait. How long an engine may be silent before the wait has begun is not this
--timeout, but $HANDOFF_TIMEOUT (12s).

--until waits for something else, or for the end if that comes first: accepted (an
agent has taken it), asked (an agent wants an answer); returned (it is closed, and
its source has taken in the return, if one is expected). The last ends too when the
return cannot arrive any more: its source serves no queue, or refused it. What became
of the return is said then.

` + chainHelp + `

` + gatewayHelp + ` It waits until closed, accepted or asked.

Exit codes: 0 closed with success (or accepted, asked); 4 still open when the timeout
passed; 5 closed without success; 3 no such ticket.`,
		Example: `  handoff wait 5f0c…
  handoff wait 5f0c… --chain
  handoff wait 5f0c… --timeout 30s --until accepted
  handoff wait 5f0c… --timeout 10m --cancel-on-timeout`,
		Args: takes("a TICKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(untilWords, until) {
				return usagef("--until %s: wait until %s", until, strings.Join(untilWords, ", "))
			}
			limit := time.Duration(-1)
			if cmd.Flags().Changed("timeout") {
				limit = timeout
			}
			through, err := a.throughGateway(cmd, gateway, "cancel-on-timeout", "chain")
			if err != nil {
				return err
			}
			if through && until == untilReturned {
				return usagef("--until %s does not go through a gateway: closed, accepted and asked do", until)
			}
			ticket, err := a.throughTicket(cmd.Context(), through, args[0])
			if err != nil {
				return err
			}
			wait := waitFor
			if chain {
				wait = waitForChain
			}
			return a.wait(cmd.Context(), through, ticket, limit, until, cancel, wait)
		},
	}
	durationVar(cmd.Flags(), &timeout, "timeout", 0, "stop waiting after this; 0s looks once (default: no limit)")
	cmd.Flags().StringVar(&until, "until", "closed", strings.Join(untilWords, ", "))
	cmd.Flags().BoolVar(&cancel, "cancel-on-timeout", false, "ask for the handoff's end when the timeout passes")
	chainFlag(cmd, &chain, "wait for the end of the chain")
	gatewayFlag(cmd, &gateway)
	a.words(cmd, "until", untilWords...)
	return cmd
}

// waiter is waitFor, or waitForChain.
type waiter func(ctx context.Context, s *source, ticket string, limit time.Duration, until string) (protocol.State, error)

// untilReturned is to wait for the end and for what becomes of the return.
const untilReturned = "returned"

var untilWords = []string{"closed", "accepted", "asked", untilReturned}

func (a *app) wait(ctx context.Context, gateway bool, ticket string, limit time.Duration, until string, cancel bool, wait waiter) error {
	s, done, err := a.source(ctx, gateway, a.env("HANDOFF_AGENT"))
	if err != nil {
		return err
	}
	defer done()
	state, err := wait(ctx, s, ticket, limit, until)
	if cancel && is[*openError](err) {
		if state, err = s.Cancel(ctx, api.Cancel{Ticket: state.Ticket, Reason: "not done when the wait for it timed out"}); err == nil {
			err = failed(state)
		}
	}
	if state.Ticket == "" {
		return err
	}
	if !a.text() {
		return errors.Join(a.valueWithMembers(ctx, s.b, state), err)
	}
	a.printf("%s  %s\n", state.Ticket, a.phase(state))
	if until == untilReturned {
		if words := cmp.Or(a.endOfReturn(ctx, s.b, state), noReturn(state)); words != "" {
			a.printf("return  %s\n", words)
		}
	}
	a.warn(state)
	return err
}

// noReturn says why a closed handoff has no return to wait for.
func noReturn(s protocol.State) string {
	switch {
	case !s.Closed || s.ReturnExpected:
		return ""
	case s.ReturnOf != "":
		return "none: it is itself the return of " + s.ReturnOf
	}
	return fmt.Sprintf("none: %s expects none of a %s handoff (submit --return asks for one)", s.Source, s.Type)
}

// endOfReturn says what became of the return of a closed handoff.
func (a *app) endOfReturn(ctx context.Context, b *broker.Broker, s protocol.State) string {
	if !s.Closed || s.ReturnTicket == "" || s.ReturnedAt.IsZero() {
		return phrase(explain.Return(s))
	}
	ctx, cancel := a.asking(context.WithoutCancel(ctx))
	defer cancel()
	ret, err := b.Status(ctx, s.ReturnTicket)
	if err != nil || ret.Fence != 0 || !ret.Closed || ret.Outcome == protocol.OutcomeSuccess || ret.Outcome == protocol.OutcomePartial {
		return phrase(explain.Return(s))
	}
	return fmt.Sprintf("could not be delivered to %s: %s; handoff result %s --return prints it", s.Source, explain.Ending(ret), s.Ticket)
}
