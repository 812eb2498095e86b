package main

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/index"
)

func newConversation(a *app) *cobra.Command {
	var (
		last, count bool
		from, to    []string
		fresh       freshness
	)
	cmd := &cobra.Command{
		Use:   "conversation ID",
		Short: "Show the handoffs of a conversation, in order",
		Long: `Conversation lists the handoffs whose context has this conversation_id, the oldest
first: all of them, and of no other conversation, however alike their ids. --from and
--to leave those from one agent, or to one (whoever was asked for: an agent, or what
it must be able to do).

--last prints the one that was submitted last, --count how many there are and how
many from each source to each target.

It asks an index (handoff index; handoff dev has one); see handoff list --help for
what it vouches for, and for what -o json and jsonl print.

Exit codes: 0 here it is, empty or not; 6 nobody keeps an index; 9 an ID that no
conversation can have; 10 the index is behind.`,
		Example: `  handoff conversation c-17
  handoff conversation c-17 --last -o json | jq -r '.handoffs[].ticket'
  handoff conversation c-17 --count --from planner --to coder`,
		Args: takes("the ID of a conversation"),
		PreRunE: func(_ *cobra.Command, args []string) error {
			if args[0] == "" {
				return usagef("conversation needs an ID; those without one are no conversation")
			}
			if last && count {
				return usagef("--last and --count exclude each other")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			flags := filterFlags{conversation: args, source: from, target: to}
			filter, err := flags.filter(time.Now())
			if err != nil {
				return err
			}
			return a.onIndex(cmd.Context(), func(ctx context.Context, ix index.Answers) error {
				if count {
					return a.count(ctx, ix, index.CountQuery{Ask: fresh.ask(), Filter: filter, By: []index.By{index.BySource, index.ByTarget}}, fresh)
				}
				q := index.ListQuery{Ask: fresh.ask(), Filter: filter, Sort: index.SortOldest}
				if last {
					q.Sort = index.SortNewest
				}
				return a.list(ctx, ix, q, listFlags{fresh: fresh, limit: 1, all: !last, alone: last, table: conversationTable})
			})
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&last, "last", false, "only the one that was submitted last")
	fs.BoolVar(&count, "count", false, "how many there are, and from whom to whom")
	fs.StringSliceVar(&from, "from", nil, "only those from this `AGENT`")
	fs.StringArrayVar(&to, "to", nil, "only those to this `AGENT`")
	a.agentFlags(cmd, "from", "to")
	fresh.flag(cmd)
	return cmd
}

// conversationTable shows who handed what to whom, and when.
var conversationTable = table{
	heading: []string{"SUBMITTED", "TICKET", "FROM", "TO", "PHASE", "TASK"},
	cells: func(r index.Row, _ time.Time) []string {
		return []string{when(r.SubmittedAt), r.Ticket, r.Source, cmp.Or(r.Target, r.Agent), rowPhase(r), rowTask(r)}
	},
}
