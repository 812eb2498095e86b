package cli

import (
	"context"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/protocol"
)

func newProgress(a *app) *cobra.Command {
	var (
		progress protocol.Progress
		details  string
		flags    usageFlags
	)
	cmd := a.leaseCommand("progress LEASE",
		"Report from within the work",
		`Progress records how far the work has come, for all that ask for the status, and
what this attempt has used so far.`,
		`  handoff progress "$LEASE" --percent 40 --message "12 of 30 files"`,
		[]string{"a LEASE"},
		func(ctx context.Context, s holder, lease string) (protocol.State, error) {
			progress.Usage = flags.given()
			return s.Progress(ctx, lease, progress)
		})
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if !utf8.ValidString(details) {
			return protocol.Errorf(protocol.CodeText, "details", "holds bytes that are no UTF-8")
		}
		if details != "" {
			progress.Details = jsonOrText(details)
		}
		return nil
	}
	cmd.Flags().Float64Var(&progress.Percent, "percent", 0, "how much is done, 0 to 100")
	cmd.Flags().StringVar(&progress.Message, "message", "", "in words")
	flags.declare(cmd.Flags())
	cmd.Flags().StringVar(&details, "details", "", "whatever else; JSON if it parses, else text")
	return cmd
}
