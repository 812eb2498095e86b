package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

func newAudit(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Read the audit trail, export it, and check that it is whole",
		Long: `The ledger is the audit trail: every change of a handoff is written before the handoff
goes on, and never changed. An audit record is what such an entry says: initiated,
accepted, rejected, completed, failed, timeout, escalated, cancelled, deferred, and noted
for all else. docs/operations/audit.md has its fields, and how files are made.

The ledger keeps an entry for 190 days. "handoff audit export DIR", from a timer, keeps it
for longer.`,
		Args: cobra.ArbitraryArgs,
		RunE: refuseUnknown,
	}
	cmd.AddCommand(newAuditList(a), newAuditExport(a), newAuditVerify(a))
	return cmd
}

// auditFilter selects handoffs and, for list, their records.
type auditFilter struct {
	tickets, tasks, sources, targets, agents, types []string
	handoffSources, handoffTargets                  []string
	since, until                                    string
	freshness

	from, to time.Time
}

func (f *auditFilter) declare(a *app, cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringArrayVar(&f.tickets, "ticket", nil, "of the handoff with this `TICKET`; repeatable")
	fs.StringArrayVar(&f.tasks, "task", nil, "of handoffs with this task `ID`; repeatable")
	fs.StringArrayVar(&f.sources, "source", nil, "records from this `AGENT` (their from_agent); repeatable")
	fs.StringArrayVar(&f.targets, "target", nil, "records about this `AGENT`, or capability (their to_agent); repeatable")
	fs.StringArrayVar(&f.handoffSources, "handoff-source", nil, "of what this `AGENT` handed off; repeatable")
	fs.StringArrayVar(&f.handoffTargets, "handoff-target", nil, "of what was handed to this `AGENT`, or to this capability; repeatable")
	fs.StringArrayVar(&f.agents, "agent", nil, "of what is with this `AGENT`, or was there last; repeatable")
	fs.StringArrayVar(&f.types, "type", nil, "of this `TYPE`; repeatable: "+strings.Join(asWords(protocol.AuditTypes), ", "))
	fs.StringVar(&f.since, "since", "", "since `WHEN`: an instant, or a duration ago (2h, 3d)")
	fs.StringVar(&f.until, "until", "", "before `WHEN`")
	f.flag(cmd)
	a.agentFlags(cmd, "source", "target", "handoff-source", "handoff-target", "agent")
	a.words(cmd, "type", asWords(protocol.AuditTypes)...)
}

func (f *auditFilter) check(now time.Time) (err error) {
	for _, kind := range f.types {
		if !slices.Contains(protocol.AuditTypes, protocol.AuditType(kind)) {
			return usagef("--type %s: the types are %s", kind, strings.Join(asWords(protocol.AuditTypes), ", "))
		}
	}
	if f.from, err = pastFlag("since", f.since, now); err != nil {
		return err
	}
	if f.to, err = pastFlag("until", f.until, now); err != nil {
		return err
	}
	if !f.to.IsZero() && !f.from.Before(f.to) {
		return usagef("--since %s is not before --until %s: nothing lies between them", f.since, f.until)
	}
	return nil
}

// all reports whether every handoff is meant.
func (f *auditFilter) all() bool {
	return len(f.tickets)+len(f.sources)+len(f.targets)+len(f.types) == 0 && !f.asks() && f.since == "" && f.until == ""
}

// direct reports whether the tickets alone select the handoffs.
func (f *auditFilter) direct() bool {
	return len(f.tickets) > 0 && !f.asks()
}

// asks reports whether the index must select the handoffs, whatever their tickets.
func (f *auditFilter) asks() bool {
	return len(f.tasks)+len(f.handoffSources)+len(f.handoffTargets)+len(f.agents) > 0
}

// keeps reports whether a record is meant.
func (f *auditFilter) keeps(r protocol.AuditRecord) bool {
	switch {
	case len(f.types) > 0 && !slices.Contains(f.types, string(r.EventType)),
		len(f.sources) > 0 && !slices.Contains(f.sources, r.FromAgent),
		len(f.targets) > 0 && !slices.Contains(f.targets, r.ToAgent),
		!f.from.IsZero() && r.Timestamp.Before(f.from),
		!f.to.IsZero() && !r.Timestamp.Before(f.to):
		return false
	}
	return true
}

// handoffs calls fn with the tickets that are meant, those submitted last first,
// and no more than limit of them (0 is all). It reports whether there are more.
func (f *auditFilter) handoffs(ctx context.Context, r api.Reader, limit int, fn func(ticket string) error) (more bool, err error) {
	if f.direct() {
		for _, ticket := range f.tickets {
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
		Ticket: f.tickets, TaskID: f.tasks, From: f.sources, To: f.targets, Source: f.handoffSources, Target: f.handoffTargets, Agent: f.agents, UpdatedSince: f.from, Until: f.to}}
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
