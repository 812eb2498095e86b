package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/dossier"
	"github.com/agenthandoff/handoff/explain"
	"github.com/agenthandoff/handoff/index/ask"
)

const statsHelp = `Stats sums up the handoffs that the filters leave (those of handoff list): in all, by
agent, by source and target, by type, with the most frequent reasons for a refusal and
the workflows with the most handoffs.

  success      of those that closed, how many with success or in part
  accepted     of the acknowledgements, how many were not a refusal
  queue        from the first offer until it was taken
  work         from the last time that it was taken until it closed
  whole        from submission until it closed

Durations are percentiles: half of the handoffs took no longer than p50, 95 of 100 no
longer than p95. With -o json durations are milliseconds and rates 0 to 1.

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
	)
	cmd := &cobra.Command{
		Use:     "stats",
		Aliases: []string{"figures"},
		Short:   "Show how handoffs went: success, acceptance, durations, refusals, tokens",
		Long:    statsHelp,
		Example: `  handoff stats
  handoff stats --agent reviewer --since 7d
  handoff stats --series 1h --agent reviewer
  handoff stats --since 1d -o json | jq '.by_agent[] | {key, success, p95: .whole_ms.p95}'`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if top < 1 {
				return usagef("--top %d: show one row at least", top)
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
				return a.onReader(cmd.Context(), func(ctx context.Context, r dossier.Reader) error {
					return a.series(ctx, r, q, fresh)
				})
			}
			return a.onReader(cmd.Context(), func(ctx context.Context, r dossier.Reader) error {
				answer, err := r.Figures(ctx, ask.FiguresQuery{Question: fresh.ask(), Filter: filter, Top: top})
				if err == nil {
					err = fresh.check(answer.Position)
				}
				if err != nil {
					return err
				}
				if !a.text() {
					return a.value(answer)
				}
				if err := a.figures(answer); err != nil {
					return err
				}
				return a.stand(fresh, answer.Position, "")
			})
		},
	}
	flags.declare(a, cmd)
	cmd.Flags().IntVar(&top, "top", 10, fmt.Sprintf("`N` rows of each table, at most %d", ask.FiguresTopMax))
	cmd.Flags().StringVar(&width, "series", "", "show buckets of this `WIDTH`: 10m, 1h, 1d")
	cmd.MarkFlagsMutuallyExclusive("series", "top")
	fresh.flag(cmd)
	return cmd
}

// figures prints figures for people.
func (a *app) figures(f ask.FiguresAnswer) error {
	all := f.All
	if err := a.fields(
		"handoffs", fmt.Sprintf("%d, %d of them open", all.Handoffs, all.Open),
		"success", rateOf(all.Success, all.Succeeded, all.Succeeded+all.Failed),
		"accepted", rateOf(all.Acceptance, all.Accepted, all.Accepted+all.Refused),
		"queue", durations(all.Queue),
		"work", durations(all.Work),
		"whole", durations(all.Whole),
		"attempts", fmt.Sprint(all.Attempts),
		"tokens", fmt.Sprint(all.Tokens),
	); err != nil {
		return err
	}
	for _, t := range []struct {
		of   string
		rows []ask.Figures
	}{{"AGENT", f.ByAgent}, {"FROM -> TO", f.ByPair}, {"TYPE", f.ByType}} {
		if len(t.rows) == 0 {
			continue
		}
		rows := [][]string{{t.of, "HANDOFFS", "OPEN", "SUCCESS", "ACCEPTED", "QUEUE P50/P95", "WORK P50/P95", "WHOLE P50/P95", "TOKENS"}}
		for _, r := range t.rows {
			rows = append(rows, []string{r.Key, fmt.Sprint(r.Handoffs), fmt.Sprint(r.Open), percent(r.Success), percent(r.Acceptance),
				twoOf(r.Queue), twoOf(r.Work), twoOf(r.Whole), fmt.Sprint(r.Tokens)})
		}
		a.printf("\n")
		if err := a.table(rows); err != nil {
			return err
		}
	}
	return a.causes(f)
}

// causes prints why agents refused, and what there was most of.
func (a *app) causes(f ask.FiguresAnswer) error {
	if len(f.Refusals) > 0 {
		rows := [][]string{{"REFUSALS", "BY", "BECAUSE"}}
		for _, r := range f.Refusals {
			rows = append(rows, []string{fmt.Sprint(r.Count), r.Agent, r.Reason})
		}
		a.printf("\n")
		if err := a.tableFit(rows); err != nil {
			return err
		}
	}
	if len(f.Workflows) > 0 {
		rows := [][]string{{"HANDOFFS", "WORKFLOW"}}
		for _, w := range f.Workflows {
			rows = append(rows, []string{fmt.Sprint(w.Count), strings.Join(w.Values, ", ")})
		}
		a.printf("\n")
		return a.tableFit(rows)
	}
	return nil
}

func rateOf(rate *float64, n, of int64) string {
	if rate == nil {
		return ""
	}
	return fmt.Sprintf("%s (%d of %d)", percent(rate), n, of)
}

func percent(rate *float64) string {
	if rate == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100**rate)
}

func durations(d ask.Durations) string {
	if d.Count == 0 {
		return ""
	}
	return fmt.Sprintf("p50 %s, p95 %s, p99 %s (of %d)", explain.Millis(d.P50), explain.Millis(d.P95), explain.Millis(d.P99), d.Count)
}

func twoOf(d ask.Durations) string {
	if d.Count == 0 {
		return "-"
	}
	return explain.Millis(d.P50) + " / " + explain.Millis(d.P95)
}
