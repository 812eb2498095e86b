package cli

import (
	"cmp"
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/audit"
	"github.com/agenthandoff/handoff/protocol"
)

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
