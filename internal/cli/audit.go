package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/audit"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

func newAudit(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:   "audit",
		Short: "Read the audit trail, export it, and check that it is whole",
		Long: `The ledger is the audit trail: every change of a handoff is written before the handoff
goes on, and never changed. Its audit record is one of: initiated, accepted, rejected,
completed, failed, timeout, escalated, cancelled, deferred, and noted for all else.
docs/operations/audit.md has its fields, and how files are made.

The ledger keeps an entry for 190 days. "handoff audit export DIR", from a timer, keeps it
for longer.`,
	}, newAuditList(a), newAuditExport(a), newAuditVerify(a))
}

// auditFilter selects handoffs and, for list, their records.
type auditFilter struct {
	Tickets        []string             `flag:"ticket" doc:"of the handoff with this {TICKET}; repeatable"`
	Tasks          []string             `flag:"task" doc:"of handoffs with this task {ID}; repeatable"`
	Sources        []string             `flag:"source" doc:"records from this {AGENT} (their from_agent); repeatable"`
	Targets        []string             `flag:"target" doc:"records about this {AGENT}, or capability (their to_agent); repeatable"`
	HandoffSources []string             `flag:"handoff-source" doc:"of handoffs from this {AGENT}; repeatable"`
	HandoffTargets []string             `flag:"handoff-target" doc:"of handoffs to this {AGENT} or capability; repeatable"`
	Agents         []string             `flag:"agent" doc:"of handoffs that this {AGENT} has, or had last; repeatable"`
	Types          []protocol.AuditType `flag:"type" doc:"of this {TYPE}; repeatable: {}"`
	Since          time.Time            `flag:"since" doc:"since {WHEN}: an instant, or a duration ago (2h, 3d)"`
	Until          time.Time            `flag:"until" doc:"before {WHEN}"`
	freshness      `flag:""`
}

func (f *auditFilter) declare(fs *pflag.FlagSet) {
	fs.SortFlags = false
	bind(fs, f)
}

func (f *auditFilter) check() error {
	for _, kind := range f.Types {
		if !slices.Contains(protocol.AuditTypes, kind) {
			return usagef("--type %s: the types are %s", kind, strings.Join(asWords(protocol.AuditTypes), ", "))
		}
	}
	if !f.Until.IsZero() && !f.Since.Before(f.Until) {
		return usagef("--since %s is not before --until %s: nothing lies between them", f.Since.Format(time.RFC3339), f.Until.Format(time.RFC3339))
	}
	return nil
}

// all reports whether every handoff is meant.
func (f *auditFilter) all() bool {
	return len(f.Tickets)+len(f.Sources)+len(f.Targets)+len(f.Types) == 0 && !f.asks() && f.Since.IsZero() && f.Until.IsZero()
}

// direct reports whether the tickets alone select the handoffs.
func (f *auditFilter) direct() bool {
	return len(f.Tickets) > 0 && !f.asks()
}

// asks reports whether the index must select the handoffs, whatever their tickets.
func (f *auditFilter) asks() bool {
	return len(f.Tasks)+len(f.HandoffSources)+len(f.HandoffTargets)+len(f.Agents) > 0
}

// keeps reports whether a record is meant.
func (f *auditFilter) keeps(r protocol.AuditRecord) bool {
	switch {
	case len(f.Types) > 0 && !slices.Contains(f.Types, r.EventType),
		len(f.Sources) > 0 && !slices.Contains(f.Sources, r.FromAgent),
		len(f.Targets) > 0 && !slices.Contains(f.Targets, r.ToAgent),
		!f.Since.IsZero() && r.Timestamp.Before(f.Since),
		!f.Until.IsZero() && !r.Timestamp.Before(f.Until):
		return false
	}
	return true
}

// handoffs calls fn with the tickets that are meant, those submitted last first,
// and no more than limit of them (0 is all). It reports whether there are more.
func (f *auditFilter) handoffs(ctx context.Context, r *api.Session, limit int, fn func(ticket string) error) (more bool, err error) {
	if f.direct() {
		for _, ticket := range f.Tickets {
			if err := fn(ticket); err != nil {
				return false, err
			}
		}
		return false, nil
	}
	// A handoff with a record in the span was submitted before its end, and has
	// changed since its beginning; one with a record from or about an agent has that
	// for its source or target, or was with it.
	q := ask.ListQuery{Question: f.ask(), Sort: ask.SortNewest, Filter: ask.Filter{
		Ticket: f.Tickets, TaskID: f.Tasks, From: f.Sources, To: f.Targets, Source: f.HandoffSources, Target: f.HandoffTargets, Agent: f.Agents, UpdatedSince: f.Since, Until: f.Until}}
	_, cursor, err := pages(ctx, r, q, limit, f.freshness, func(rows []ask.Row) error {
		for _, row := range rows {
			if err := fn(row.Ticket); err != nil {
				return err
			}
		}
		return nil
	})
	return cursor != "", err
}

// How many handoffs the records of are listed.
const (
	auditHandoffsDefault = 100
	auditHandoffsMax     = 10_000
)

func newAuditList(a *app) *cobra.Command {
	var (
		filter auditFilter
		limit  int
	)
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List audit records, of one handoff or of many",
		Long: `List prints audit records in the order of the ledger. With filters that are no ticket it
asks the index which handoffs are meant; the records themselves come from the ledger.
--source, --target, --since and --until are about the records: a refusal is found by the
agent that refused, an escalation by who passed it up. --handoff-source and
--handoff-target are about the handoff: all records of the handoffs from an agent. Those
of the type noted (progress, reminders, retries) are left out unless asked for with
--type noted.

With -o json or jsonl records are complete; docs/operations/audit.md has their fields.

Exit codes: 0 here they are, if any; 3 no such ticket; 6 no index answers;
10 the index is behind.`,
		Example: `  handoff audit list --ticket 5f0c…
  handoff audit list --task T-17 -o jsonl
  handoff audit list --source lead --target reviewer --since 7d --type rejected`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 || limit > auditHandoffsMax {
				return usagef("--limit %d: give 1 to %d handoffs; handoff audit export has no limit", limit, auditHandoffsMax)
			}
			return a.onLedger(cmd.Context(), func(ctx context.Context, s *source) error {
				return a.auditList(ctx, s, &filter, limit)
			})
		},
	}
	cmd.PreRunE = filter.preRun(a)
	filter.declare(cmd.Flags())
	cmd.Flags().IntVar(&limit, "limit", auditHandoffsDefault, "of at most `N` handoffs, those submitted last")
	return cmd
}

func (a *app) auditList(ctx context.Context, s *source, filter *auditFilter, limit int) error {
	reader := audit.NewReader(s.b)
	records := []protocol.AuditRecord{}
	more, err := filter.handoffs(ctx, s.session, limit, func(ticket string) error {
		return reader.Appends(ctx, ticket, func(_ broker.Entry, of []protocol.AuditRecord) error {
			for _, r := range of {
				noted := r.EventType == protocol.AuditNoted && !slices.Contains(filter.Types, protocol.AuditNoted)
				if !noted && filter.keeps(r) {
					records = append(records, r)
				}
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	slices.SortStableFunc(records, func(x, y protocol.AuditRecord) int {
		return cmp.Or(cmp.Compare(x.Seq, y.Seq), cmp.Compare(x.N, y.N))
	})
	if more {
		a.notef("handoff: these are the %d handoffs that were submitted last; --limit shows more\n", limit)
	}
	if !a.text() {
		return list(a, records)
	}
	if len(records) == 0 {
		a.notef("handoff: no audit records\n")
		return nil
	}
	return a.table(rowsOf("TIME (UTC)|TICKET|RECORD|FROM|TO|REASON", records, func(r protocol.AuditRecord) []any {
		return []any{r.Timestamp, r.HandoffID, auditWords(r), r.FromAgent, r.ToAgent, r.Reason}
	}))
}

// auditWords returns a record's type, with its outcome where that differs.
func auditWords(r protocol.AuditRecord) string {
	switch {
	case r.ClosedAs == "":
		return string(r.EventType)
	case string(r.ClosedAs) == string(r.EventType):
		return string(r.EventType) + ", closed"
	}
	return string(r.EventType) + ", closed: " + string(r.ClosedAs)
}

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
	var b *broker.Broker
	if against || len(paths) == 0 {
		engine, done, err := a.connect(ctx)
		if err != nil {
			return err
		}
		defer done()
		b = engine
	}
	var views []verifyView
	if len(paths) == 0 {
		report, err := audit.VerifyLedger(ctx, b, func(seq, last uint64) { a.notef("handoff: read %d of %d entries\n", seq, last) }, checks...)
		if err != nil {
			return err
		}
		views = append(views, verifyView{"ledger", report})
	}
	for _, path := range paths {
		progress := func(at, of uint64) { a.notef("handoff: %s: %d of %d MiB of a file\n", path, at>>20, of>>20) }
		verify := func() (audit.Report, error) { return audit.VerifyFiles(a.path(path), progress, checks...) }
		if against {
			verify = func() (audit.Report, error) { return audit.VerifyAgainst(ctx, a.path(path), b, progress, checks...) }
		}
		report, err := verify()
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
			return []any{problemPlace(p), orNone(p.Seq), p.Ticket, p.Kind, p.Message}
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
