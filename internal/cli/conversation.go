package cli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/explain"
	"github.com/agenthandoff/handoff/index/ask"
)

func newConversation(a *app) *cobra.Command {
	var (
		last, count, full bool
		limit             int
		from, to          []string
		fresh             freshness
	)
	cmd := &cobra.Command{
		Use:   "conversation ID",
		Short: "Show the handoffs of a conversation, in order",
		Long: `Conversation lists the handoffs whose context has this conversation_id, the oldest
first: all of them, and of no other conversation, however alike their ids. --from and
--to leave those from one agent, or to one: whom they were for (an agent, or what it
must be able to do), or who had them then, after a reroute or an escalation.

--last prints the one that was submitted last, --count how many there are, and from
each source to each name: how many asked for it, and how many it had.

--full adds to each handoff its trace id, the user's intent and the messages of the
conversation that were handed over with it, read from the ledger: at most ` + fmt.Sprint(fullMax) + `
handoffs, unless --limit says another number. With -o json and jsonl these are the
fields trace_id, user_intent and conversation_history of a row, and context_trace_id is
the trace id that the package says of itself; gone is true where the ledger does not
have the handoff any more.

It asks an index (handoff index; handoff dev has one); see handoff list --help for
what it vouches for, and for what -o json and jsonl print.

Exit codes: 0 here it is, empty or not; 6 nobody keeps an index; 9 an ID that no
conversation can have; 10 the index is behind.`,
		Example: `  handoff conversation c-17
  handoff conversation c-17 --full | less
  handoff conversation c-17 --last -o json | jq -r '.handoffs[].ticket'
  handoff conversation c-17 --count --from planner --to coder`,
		Args: takes("the ID of a conversation"),
		PreRunE: func(cmd *cobra.Command, args []string) error {
			limited := cmd.Flags().Changed("limit")
			if args[0] == "" {
				return usagef("conversation needs an ID; those without one are no conversation")
			}
			if last && count {
				return usagef("--last and --count exclude each other")
			}
			if count && full {
				return usagef("--count counts all of them: --full does not go with it")
			}
			if limited && (last || !full) {
				return usagef("--limit goes with --full, and not with --last: without them all are listed, or one")
			}
			if limit < 1 {
				return usagef("--limit %d: show one at least", limit)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			flags := filterFlags{conversation: args, source: from}
			filter, err := flags.filter(time.Now())
			if err != nil {
				return err
			}
			filter.To = to
			b, done, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			asked := conversationAsk{filter: filter, last: last, full: full, limit: limit, fresh: fresh}
			if count {
				return a.count(cmd.Context(), a.answersOf(b), ask.CountQuery{Question: fresh.ask(), Filter: filter, By: []ask.By{ask.BySource, ask.ByTarget}, Had: true}, fresh)
			}
			return a.conversation(cmd.Context(), b, asked)
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&last, "last", false, "only the one that was submitted last")
	fs.BoolVar(&count, "count", false, "how many there are, and from whom to whom")
	fs.BoolVar(&full, "full", false, "show the trace id, the user's intent and the messages of each, too")
	fs.IntVar(&limit, "limit", fullMax, "with --full: at most `N` of them")
	fs.StringSliceVar(&from, "from", nil, "only those from this `AGENT`")
	fs.StringArrayVar(&to, "to", nil, "only those that were for this `AGENT`, or that it had")
	a.agentFlags(cmd, "from", "to")
	fresh.flag(cmd)
	return cmd
}

// conversationAsk is what is to be shown of a conversation.
type conversationAsk struct {
	filter     ask.Filter
	last, full bool
	limit      int // with full
	fresh      freshness
}

// conversation lists the handoffs of a conversation.
func (a *app) conversation(ctx context.Context, b *broker.Broker, asked conversationAsk) error {
	q := ask.ListQuery{Question: asked.fresh.ask(), Filter: asked.filter, Sort: ask.SortOldest}
	if asked.last {
		q.Sort, asked.limit = ask.SortNewest, 1
	}
	if asked.full {
		return a.conversationFull(ctx, b, q, asked)
	}
	return a.list(ctx, a.answersOf(b), q, listFlags{fresh: asked.fresh, limit: 1, all: !asked.last, alone: asked.last, table: conversationTable})
}

// conversationTable shows who handed what to whom, who had it last, and when.
var conversationTable = table{
	heading: []string{"SUBMITTED", "TICKET", "FROM", "TO", "WITH", "PHASE", "TASK"},
	cells: func(r ask.Row, _ time.Time) []string {
		return []string{explain.Instant(r.SubmittedAt), r.Ticket, r.Source, cmp.Or(r.Target, r.Agent), r.Agent, rowPhase(r), rowTask(r)}
	},
}
