package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/internal/audit"
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
With files of "handoff audit export", or a directory of its files, it checks
the same there, needs no engine, and finds lines that were changed, removed or moved, and
an end that is missing.

It lists each problem with its file and line, the entry's number and the ticket. With -o
json or jsonl it prints a report for each argument.

A handoff whose beginning was dropped for its age is counted and is no problem. A change
after which all later entries were rewritten shows only against another copy:
--against-ledger compares a directory of exports with the ledger, entry by entry.

--writers also lists entries with an event that is not among those that the role named
by its "by" makes: a result by a client, an end by an agent. A forged entry that names
the right role is not found.

Exit codes: 0 all is well; 1 something is wrong, or a file cannot be read; 6 no engine.`,
		Example: `  handoff audit verify
  handoff audit verify t17.jsonl
  handoff audit verify /srv/handoff-audit --against-ledger
  handoff audit verify /srv/handoff-audit -o json | jq .[0].problems`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if against && len(args) == 0 {
				return usagef("--against-ledger needs the DIR of an export; see %s --help", cmd.CommandPath())
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
		report, err := a.auditVerifyLedger(ctx, checks...)
		if err != nil {
			return err
		}
		views = append(views, verifyView{"ledger", report})
	}
	for _, path := range paths {
		report, err := a.auditVerifyFiles(ctx, path, against, checks...)
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
		views = append(views, verifyView{path, report})
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

func (a *app) auditVerifyFiles(ctx context.Context, path string, against bool, checks ...audit.Check) (audit.Report, error) {
	progress := func(at, of uint64) {
		a.notef("handoff: %s: %d of %d MiB of a file\n", path, at>>20, of>>20)
	}
	if !against {
		return audit.VerifyFiles(a.path(path), progress, checks...)
	}
	b, done, err := a.connect(ctx)
	if err != nil {
		return audit.Report{}, err
	}
	defer done()
	return audit.VerifyAgainst(ctx, a.path(path), b, progress, checks...)
}

func (a *app) auditVerifyLedger(ctx context.Context, checks ...audit.Check) (audit.Report, error) {
	b, done, err := a.connect(ctx)
	if err != nil {
		return audit.Report{}, err
	}
	defer done()
	return audit.VerifyLedger(ctx, b, func(seq, last uint64) { a.notef("handoff: read %d of %d entries\n", seq, last) }, checks...)
}

// verifyView is a report and its subject.
type verifyView struct {
	What string `json:"what"` // "ledger" or a path
	audit.Report
}

func (a *app) reports(views []verifyView) error {
	if !a.text() {
		return list(a, views)
	}
	var errs []error
	for _, v := range views {
		what := v.What
		if what == "ledger" {
			what = "the ledger"
		}
		a.printf("%s: %s\n", what, reportWords(v.Report))
		for _, note := range v.Notes {
			a.printf("  %s\n", note)
		}
		if len(v.Problems) == 0 {
			continue
		}
		errs = append(errs, a.table(rowsOf("WHERE|ENTRY|TICKET|WHAT|WORDS", v.Problems, func(p audit.Problem) []any {
			return []any{problemPlace(p), number(p.Seq), p.Ticket, p.Kind, p.Message}
		})))
		if more := v.Found - len(v.Problems); more > 0 {
			a.printf("and %d more\n", more)
		}
	}
	return errors.Join(errs...)
}

func reportWords(r audit.Report) string {
	if r.Entries == 0 && r.Found == 0 {
		return "no entries"
	}
	text := fmt.Sprintf("%d entries", r.Entries)
	if r.Entries == 1 {
		text = "1 entry"
	}
	if r.Handoffs > 0 {
		text += " of " + explain.Count(r.Handoffs, "handoff")
	}
	text += fmt.Sprintf(", from %d to %d", r.FirstSeq, r.LastSeq)
	if r.WithoutBeginning > 0 {
		text += fmt.Sprintf(", %d of them without their beginning", r.WithoutBeginning)
	}
	if r.Compared > 0 {
		text += fmt.Sprintf(", %d of them compared with the ledger", r.Compared)
	}
	if r.Newer > 0 {
		text += fmt.Sprintf(", %d with events of a newer version, which were not replayed", r.Newer)
	}
	if r.Found == 0 {
		return text + ": all is well"
	}
	return text + ": " + explain.Count(r.Found, "problem")
}

func problemPlace(p audit.Problem) string {
	if p.File == "" {
		return "ledger"
	}
	return fmt.Sprintf("%s:%d", filepath.Base(p.File), p.Line)
}

func number(n uint64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}
