package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/index/ask"
)

const statsHelp = `Stats sums up the handoffs that the filters leave (those of handoff list): in all, by
agent, by source and target, by type, with the most frequent reasons for a refusal and
the workflows with the most handoffs. What governance did follows: the hand-offs that a
limit or a rule barred, what handoffs waited for at gates, budgets, and breakers.

  success      of those that closed, how many with success or in part
  accepted     of the acknowledgements, how many were not a refusal
  queue        from the first offer until it was taken
  work         from the last time that it was taken until it closed
  whole        from submission until it closed

  barred       hand-offs that were refused to the holder of a handoff
  ended        of handoffs at a gate, those that closed without its verdict
  granted      to handoffs that follow from no other, for all that follows from them;
               so are used, reserved and over
  trips        how often a breaker has opened since it was closed last

Durations are percentiles: half of the handoffs took no longer than p50, 95 of 100 no
longer than p95. With -o json durations are milliseconds and rates 0 to 1.

--summary shows five of these alone: how many handoffs each workflow had, what each agent
has used, how long handoffs took on average, which breakers are not closed, and how many
deadlocks there were: handoffs taken out of one, and hand-offs refused as circular. Breakers
are as they stand now, whatever the filter.

--by variant compares the variants of experiments alone (handoff fleet set experiments=…); so
do the other words for their table.

--series WIDTH shows what happened over time instead: how many handoffs were submitted, and
closed with and without success, in each bucket of this width since --since (the last 24
buckets), and how long the closed ones took.

It asks an index (handoff index; handoff dev has one); see handoff list --help for
what it vouches for.

Exit codes: 0 here they are; 6 no index answers; 9 a filter is refused; 10 the
index is behind.`

func newStats(a *app) *cobra.Command {
	var (
		flags filterFlags
		fresh freshness
		top   int
		width string
		brief bool
		by    string
	)
	cmd := &cobra.Command{
		Use:     "stats",
		Aliases: []string{"figures"},
		Short:   "Show how handoffs went: success, acceptance, durations, refusals, tokens",
		Long:    statsHelp,
		Example: `  handoff stats
  handoff stats --agent reviewer --since 7d
  handoff stats --by variant --since 7d
  handoff stats --series 1h --agent reviewer
  handoff stats --since 1d -o json | jq '.by_agent[] | {key, success, p95: .whole_ms.p95}'`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if top < 1 {
				return usagef("--top %d: show one row at least", top)
			}
			if !slices.ContainsFunc(figureTables, func(t figureTable) bool { return t.by == by }) && cmd.Flags().Changed("by") {
				return usagef("--by %s: one of agent, pair, type, variant", by)
			}
			if err := flags.resolve(cmd.Context(), a); err != nil {
				return err
			}
			filter, err := flags.filter(time.Now())
			if err != nil {
				return err
			}
			if width != "" {
				q, err := seriesQuery(width, filter, time.Now())
				if err != nil {
					return err
				}
				return a.onReader(cmd.Context(), filter.Agent, func(ctx context.Context, r dossier.Reader) error {
					return a.series(ctx, r, q, fresh)
				})
			}
			return a.askFigures(cmd.Context(), ask.FiguresQuery{Question: fresh.ask(), Filter: filter, Top: top}, by, brief, fresh)
		},
	}
	flags.declare(a, cmd)
	cmd.Flags().IntVar(&top, "top", 10, fmt.Sprintf("`N` rows of each table, at most %d", ask.FiguresTopMax))
	cmd.Flags().StringVar(&width, "series", "", "show buckets of this `WIDTH`: 10m, 1h, 1d")
	cmd.Flags().BoolVar(&brief, "summary", false, "show five figures alone: handoffs of each workflow, tokens and cost of each agent, durations, breakers, deadlocks")
	cmd.Flags().StringVar(&by, "by", "", "show the table by this `WORD` alone: agent, pair, type or variant")
	a.words(cmd, "by", "agent", "pair", "type", "variant")
	cmd.MarkFlagsMutuallyExclusive("series", "by", "summary")
	cmd.MarkFlagsMutuallyExclusive("series", "top")
	fresh.flag(cmd)
	return cmd
}

// askFigures asks for figures and prints them: all, one table, or the five of a summary.
func (a *app) askFigures(ctx context.Context, q ask.FiguresQuery, by string, brief bool, fresh freshness) error {
	return a.onSessionAbout(ctx, q.Filter.Agent, func(ctx context.Context, r *api.Session) error {
		answer, err := r.Figures(ctx, q)
		if err == nil {
			err = fresh.check(answer.Position)
		}
		if err != nil {
			return err
		}
		if by != "" {
			return a.statsBy(by, answer, fresh)
		}
		breakers, err := r.Breakers(ctx)
		if errors.Is(err, broker.ErrNotAllowed) { // readers see the ledger, and not the agents
			a.notef("breakers are left out: this user may not read about agents\n")
		} else if err != nil {
			return err
		}
		if brief {
			return a.summary(answer, breakers, fresh)
		}
		return a.stats(statsAnswer{answer, orEmpty(breakers)}, fresh)
	})
}
