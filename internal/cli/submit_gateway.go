package cli

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/dossier"
	"github.com/agenthandoff/handoff/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// submitThroughGateway submits as the source of the package.
func (a *app) submitThroughGateway(cmd *cobra.Command, flags packageFlags, lines linesFlags, limit *time.Duration) error {
	if lines.of(flags.file) {
		return usagef("a file of lines does not go through a gateway: submit its packages one by one")
	}
	pkg, err := flags.build(cmd.Flags().Changed, a, time.Now())
	if err != nil {
		return err
	}
	if pkg.Source == "" {
		return usagef("--gateway needs to know which agent asks: set HANDOFF_AGENT, or give --from")
	}
	ctx, agent, given := cmd.Context(), pkg.Source, pkg.CreatedAt
	pkg.Key = cmp.Or(pkg.Key, uuid.NewString()) // so that it may be sent again
	prepared, err := a.prepare(ctx, pkg)
	if err != nil {
		return flags.hint(err)
	}
	if prepared.Redacted > 0 {
		a.notef("handoff: secrets taken out of the package before it is sent: %d\n", prepared.Redacted)
	}
	sent, err := protocol.DecodePackage(prepared.Body)
	if err != nil {
		return err
	}
	// The same package sent again later is the same: its time is the gateway's to set, and
	// so is a priority that it takes over from its parent.
	sent.Priority = pkg.Priority
	sent.CreatedAt, sent.TraceParent, sent.TraceState = given, pkg.TraceParent, pkg.TraceState
	s, done, err := a.source(ctx, true, agent)
	if err != nil {
		return err
	}
	defer done()
	var state protocol.State
	err = a.ask(ctx, func(ctx context.Context) (err error) {
		state, err = s.Submit(ctx, sent)
		return err
	})
	if err != nil {
		return flags.hint(err)
	}
	if a.text() {
		a.printf("%s\n", state.Ticket)
	}
	if limit == nil {
		if a.text() {
			return nil
		}
		return a.value(dossier.StateOf(state))
	}
	state, err = waitFor(ctx, s, state.Ticket, *limit, string(api.UntilClosed))
	if !a.text() {
		return errors.Join(a.value(dossier.StateOf(state)), err)
	}
	if err == nil {
		a.notef("%s: %s\n", state.Ticket, explain.Ending(state))
	}
	return err
}
