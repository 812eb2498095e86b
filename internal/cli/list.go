package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/index/ask"
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
	alone      bool  // the cursor is not told
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

// runList lists, counts or watches, as the flags say.
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
	return a.onReader(ctx, filter.Agent, func(ctx context.Context, r dossier.Reader) error {
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
