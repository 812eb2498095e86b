package cli

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/audit"
	"github.com/agenthandoff/handoff/internal/explain"
)

func newAuditExport(a *app) *cobra.Command {
	var (
		filter auditFilter
		to     string
	)
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write whole handoffs as audit records, one JSON object a line",
		Long: `Export writes every audit record of the handoffs that are meant, and with them the
entries of the ledger they were made of, byte for byte: "handoff audit verify FILE" checks
them without an engine. It is JSON Lines, whatever -o says; the last line says that it is
whole. Without filters it is everything the ledger has.

--source, --target, --since, --until and --type choose the handoffs that have such a record; a handoff is
always exported whole.

Exit codes: 0 it is whole; 3 no such ticket; 6 no index answers; 10 the index is behind.`,
		Example: `  handoff audit export --task T-17 --to t17.jsonl
  handoff audit export --handoff-source lead --since 30d | gzip > lead.jsonl.gz
  handoff audit export | jq -r 'select(.event_type == "escalated") | .handoff_id'`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.auditExport(cmd.Context(), &filter, to) },
	}
	cmd.PreRunE = filter.preRun(a)
	filter.declare(a, cmd)
	cmd.Flags().StringVar(&to, "to", "", "write to this `FILE`, which must not be there; it appears when it is whole (default: stdout)")
	return cmd
}

// preRun is filter.check as cobra calls it, with whole tickets.
func (f *auditFilter) preRun(a *app) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		if err := f.check(time.Now()); err != nil {
			return err
		}
		return a.tickets(cmd.Context(), f.tickets)
	}
}

func (a *app) auditExport(ctx context.Context, filter *auditFilter, to string) error {
	if to == "" && a.terminal {
		return a.exportTo(ctx, filter, terminalJSON{a.out})
	}
	if to == "" {
		out := bufio.NewWriterSize(a.out, 1<<16)
		return errors.Join(a.exportTo(ctx, filter, out), out.Flush())
	}
	name := to
	to = a.path(to)
	if _, err := os.Lstat(to); err == nil {
		return usagef("--to %s: it is there already; choose another file, or remove it", name)
	}
	f, err := os.CreateTemp(filepath.Dir(to), "."+filepath.Base(to)+".*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // where it has not become the file
	out := bufio.NewWriterSize(f, 1<<20)
	err = a.exportTo(ctx, filter, out)
	if err = errors.Join(err, out.Flush()); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), to); err != nil { // unlike a rename it replaces nothing
		return err
	}
	return nil
}

// exportTo writes one whole export.
func (a *app) exportTo(ctx context.Context, filter *auditFilter, to io.Writer) error {
	b, done, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	x, reader := audit.NewExport(to), audit.NewReader(b)
	handoffs, tell := 0, a.progress()
	if filter.all() {
		err = b.Entries(ctx, 0, func(e broker.Entry) error {
			tell("handoff: %d lines written\n", x.Lines())
			records, err := reader.Records(ctx, e)
			if err != nil {
				return err
			}
			return x.Write(e, records)
		})
	} else {
		_, err = filter.handoffs(ctx, a.reader(b), 0, func(ticket string) error {
			tell("handoff: %d lines written\n", x.Lines())
			wrote, err := exportOne(ctx, reader, filter, ticket, x)
			handoffs += wrote
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
