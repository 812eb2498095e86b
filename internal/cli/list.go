package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/brief"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// listFlags are the flags of list.
type listFlags struct {
	filter filterFlags
	Sort   ask.Sort  `flag:"sort" doc:"in this {ORDER}: {}"`
	Limit  int       `flag:"limit" doc:"at most {N} of them"`
	Cursor string    `flag:"cursor" doc:"go on behind the {CURSOR} of the list before"`
	All    bool      `flag:"all" doc:"all of them"`
	Count  bool      `flag:"count" doc:"print how many there are instead"`
	By     []ask.By  `flag:"by,,commas" doc:"with --count: how many of each {FIELD}, up to three"`
	Fresh  freshness `flag:""`
	table  table     // how it looks to people
	alone  bool      // the cursor is not printed
}

func newList(a *app) *cobra.Command {
	flags := listFlags{table: listTable, Sort: ask.SortNewest, Limit: ask.PageDefault}
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List or count handoffs: by agent, phase, outcome, age, words",
		Long: `List shows the handoffs that all the filters leave. A filter that is given more than
once, or with commas, takes any of its values.

The newest come first (--sort oldest, updated). There are 50 (--limit N, --all); the
cursor that is printed behind them goes on with the next ones (--cursor), and stays
right while handoffs are added. It is good for the same filters and order alone;
beside one, --since and the like are instants.

--count prints how many there are, with --by also how many of each of these:
` + strings.Join(asWords(ask.Bys), ", ") + `. A count by target has two numbers for each name: how many asked for it (COUNT), and
how many were with it, whichever agent was asked (HAD).

It asks an index (handoff index; handoff dev has one). The answer has all that was
acknowledged before you ask; if the index cannot guarantee that within 2 s, nothing is
printed, except with --stale. With -o json the answer is one object with seq, behind and
complete, the state of the index; with -o jsonl each handoff is a line, and a line on
standard error has these three.

Exit codes: 0 here it is, empty or not; 6 no index answers; 9 a filter or a
cursor is refused; 10 the index is behind.`,
		Example: `  handoff list --open
  handoff list --agent reviewer --outcome failed,timeout --since 1d
  handoff list --text "login form" --sort oldest --all -o jsonl | jq -r .ticket
  handoff list --count --by source,target --since 7d
  handoff list --open --until 1h                # submitted more than an hour ago`,
		Args:    takes(),
		PreRunE: flags.check,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runList(cmd.Context(), &flags) },
	}
	flags.filter.declare(cmd.Flags())
	bind(cmd.Flags(), &flags)
	return cmd
}

// runList lists or counts, by the flags.
func (a *app) runList(ctx context.Context, flags *listFlags) error {
	filter, err := flags.filter.filter(ctx, a)
	if err != nil {
		return err
	}
	relative, _ := flags.filter.relative()
	if flags.Cursor != "" && len(relative) > 0 {
		return usagef("%s: how long ago is another instant each time, and a cursor is of one; give the instant of the list before", relative[0])
	}
	return a.onReader(ctx, filter.Agent, func(ctx context.Context, r *api.Session) error {
		q := ask.ListQuery{Question: flags.Fresh.ask(), Filter: filter, Sort: flags.Sort, Cursor: flags.Cursor}
		if flags.Count {
			return a.count(ctx, r, ask.CountQuery{Question: q.Question, Filter: filter, By: flags.By, Had: slices.Contains(flags.By, ask.ByTarget)}, flags.Fresh)
		}
		return a.list(ctx, r, q, *flags)
	})
}

// check refuses flags that do not go together.
func (f *listFlags) check(cmd *cobra.Command, _ []string) error {
	given := cmd.Flags().Changed
	paging := slices.ContainsFunc([]string{"sort", "limit", "cursor", "all"}, given)
	switch {
	case f.Limit < 1:
		return usagef("--limit %d: list one at least", f.Limit)
	case f.All && given("limit"):
		return usagef("--all and --limit exclude each other")
	case f.Count && paging:
		return usagef("--count counts all of them: --sort, --limit, --cursor and --all do not go with it")
	case !f.Count && len(f.By) > 0:
		return usagef("--by goes with --count")
	}
	return nil
}

// list prints a list, whole or up to a limit.
func (a *app) list(ctx context.Context, r *api.Session, q ask.ListQuery, flags listFlags) error {
	most := flags.Limit
	if flags.All {
		most = 0
	}
	whole := ask.ListAnswer{Handoffs: []ask.Row{}}
	var err error
	found := 0
	whole.Position, whole.Cursor, err = pages(ctx, r, q, most, flags.Fresh, func(rows []ask.Row) error {
		found += len(rows)
		if a.format == formatJSONL {
			return list(a, rows)
		}
		whole.Handoffs = append(whole.Handoffs, rows...)
		return nil
	})
	if err == nil && found == 0 && a.slip != "" {
		err = protocol.Errorf(protocol.CodeUnknownAgent, "agent", "nothing matches, and %s is no agent", a.slip)
	}
	if err != nil {
		return err
	}
	if a.format == formatJSON {
		return a.value(whole)
	}
	if a.text() {
		if err := a.rows(flags.table, whole.Handoffs); err != nil {
			return err
		}
		if whole.Cursor != "" && !flags.alone {
			_, instants := flags.filter.relative()
			a.notef("handoff: there are more; go on with --cursor %s%s\n", whole.Cursor, instants)
		}
	}
	return a.stand(flags.Fresh, whole.Position, whole.Cursor)
}

// pages reads page after page, each as fresh as it is asked for; see ask.Pages.
func pages(ctx context.Context, r *api.Session, q ask.ListQuery, most int, fresh freshness, fn func([]ask.Row) error) (stand ask.Position, cursor string, err error) {
	return ask.Pages(ctx, r.List, q, most, func(page ask.ListAnswer) error {
		if err := fresh.check(page.Position); err != nil {
			return err
		}
		return fn(page.Handoffs)
	})
}

// table is how handoffs look to people.
type table struct {
	heads string // separated by bars
	cells func(r ask.Row, now time.Time) []any
}

var listTable = table{
	heads: "TICKET|PHASE|PRIORITY|AGE|FROM|TO|WITH|TASK",
	cells: func(r ask.Row, now time.Time) []any {
		return []any{r.Ticket, rowPhase(r), r.Priority, explain.Ago(r.SubmittedAt, now), r.From(), rowTo(r), rowWith(r), rowTask(r)}
	},
}

// rows prints handoffs as a table.
func (a *app) rows(t table, handoffs []ask.Row) error {
	if len(handoffs) == 0 {
		a.notef("handoff: none\n")
		return nil
	}
	now := a.now()
	return a.table(rowsOf(t.heads, handoffs, func(r ask.Row) []any { return t.cells(r, now) }))
}

// rowPhase returns the phase and, where it adds a fact, the outcome, the gate or the level.
func rowPhase(r ask.Row) string {
	switch {
	case r.Closed:
		return explain.ClosedPhase(r.Phase, r.Outcome)
	case r.Gate == protocol.GateBreaker && r.Agent == "":
		return fmt.Sprintf("%s (no agent)", r.Phase)
	case r.Gate != "" && r.Gate != protocol.GateApproval:
		return fmt.Sprintf("%s (%s)", r.Phase, r.Gate)
	case !r.Closed && r.Level > 0:
		return fmt.Sprintf("%s, level %d", r.Phase, r.Level)
	}
	return string(r.Phase)
}

// rowTo is whom a handoff was for: an agent, or a capability that one was chosen by.
func rowTo(r ask.Row) string { return cmp.Or(r.Target, r.Agent) }

// rowWith is the agent that has a handoff, where it is another one.
func rowWith(r ask.Row) string {
	if r.Agent == rowTo(r) {
		return ""
	}
	return r.Agent
}

func rowTask(r ask.Row) string { return cmp.Or(r.Description, r.Why) }

// count prints how many handoffs there are.
func (a *app) count(ctx context.Context, r *api.Session, q ask.CountQuery, fresh freshness) error {
	answer, err := r.Count(ctx, q)
	if err == nil {
		err = fresh.check(answer.Position)
	}
	if err != nil {
		return err
	}
	if !a.text() {
		if answer.Groups == nil && len(q.By) > 0 {
			answer.Groups = []ask.CountGroup{}
		}
		return a.value(answer)
	}
	a.printf("%d\n", answer.Count)
	if len(answer.Groups) > 0 {
		var heading []string
		for _, by := range q.By {
			heading = append(heading, strings.ToUpper(string(by)))
		}
		heading = append(heading, "COUNT")
		if q.Had {
			heading = append(heading, "HAD")
		}
		rows := [][]string{heading}
		for _, group := range answer.Groups {
			row := append(slices.Clone(group.Values), fmt.Sprint(group.Count))
			if q.Had {
				row = append(row, fmt.Sprint(group.Had))
			}
			rows = append(rows, row)
		}
		if err := a.tables(rows); err != nil {
			return err
		}
	}
	return a.stand(fresh, answer.Position, "")
}

// filterFlags select handoffs. Values are checked by the index or the engine, which names the
// field.
type filterFlags struct {
	ask.Filter `flag:""`
	Closed     bool `flag:"closed" doc:"closed"`

	*binding
}

// declare adds the flags. Names that cannot have a comma in them may be given
// as a list; the ids of others may have one, so that they are one to a flag.
func (f *filterFlags) declare(fs *pflag.FlagSet) {
	all := newFlagPart()
	f.binding = bind(all, f)
	inOrder(fs, all, "agent source target phase outcome open closed")
}

// filter returns the filter of the flags, with whole tickets.
func (f *filterFlags) filter(ctx context.Context, a *app) (ask.Filter, error) {
	if err := a.tickets(ctx, f.Parent, f.Group, f.Ticket); err != nil {
		return f.Filter, err
	}
	if err := f.checkTexts(); err != nil {
		return f.Filter, err
	}
	if err := cmp.Or(checkAgents("agent", f.Agent), checkAgents("source", f.Source)); err != nil {
		return f.Filter, err
	}
	if f.Closed {
		if f.Open != nil && *f.Open {
			return f.Filter, usagef("--open and --closed exclude each other; without either both are meant")
		}
		f.Open = new(bool)
	}
	return f.Filter, nil
}

// checkAgents refuses names that no agent can have, in the field source also no schedule or rule.
func checkAgents(field string, agents []string) error {
	check := protocol.CheckID
	if field == "source" {
		check = ask.CheckFrom
	}
	for _, agent := range agents {
		if err := check(field, agent); err != nil {
			return err
		}
	}
	return nil
}

// relative returns the flags that are relative to now, and so mean another instant each time; with
// the instants that they mean now.
func (f *filterFlags) relative() (flags []string, instants string) {
	f.fs.VisitAll(func(flag *pflag.Flag) {
		if past, is := flag.Value.(*pastValue); is && past.ago {
			flags = append(flags, "--"+flag.Name)
			instants += " --" + flag.Name + " " + past.to.Format(time.RFC3339Nano)
		}
	})
	return flags, instants
}

func asWords[T ~string](values []T) []string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = string(v)
	}
	return texts
}

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
