package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// listFlags are the flags of list.
type listFlags struct {
	filter     filterFlags
	fresh      freshness
	sort       string
	limit      int
	cursor     string
	all, count bool
	by         []string
	watch      bool
	table      table // how it looks to people
	alone      bool  // the cursor is not printed
}

func newList(a *app) *cobra.Command {
	flags := listFlags{table: listTable}
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List or count handoffs: by agent, phase, outcome, age, words and more",
		Long: `List shows the handoffs that all the filters leave. A filter that is given more than
once, or with commas, takes any of its values.

The newest come first (--sort oldest, updated). There are 50 (--limit N, --all); the
cursor that is printed behind them goes on with the next ones (--cursor), and stays
right while handoffs are added. It is good for the same filters and order alone;
beside one, --since and the like are instants.

--count prints how many there are, with --by also how many of each of these:
` + strings.Join(asWords(ask.Bys), ", ") + `.
A count by target says two things of each name: how many asked for it (COUNT), and how
many were with it, whichever agent was asked (HAD).

--watch goes on until Ctrl-C: on a terminal the list is drawn again when something
changes; with -o jsonl, or into a file, each handoff that changes is printed.

It asks an index (handoff index; handoff dev has one). What was acknowledged before
you ask is in the answer; if the index cannot vouch for that within 2 s, nothing is
printed, unless you say --stale. With -o json the answer is one object that says what
it rests on (seq, behind, complete); with -o jsonl each handoff is a line, and a line
on standard error says that.

Exit codes: 0 here it is, empty or not; 6 no index answers; 9 a filter or a
cursor is refused; 10 the index is behind.`,
		Example: `  handoff list --open
  handoff list --agent reviewer --outcome failed,timeout --since 1d
  handoff list --text "login form" --sort oldest --all -o jsonl | jq -r .ticket
  handoff list --count --by source,target --since 7d
  handoff list --open --until 1h                # submitted more than an hour ago
  handoff list --conversation c-17 --watch`,
		Args: takes(),
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			return flags.check(a, cmd)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runList(cmd.Context(), flags) },
	}
	flags.filter.declare(a, cmd)
	fs := cmd.Flags()
	fs.StringVar(&flags.sort, "sort", string(ask.SortNewest), "in this `ORDER`: "+strings.Join(asWords(ask.Sorts), ", "))
	fs.IntVar(&flags.limit, "limit", ask.PageDefault, "at most `N` of them")
	fs.StringVar(&flags.cursor, "cursor", "", "go on behind the `CURSOR` of the list before")
	fs.BoolVar(&flags.all, "all", false, "all of them")
	fs.BoolVar(&flags.count, "count", false, "print how many there are instead")
	fs.StringSliceVar(&flags.by, "by", nil, "with --count: how many of each `FIELD`, up to three")
	fs.BoolVar(&flags.watch, "watch", false, "go on, and show what changes")
	flags.fresh.flag(cmd)
	a.words(cmd, "sort", asWords(ask.Sorts)...)
	a.words(cmd, "by", asWords(ask.Bys)...)
	return cmd
}

// runList lists, counts or watches, by the flags.
func (a *app) runList(ctx context.Context, flags listFlags) error {
	if err := flags.filter.resolve(ctx, a); err != nil {
		return err
	}
	filter, err := flags.filter.filter(time.Now())
	if err != nil {
		return err
	}
	relative, _ := flags.filter.relative(filter)
	if flags.cursor != "" && len(relative) > 0 {
		return usagef("%s: how long ago is another instant each time, and a cursor is of one; give the instant of the list before", relative[0])
	}
	return a.onReader(ctx, filter.Agent, func(ctx context.Context, r *api.Session) error {
		q := ask.ListQuery{Question: flags.fresh.ask(), Filter: filter, Sort: ask.Sort(flags.sort), Cursor: flags.cursor}
		switch {
		case flags.count:
			return a.count(ctx, r, ask.CountQuery{Question: q.Question, Filter: filter, By: fromWords[ask.By](flags.by),
				Had: slices.Contains(flags.by, string(ask.ByTarget))}, flags.fresh)
		case flags.watch:
			return a.watch(ctx, r, q, flags)
		}
		return a.list(ctx, r, q, flags)
	})
}

// check refuses flags that do not go together.
func (f *listFlags) check(a *app, cmd *cobra.Command) error {
	given := cmd.Flags().Changed
	paging := slices.ContainsFunc([]string{"sort", "limit", "cursor", "all"}, given)
	switch {
	case f.limit < 1:
		return usagef("--limit %d: list one at least", f.limit)
	case f.all && given("limit"):
		return usagef("--all and --limit exclude each other")
	case f.count && (paging || f.watch):
		return usagef("--count counts all of them: --sort, --limit, --cursor, --all and --watch do not go with it")
	case !f.count && len(f.by) > 0:
		return usagef("--by goes with --count")
	case f.watch && (f.all || f.cursor != ""):
		return usagef("--watch shows the first of them: --all and --cursor do not go with it")
	case f.watch && a.format == formatJSON:
		return usagef("--watch has no end, so it is no document; use -o jsonl")
	}
	return nil
}

// list prints a list, whole or up to a limit.
func (a *app) list(ctx context.Context, r api.Reader, q ask.ListQuery, flags listFlags) error {
	most := flags.limit
	if flags.all {
		most = 0
	}
	whole := ask.ListAnswer{Handoffs: []ask.Row{}}
	var err error
	found := 0
	whole.Position, whole.Cursor, err = pages(ctx, r, q, most, flags.fresh, func(rows []ask.Row) error {
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
			_, instants := flags.filter.relative(q.Filter)
			a.notef("handoff: there are more; go on with --cursor %s%s\n", whole.Cursor, instants)
		}
	}
	return a.stand(flags.fresh, whole.Position, whole.Cursor)
}

// pages reads page after page, each as fresh as it is asked for; see ask.Pages.
func pages(ctx context.Context, r api.Reader, q ask.ListQuery, most int, fresh freshness, fn func([]ask.Row) error) (stand ask.Position, cursor string, err error) {
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
		return []any{r.Ticket, rowPhase(r), r.Priority, explain.Ago(r.SubmittedAt, now), r.Source, rowTo(r), rowWith(r), rowTask(r)}
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
func (a *app) count(ctx context.Context, r api.Reader, q ask.CountQuery, fresh freshness) error {
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

// checkText refuses invalid text: JSON would put something else in its place, and look for that.
func checkText(field, text string) error {
	if !utf8.ValidString(text) {
		return protocol.Errorf(protocol.CodeText, field, "holds bytes that are no UTF-8")
	}
	return nil
}

// filterFlags select handoffs. Values are checked by the index or the engine, which names the
// field.
type filterFlags struct {
	agent, source, target             []string
	phase, outcome, priority, kind    []string
	workflow, conversation, task      []string
	parent, group, ticket             []string
	gate, variant                     []string
	open, closed, barred, deadlocked  bool
	since, until, changedSince, words string
}

// declare adds the flags. Names that cannot have a comma in them may be given
// as a list; the ids of others may have one, so that they are one to a flag.
func (f *filterFlags) declare(a *app, cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.SortFlags = false
	list := func(into *[]string, name, usage string) { fs.StringSliceVar(into, name, nil, usage) }
	each := func(into *[]string, name, usage string) { fs.StringArrayVar(into, name, nil, usage) }
	list(&f.agent, "agent", "in the queue or the hands of this `AGENT`, or last there")
	list(&f.source, "source", "handed off by this `AGENT`")
	each(&f.target, "target", "asked for this `TARGET`: an agent, or what it must be able to do")
	list(&f.phase, "phase", "in this `PHASE`")
	list(&f.outcome, "outcome", "closed with this `OUTCOME`")
	fs.BoolVar(&f.open, "open", false, "not closed")
	fs.BoolVar(&f.closed, "closed", false, "closed")
	list(&f.priority, "priority", "of this `PRIORITY`")
	list(&f.kind, "type", "of this `TYPE`")
	each(&f.workflow, "workflow", "of the workflow with this `ID`")
	each(&f.conversation, "conversation", "of the conversation with this `ID`")
	each(&f.task, "task", "of the task with this `ID`")
	list(&f.variant, "variant", "in this `VARIANT` of an experiment, as models/new")
	list(&f.parent, "parent", "handed off by this `TICKET`")
	list(&f.group, "group", "members of the group with this `TICKET`")
	list(&f.ticket, "ticket", "with this `TICKET`")
	list(&f.gate, "gate", "waiting for this `GATE` before its next offer: "+strings.Join(asWords(protocol.GateKinds), ", "))
	fs.BoolVar(&f.barred, "barred", false, "refused a hand-off by a limit or a rule")
	fs.BoolVar(&f.deadlocked, "deadlocked", false, "taken out of a circle of handoffs that waited for one another, or a hand-off of it was refused as circular")
	fs.StringVar(&f.since, "since", "", "submitted since `WHEN`: an instant, or a duration ago (2h, 3d)")
	fs.StringVar(&f.until, "until", "", "submitted before `WHEN`")
	fs.StringVar(&f.changedSince, "changed-since", "", "changed since `WHEN`")
	fs.StringVar(&f.words, "text", "", "with all these `WORDS` in the task's description or the reason; wor* is a beginning")
	a.agentFlags(cmd, "agent", "source", "target")
	a.words(cmd, "phase", asWords(protocol.Phases)...)
	a.words(cmd, "outcome", asWords(protocol.Outcomes)...)
	a.words(cmd, "priority", asWords(protocol.Priorities)...)
	a.words(cmd, "gate", asWords(protocol.GateKinds)...)
	a.words(cmd, "type", asWords(protocol.Types)...)
}

// resolve makes whole tickets of beginnings.
func (f *filterFlags) resolve(ctx context.Context, a *app) error {
	return a.tickets(ctx, f.parent, f.group, f.ticket)
}

// filter returns the filter of the flags.
func (f *filterFlags) filter(now time.Time) (ask.Filter, error) {
	filter := ask.Filter{
		Agent: f.agent, Source: f.source, Target: f.target,
		Phase: fromWords[protocol.Phase](f.phase), Outcome: fromWords[protocol.Outcome](f.outcome),
		Priority: fromWords[protocol.Priority](f.priority), Type: fromWords[protocol.Type](f.kind),
		WorkflowID: f.workflow, ConversationID: f.conversation, TaskID: f.task, Variant: f.variant,
		Parent: f.parent, Group: f.group, Ticket: f.ticket, Text: f.words,
		Gate: fromWords[protocol.GateKind](f.gate), Barred: f.barred, Deadlocked: f.deadlocked,
	}
	for field, values := range map[string][]string{"agent": f.agent, "source": f.source, "target": f.target, "phase": f.phase,
		"outcome": f.outcome, "gate": f.gate, "priority": f.priority, "type": f.kind, "workflow": f.workflow, "conversation": f.conversation, "task": f.task, "variant": f.variant,
		"parent": f.parent, "group": f.group, "ticket": f.ticket, "text": {f.words}} {
		for _, value := range values {
			check := checkText
			if field == "agent" || field == "source" {
				check = protocol.CheckID
			}
			if err := check(field, value); err != nil {
				return filter, err
			}
		}
	}
	if f.open && f.closed {
		return filter, usagef("--open and --closed exclude each other; without either both are meant")
	}
	if f.open || f.closed {
		filter.Open = &f.open
	}
	var err error
	now = now.Truncate(time.Millisecond)
	if filter.Since, err = pastFlag("since", f.since, now); err != nil {
		return filter, err
	}
	if filter.Until, err = pastFlag("until", f.until, now); err != nil {
		return filter, err
	}
	filter.UpdatedSince, err = pastFlag("changed-since", f.changedSince, now)
	return filter, err
}

// relative returns the flags that are relative to now, and so mean another instant each time; with
// the instants that they mean now.
func (f *filterFlags) relative(filter ask.Filter) (flags []string, instants string) {
	for _, at := range []struct {
		flag, text string
		means      protocol.Time
	}{{"--since", f.since, filter.Since}, {"--until", f.until, filter.Until}, {"--changed-since", f.changedSince, filter.UpdatedSince}} {
		if _, err := parseDuration(at.text); err == nil {
			flags = append(flags, at.flag)
			instants += " " + at.flag + " " + at.means.Format(time.RFC3339Nano)
		}
	}
	return flags, instants
}

func asWords[T ~string](values []T) []string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = string(v)
	}
	return texts
}

func fromWords[T ~string](texts []string) []T {
	if len(texts) == 0 {
		return nil
	}
	values := make([]T, len(texts))
	for i, text := range texts {
		values[i] = T(text)
	}
	return values
}
