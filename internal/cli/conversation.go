package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/brief"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
)

var conversationHelp = `Conversation lists the handoffs whose context has this conversation_id, the oldest
first: all of them, and of no other conversation, however alike their ids. --from and
--to leave those from one agent, or to one: whom they were for (an agent or a
capability), or who had them then, after a reroute or an escalation.

--last prints the one that was submitted last, --count how many there are, and from
each source to each name: how many asked for it, and how many it had.

--full adds to each handoff its trace id, the user's intent and the messages of the
conversation that were handed off with it, read from the ledger: at most ` + fmt.Sprint(fullMax) + `
handoffs, unless --limit has another number. With -o json and jsonl these are the fields
trace_id, user_intent and conversation_history of a row, and context_trace_id is the
trace id in the package; gone is true if the ledger no longer has the handoff.

It asks an index (handoff index; handoff dev has one); handoff list --help describes its
guarantees, and the output of -o json and jsonl.

Exit codes: 0 here it is, empty or not; 6 no index answers; 9 an ID that no
conversation can have; 10 the index is behind.`

// conversationOptions are the flags of conversation.
type conversationOptions struct {
	Last  bool      `flag:"last" doc:"only the one that was submitted last"`
	Count bool      `flag:"count" doc:"how many there are, and from whom to whom"`
	Full  bool      `flag:"full" doc:"show the trace id, the user's intent and the messages of each, too"`
	Limit int       `flag:"limit" doc:"with --full: at most {N} of them"`
	From  []string  `flag:"from,,commas" doc:"only those from {AGENT}, schedule:NAME or signal:NAME"`
	To    []string  `flag:"to" doc:"only those that were for this {AGENT}, or that it had"`
	Fresh freshness `flag:""`
}

func newConversation(a *app) *cobra.Command {
	o := conversationOptions{Limit: fullMax}
	cmd := &cobra.Command{
		Use:   "conversation ID",
		Short: "Show the handoffs of a conversation, in order",
		Long:  conversationHelp,
		Example: `  handoff conversation c-17
  handoff conversation c-17 --full | less
  handoff conversation c-17 --last -o json | jq -r '.handoffs[].ticket'
  handoff conversation c-17 --count --from planner --to coder`,
		Args:    takes("the ID of a conversation"),
		PreRunE: o.check,
		RunE: func(cmd *cobra.Command, args []string) error {
			filter := ask.Filter{ConversationID: args, Source: o.From, To: o.To}
			if err := cmp.Or(checkWords("conversation", args[0]), checkAgents("source", o.From)); err != nil {
				return err
			}
			return a.onReader(cmd.Context(), nil, func(ctx context.Context, r *api.Session) error {
				if o.Count {
					return a.count(ctx, r, ask.CountQuery{Question: o.Fresh.ask(), Filter: filter, By: []ask.By{ask.BySource, ask.ByTarget}, Had: true}, o.Fresh)
				}
				return a.conversation(ctx, r, filter, o)
			})
		},
	}
	bind(cmd.Flags(), &o)
	return cmd
}

// check refuses flags that do not go together.
func (o *conversationOptions) check(cmd *cobra.Command, args []string) error {
	switch {
	case args[0] == "":
		return usagef("conversation needs an ID; those without one are no conversation")
	case o.Last && o.Count:
		return usagef("--last and --count exclude each other")
	case o.Count && o.Full:
		return usagef("--count counts all of them: --full does not go with it")
	case cmd.Flags().Changed("limit") && (o.Last || !o.Full):
		return usagef("--limit goes with --full, and not with --last: without them all are listed, or one")
	case o.Limit < 1:
		return usagef("--limit %d: show one at least", o.Limit)
	}
	return nil
}

// conversation lists the handoffs of a conversation.
func (a *app) conversation(ctx context.Context, r dossier.Reader, filter ask.Filter, o conversationOptions) error {
	q := ask.ListQuery{Question: o.Fresh.ask(), Filter: filter, Sort: ask.SortOldest}
	if o.Last {
		q.Sort, o.Limit = ask.SortNewest, 1
	}
	if o.Full {
		return a.conversationFull(ctx, r, q, o)
	}
	return a.list(ctx, r, q, listFlags{Fresh: o.Fresh, Limit: 1, All: !o.Last, alone: o.Last, table: conversationTable})
}

// conversationTable shows who handed off to whom, the task, the last agent and the time.
var conversationTable = table{
	heads: "SUBMITTED|TICKET|FROM|TO|WITH|PHASE|TASK",
	cells: func(r ask.Row, _ time.Time) []any {
		return []any{r.SubmittedAt, r.Ticket, r.From(), cmp.Or(r.Target, r.Agent), r.Agent, rowPhase(r), rowTask(r)}
	},
}

// fullMax is how many handoffs conversation --full shows without --limit: each is read from the
// ledger, with all that was handed off.
const fullMax = 200

// conversationFull prints the rows of a conversation with their details from the ledger.
func (a *app) conversationFull(ctx context.Context, r dossier.Reader, q ask.ListQuery, o conversationOptions) error {
	whole := dossier.Conversation{Handoffs: []dossier.Turn{}}
	shown := 0
	var err error
	whole.Position, whole.Cursor, err = pages(ctx, r, q, o.Limit, o.Fresh, func(page []ask.Row) error {
		for rows := range slices.Chunk(page, dossier.ReadsAtOnce) { // a package may be large: few at a time
			var full []dossier.Turn
			err := a.ask(ctx, func(ctx context.Context) (err error) {
				full, err = dossier.Turns(ctx, r, rows)
				return err
			})
			if err != nil {
				return err
			}
			switch {
			case a.format == formatJSON:
				whole.Handoffs = append(whole.Handoffs, full...)
			case a.format == formatJSONL:
				err = list(a, full)
			default:
				a.conversationText(full, shown == 0)
			}
			if err != nil {
				return err
			}
			shown += len(rows)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case a.format == formatJSON:
		return a.value(whole)
	case a.text() && shown == 0:
		a.notef("handoff: none\n")
	case a.text() && whole.Cursor != "" && !o.Last:
		a.notef("handoff: there are more than these %d; see more with --limit N\n", shown)
	}
	return a.stand(o.Fresh, whole.Position, whole.Cursor)
}

// conversationText writes each handoff as a paragraph: who handed it to whom, then the conversation
// until then.
func (a *app) conversationText(rows []dossier.Turn, first bool) {
	for _, r := range rows {
		if !first {
			a.printf("\n")
		}
		first = false
		a.printf("%s  %s  %s\n", explain.Instant(r.SubmittedAt), r.Ticket, rowPhase(r.Row))
		s := a.newSheet()
		s.line("from", r.From())
		s.line("to", cmp.Or(r.Target, r.Agent))
		s.line("with", r.Agent)
		s.line("reason", r.Why)
		s.line("task", r.Description)
		s.line("intent", r.UserIntent)
		s.line("trace", r.TraceID)
		s.line("own trace id", r.OwnTraceID)
		if r.Gone {
			s.line("package", "the ledger has it no more")
			continue
		}
		s.line("messages", fmt.Sprint(len(r.Messages)))
		for _, m := range r.Messages {
			speaker, words := brief.Message(m)
			s.item(speaker + ": " + words)
		}
	}
}
