package cli

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

func newWait(a *app) *cobra.Command {
	var o waitOptions
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
--tree waits for everything that follows from the handoff: what it hands off, the
members of groups, the chains of all of these. The exit code is that of the end of its
own chain. Should the wait end before, it names what is still open (with -o json in
"open"). Handoffs that merely name one of these as their parent are not waited for.

` + gatewayHelp + ` It waits until closed, accepted or asked.

Exit codes: 0 closed with success (or accepted, asked); 4 still open when the timeout
passed; 5 closed without success; 3 no such ticket.`,
		Example: `  handoff wait 5f0c…
  handoff wait 5f0c… --chain
  handoff wait 5f0c… --tree --timeout 1h
  handoff wait 5f0c… --timeout 30s --until accepted
  handoff wait 5f0c… --timeout 10m --cancel-on-timeout`,
		Args: takes("a TICKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd.Flags().Changed); err != nil {
				return err
			}
			through, err := a.throughGateway(cmd, o.gateway, "cancel-on-timeout", "tree")
			if err != nil {
				return err
			}
			if through && o.until == untilReturned {
				return usagef("--until %s does not go through a gateway: closed, accepted and asked do", o.until)
			}
			ticket, err := a.throughTicket(cmd.Context(), through, args[0])
			if err != nil {
				return err
			}
			if o.tree {
				return a.waitTree(cmd.Context(), ticket, o.limit)
			}
			o.gateway = through
			return a.wait(cmd.Context(), ticket, o)
		},
	}
	durationVar(cmd.Flags(), &o.timeout, "timeout", 0, "stop waiting after this; 0s looks once (default: no limit)")
	cmd.Flags().StringVar(&o.until, "until", "closed", strings.Join(untilWords, ", "))
	cmd.Flags().BoolVar(&o.cancel, "cancel-on-timeout", false, "ask for the handoff's end when the timeout passes")
	chainFlag(cmd, &o.chain, "wait for the end of the chain")
	cmd.Flags().BoolVar(&o.tree, "tree", false, "wait for everything that follows from the handoff")
	gatewayFlag(cmd, &o.gateway)
	a.words(cmd, "until", untilWords...)
	return cmd
}

// untilReturned is to wait for the end and for what becomes of the return.
const untilReturned = "returned"

var untilWords = []string{"closed", "accepted", "asked", untilReturned}

func (a *app) wait(ctx context.Context, ticket string, o waitOptions) error {
	s, done, err := a.source(ctx, o.gateway, a.env("HANDOFF_AGENT"))
	if err != nil {
		return err
	}
	defer done()
	wait := waitFor
	if o.chain {
		wait = waitForChain
	}
	state, err := wait(ctx, s, ticket, o.limit, o.until)
	if o.cancel && is[*openError](err) {
		state, err = cancelLate(ctx, s, ticket, state, o.chain)
	}
	if state.Ticket == "" {
		return err
	}
	if is[*openError](err) && !o.chain && lifecycle.AwaitsChain(state) {
		err = openReturn(context.WithoutCancel(ctx), s, state)
	}
	if !a.text() {
		return errors.Join(a.valueWithMembers(ctx, s, state), err)
	}
	a.printf("%s  %s\n", state.Ticket, a.phase(state))
	if o.until == untilReturned {
		if words := cmp.Or(a.endOfReturn(ctx, s.b, state), noReturn(state)); words != "" {
			a.printf("return  %s\n", words)
		}
	}
	a.warn(state)
	a.noteChain(state, "wait")
	return err
}
