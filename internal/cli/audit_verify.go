package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker/audit"
	"github.com/agenthandoff/handoff/internal/explain"
)

func newAuditVerify(a *app) *cobra.Command {
	var against, writers bool
	cmd := &cobra.Command{
		Use:   "verify [FILE|DIR]…",
		Short: "Check that the audit trail is whole and was not changed",
		Long: `Verify without arguments reads the whole ledger: every entry must name the hash of the
handoff's entry before it, its events must lead to the state that it holds, and none may
be missing. Every package and result in the object store must be there and have its digest.
With files of "handoff audit export", or the directory of an archive, it checks
the same there, needs no engine, and finds lines that were changed, removed or moved, and
an end that is missing.

It lists what is wrong: file and line, the entry's number, the ticket, what it is. With -o
json or jsonl it prints a report for each argument.

A handoff whose beginning was dropped for its age is counted and is no problem. What was
changed with everything behind it written anew shows only against another copy:
--against-ledger compares the directory of an archive with the ledger, entry by entry.

--writers also lists entries with an event that is not among those that the role named by
its "by" makes: a result by a client, an end by an agent. A client that may append has
said what is not its own to say. A forged entry that names the right role is not found.

Exit codes: 0 all is well; 1 something is wrong, or a file cannot be read; 6 no engine.`,
		Example: `  handoff audit verify
  handoff audit verify t17.jsonl
  handoff audit verify /srv/handoff-audit --against-ledger
  handoff audit verify /srv/handoff-audit -o json | jq .[0].problems`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if against && len(args) == 0 {
				return usagef("--against-ledger needs the DIR of an archive; see %s --help", cmd.CommandPath())
			}
			var checks []audit.Check
			if writers {
				checks = append(checks, audit.CheckWriters)
			}
			return a.auditVerify(cmd.Context(), args, against, checks...)
		},
	}
	cmd.Flags().BoolVar(&against, "against-ledger", false, "compare each DIR with the ledger, too")
	cmd.Flags().BoolVar(&writers, "writers", false, "check that each event is one that its maker makes, too")
	return cmd
}

func (a *app) auditVerify(ctx context.Context, paths []string, against bool, checks ...audit.Check) error {
	var views []verifyView
	if len(paths) == 0 {
		report, err := a.overLedger(ctx, func(ctx context.Context, ledger audit.Ledger, progress func(seq, last uint64)) (audit.Report, error) {
			return audit.VerifyLedger(ctx, ledger, progress, checks...)
		})
		if err != nil {
			return err
		}
		views = append(views, verifyView{"ledger", report})
	}
	for _, path := range paths {
		report, err := audit.VerifyFiles(a.path(path), func(at, of uint64) {
			a.notef("handoff: %s: %d of %d MiB of a file\n", path, at>>20, of>>20)
		}, checks...)
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		views = append(views, verifyView{path, report})
		if !against {
			continue
		}
		report, err = a.overLedger(ctx, func(ctx context.Context, ledger audit.Ledger, progress func(seq, last uint64)) (audit.Report, error) {
			return audit.VerifyAgainst(ctx, a.path(path), ledger, progress)
		})
		if err != nil {
			return err
		}
		views = append(views, verifyView{path + " against the ledger", report})
	}
	found := 0
	for i := range views {
		found += views[i].Found
		views[i].Problems = orEmpty(views[i].Problems)
	}
	if err := a.reports(views); err != nil {
		return err
	}
	if found > 0 {
		return fmt.Errorf("%s in the audit trail", explain.Count(found, "problem"))
	}
	return nil
}

func (a *app) overLedger(ctx context.Context, verify func(context.Context, audit.Ledger, func(seq, last uint64)) (audit.Report, error)) (audit.Report, error) {
	b, done, err := a.connect(ctx)
	if err != nil {
		return audit.Report{}, err
	}
	defer done()
	return verify(ctx, b, func(seq, last uint64) { a.notef("handoff: read %d of %d entries\n", seq, last) })
}
