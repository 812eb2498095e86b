package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/api"
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
func (f *auditFilter) handoffs(ctx context.Context, r api.Reader, limit int, fn func(ticket string) error) (more bool, err error) {
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
