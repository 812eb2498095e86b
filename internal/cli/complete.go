package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/protocol"
)

func newComplete(a *app) *cobra.Command {
	var (
		flags  resultFlags
		result protocol.Result
	)
	cmd := a.leaseCommand("complete LEASE",
		"Hand in the result and close the handoff",
		`Complete closes the handoff with a result: an object from a file (-f; see "handoff
schema result"), a text (--text) or JSON (--body), and what else the flags say.
Something must be given; --text "" where there is nothing to say.

A result that breaks the package's output schema, or is too large, fails the
attempt instead (exit code 9), and the handoff is tried again while attempts remain.

A result whose LEASE is lost changes nothing any more (exit code 7), and is kept
beside the handoff all the same: "handoff result TICKET --late" shows it.`,
		`  handoff complete "$LEASE" -f result.json
  handoff complete "$LEASE" --text "looks good" --artifact report=report.md
  my-tool | handoff complete "$LEASE" --text -`,
		[]string{"a LEASE"},
		func(ctx context.Context, s holder, lease string) (protocol.State, error) {
			return s.Complete(ctx, lease, result)
		})
	flags.declare(cmd.Flags(), true)
	// Read before the engine is asked for anything: a file that cannot be read
	// is no failed attempt.
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) (err error) {
		// A forgotten -f must not close the handoff with nothing: its result
		// could not be handed in any more.
		if !slices.ContainsFunc(resultFlagNames, cmd.Flags().Changed) {
			return usagef("complete needs a result: -f FILE, --text or --body (--text \"\" for an empty one)")
		}
		result, err = flags.build(a)
		return err
	}
	return cmd
}
