package cli

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/audit"
	"github.com/agenthandoff/handoff/internal/explain"
)

func newAuditExport(a *app) *cobra.Command {
	var (
		filter auditFilter
		to     string
	)
	cmd := &cobra.Command{
		Use:   "export [DIR]",
		Short: "Write whole handoffs as audit records, one JSON object a line",
		Long: `Export writes every audit record of the chosen handoffs, and with them the ledger
entries behind the records, byte for byte: "handoff audit verify FILE" checks
them without an engine. It is JSON Lines, whatever -o is; the last line marks a complete
file. Without filters it has all handoffs of the ledger.

--source, --target, --since, --until and --type choose the handoffs that have such a record; a handoff is
always exported whole.

With a DIR it exports the ledger into files there, entry by entry. The first run writes
all entries, and each later run a file with the entries since: run it from a timer, and
the directory keeps entries that the ledger drops after 190 days. A file appears when it
is complete and on the disk; of a run that was cut short the next run writes the rest. A
directory belongs to one ledger. Check it with "handoff audit verify DIR
--against-ledger".

Exit codes: 0 it is complete; 1 DIR cannot go on: another ledger, an entry that was dropped
or is missing, a full disk; 3 no such ticket; 6 no engine or no index answers; 10 the index
is behind.`,
		Example: `  handoff audit export --task T-17 --to t17.jsonl
  handoff audit export --handoff-source lead --since 30d | gzip > lead.jsonl.gz
  handoff audit export | jq -r 'select(.event_type == "escalated") | .handoff_id'
  handoff audit export /srv/handoff-audit     # from a timer, every day`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return a.auditExport(cmd.Context(), &filter, to)
			case to != "" || !filter.all():
				return usagef("a DIR gets all entries of the ledger, and takes neither filters nor --to")
			}
			return a.auditExportDir(cmd.Context(), args[0])
		},
	}
	cmd.PreRunE = filter.preRun(a)
	filter.declare(cmd.Flags())
	cmd.Flags().StringVar(&to, "to", "", "write to this `FILE`, which must not exist; it appears when it is complete (default: stdout)")
	return cmd
}

// preRun is filter.check as cobra calls it, with whole tickets.
func (f *auditFilter) preRun(a *app) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		if err := f.check(); err != nil {
			return err
		}
		return a.tickets(cmd.Context(), f.Tickets)
	}
}

// auditExportDir continues a directory of exports.
func (a *app) auditExportDir(ctx context.Context, dir string) error {
	b, done, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	exported, err := audit.ExportDir(ctx, b, a.path(dir), func(seq, last uint64) {
		a.notef("handoff: exported %d of %d entries\n", seq, last)
	})
	switch {
	case exported.File != "":
		return errors.Join(a.line(exported, "%s: entries %d to %d\n", filepath.Join(dir, exported.File), exported.First, exported.Last), err)
	case err != nil:
		return err
	}
	return a.line(exported, "%s: nothing new after entry %d\n", dir, exported.Last)
}

func (a *app) auditExport(ctx context.Context, filter *auditFilter, to string) error {
	if to == "" && a.terminal {
		return a.exportTo(ctx, filter, terminalJSON{a.out})
	}
	if to == "" {
		out := bufio.NewWriterSize(a.out, 1<<16)
		return errors.Join(a.exportTo(ctx, filter, out), out.Flush())
	}
	if _, err := os.Lstat(a.path(to)); err == nil {
		return usagef("--to %s: it is there already; choose another file, or remove it", to)
	}
	return audit.WriteFile(a.path(to), func(to io.Writer) error { return a.exportTo(ctx, filter, to) })
}

// exportTo writes one whole export.
func (a *app) exportTo(ctx context.Context, filter *auditFilter, to io.Writer) error {
	b, done, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	x, handoffs, tell := audit.NewExport(to, b), 0, a.progress()
	if filter.all() {
		err = b.Entries(ctx, nil, func(e broker.Entry) error {
			tell("handoff: %d lines written\n", x.Lines())
			return x.Add(ctx, e)
		})
	} else {
		_, err = filter.handoffs(ctx, a.session(b), 0, func(ticket string) error {
			tell("handoff: %d lines written\n", x.Lines())
			chosen, err := x.AddHandoff(ctx, ticket, filter.keeps)
			if chosen {
				handoffs++
			}
			return err
		})
	}
	if err != nil {
		return err
	}
	if !filter.all() {
		a.notef("handoff: %s, %s\n", explain.Count(handoffs, "handoff"), explain.Count(x.Lines(), "line"))
	}
	return x.End()
}

// terminalJSON escapes the characters that a terminal may act upon. Each Write is a line.
type terminalJSON struct{ to io.Writer }

func (t terminalJSON) Write(line []byte) (int, error) {
	if _, err := t.to.Write(escapeJSON(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}
