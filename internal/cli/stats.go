package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

const statsHelp = `Stats sums up the handoffs that the filters leave (those of handoff list): in all, by
agent, by source and target, by type, with the most frequent reasons for a refusal and
the workflows with the most handoffs. The figures of governance follow: hand-offs that a
limit or a rule barred, waits at gates, budgets, and breakers.

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

--summary shows five of these alone: how many handoffs each workflow had, the use of
each agent, how long handoffs took on average, which breakers are not closed, and how
many deadlocks there were: handoffs taken out of one, and hand-offs refused as circular.
Breakers, limits by key, schedules, rules and signals are the present ones, whatever the filter.

--by variant compares the variants of experiments alone (handoff fleet set experiments=…); so
do the other words for their table.

--series WIDTH shows figures over time instead: how many handoffs were submitted, and
closed with and without success, in each bucket of this width since --since (the last 24
buckets), and how long the closed ones took.

It asks an index (handoff index; handoff dev has one); handoff list --help describes its
guarantees.

Exit codes: 0 here they are; 6 no index answers; 9 a filter is refused; 10 the
index is behind.`

// statsFlags are the flags of stats.
type statsFlags struct {
	Top     int           `flag:"top" doc:"{N} rows of each table, at most 100"`
	Series  time.Duration `flag:"series" doc:"show buckets of this {WIDTH}: 10m, 1h, 1d"`
	Summary bool          `flag:"summary" doc:"show five figures alone: handoffs of each workflow, tokens and cost of each agent, durations, breakers, deadlocks"`
	By      string        `flag:"by" doc:"show the table by this {WORD} alone: agent, pair, type or variant"`
	Fresh   freshness     `flag:""`
}

func newStats(a *app) *cobra.Command {
	var filters filterFlags
	flags := statsFlags{Top: 10}
	cmd := &cobra.Command{
		Use:     "stats",
		Aliases: []string{"figures"},
		Short:   "Sum up handoffs: success, acceptance, durations, refusals, tokens",
		Long:    statsHelp,
		Example: `  handoff stats
  handoff stats --agent reviewer --since 7d
  handoff stats --by variant --since 7d
  handoff stats --series 1h --agent reviewer
  handoff stats --since 1d -o json | jq '.by_agent[] | {key, success, p95: .whole_ms.p95}'`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if flags.Top < 1 {
				return usagef("--top %d: show one row at least", flags.Top)
			}
			if !slices.ContainsFunc(figureTables, func(t figureTable) bool { return t.by == flags.By }) && cmd.Flags().Changed("by") {
				return usagef("--by %s: one of agent, pair, type, variant", flags.By)
			}
			filter, err := filters.filter(cmd.Context(), a)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("series") {
				q, err := seriesQuery(flags.Series, filter, time.Now())
				if err != nil {
					return err
				}
				return a.onReader(cmd.Context(), filter.Agent, func(ctx context.Context, r *api.Session) error {
					return a.series(ctx, r, q, flags.Fresh)
				})
			}
			return a.askFigures(cmd.Context(), ask.FiguresQuery{Question: flags.Fresh.ask(), Filter: filter, Top: flags.Top}, flags.By, flags.Summary, flags.Fresh)
		},
	}
	filters.declare(cmd.Flags())
	bind(cmd.Flags(), &flags)
	cmd.MarkFlagsMutuallyExclusive("series", "by", "summary")
	cmd.MarkFlagsMutuallyExclusive("series", "top")
	return cmd
}

// askFigures asks for figures and prints them: all, one table, or the five of a summary.
func (a *app) askFigures(ctx context.Context, q ask.FiguresQuery, by string, brief bool, fresh freshness) error {
	return a.onReader(ctx, q.Filter.Agent, func(ctx context.Context, r *api.Session) error {
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
		var triggers *dossier.Triggers
		breakers, err := r.Breakers(ctx)
		if err == nil && !brief {
			triggers, err = dossier.ReadTriggers(ctx, r, a.now())
		}
		var limits []lifecycle.KeyStatus
		if err == nil && !brief {
			limits, err = readKeys(ctx, r)
		}
		if errors.Is(err, broker.ErrNotAllowed) { // readers see the ledger, and not the agents
			a.notef("breakers and schedules are left out: this user may not read about agents\n")
		} else if err != nil {
			return err
		}
		if brief {
			return a.summary(answer, breakers, fresh)
		}
		return a.stats(statsAnswer{answer, orEmpty(breakers), triggers, limits}, fresh)
	})
}

// statsSummary are the figures of "stats --summary".
type statsSummary struct {
	ask.Position
	Handoffs  int64         `json:"handoffs"`
	Workflows []workflowSum `json:"workflows"`
	Agents    []agentSum    `json:"agents"`
	Latency   latency       `json:"latency_ms"`
	Breakers  []breakerSum  `json:"breakers"`
	Deadlocks int64         `json:"deadlocks"`
}

// breakerSum is the present state of an agent's breaker.
type breakerSum struct {
	Agent    string                 `json:"agent"`
	State    lifecycle.BreakerState `json:"state"`
	Trips    int                    `json:"trips"`
	OpenedAt time.Time              `json:"opened_at,omitzero"`
	Until    time.Time              `json:"until,omitzero"`
}

type workflowSum struct {
	Workflow string `json:"workflow"`
	Handoffs int    `json:"handoffs"`
}

type agentSum struct {
	Agent      string `json:"agent"`
	Handoffs   int64  `json:"handoffs"`
	Tokens     *int64 `json:"tokens"` // null where no usage is known
	CostMicros *int64 `json:"cost_micros"`
}

// latency is from submission to the end.
type latency struct {
	Mean   int64 `json:"mean"`
	Median int64 `json:"median"`
	Of     int64 `json:"of"`
}

// summary prints the few figures for the health of a fleet.
func (a *app) summary(f ask.FiguresAnswer, breakers []api.BreakerStatus, fresh freshness) error {
	s := statsSummary{Position: f.Position, Handoffs: f.All.Handoffs, Workflows: []workflowSum{}, Agents: []agentSum{},
		Latency:  latency{Mean: f.All.Whole.Mean, Median: f.All.Whole.P50, Of: f.All.Whole.Count},
		Breakers: []breakerSum{}, Deadlocks: f.Deadlocks}
	for _, v := range breakers {
		s.Breakers = append(s.Breakers, breakerSum{v.Agent, v.State, v.Trips, v.OpenedAt, v.Until})
	}
	for _, w := range f.Workflows {
		s.Workflows = append(s.Workflows, workflowSum{strings.Join(w.Values, ", "), int(w.Count)})
	}
	for _, r := range f.ByAgent {
		s.Agents = append(s.Agents, agentSum{r.Key, r.Handoffs, r.Tokens, r.CostMicros})
	}
	if !a.text() {
		return a.value(s)
	}
	a.fields("handoffs", fmt.Sprint(s.Handoffs), "latency", s.Latency.words(),
		"breakers", breakerCounts(breakers), "deadlocks", fmt.Sprint(s.Deadlocks))
	if err := a.tables(rowsOf("WORKFLOW|HANDOFFS", s.Workflows, func(w workflowSum) []any { return []any{w.Workflow, w.Handoffs} }),
		rowsOf("AGENT|HANDOFFS|TOKENS|COST", f.ByAgent, func(r ask.Figures) []any {
			return []any{r.Key, r.Handoffs, knownTokens(r), cmp.Or(costOf(r), "-")}
		}), breakerRows(breakers)); err != nil {
		return err
	}
	return a.stand(fresh, f.Position, "")
}

func (l latency) words() string {
	if l.Of == 0 {
		return ""
	}
	return fmt.Sprintf("mean %s, median %s (of %d closed)", explain.Millis(l.Mean), explain.Millis(l.Median), l.Of)
}

// seriesBuckets is how many buckets a series has without --since.
const seriesBuckets = 24

// seriesQuery asks for buckets of a width from --since to --until, or for the last ones.
func seriesQuery(d time.Duration, filter ask.Filter, now time.Time) (ask.SeriesQuery, error) {
	if d < time.Millisecond {
		return ask.SeriesQuery{}, usagef("--series %s: a bucket is as wide as a duration: 10m, 1h, 1d", d)
	}
	q := ask.SeriesQuery{Since: filter.Since, Until: filter.Until, BucketMS: d.Milliseconds()}
	if q.Until.IsZero() {
		q.Until = now
	}
	if q.Since.IsZero() {
		q.Since = q.Until.Truncate(d).Add(-(seriesBuckets - 1) * d)
	}
	filter.Since, filter.Until = protocol.Time{}, protocol.Time{} // these bound the series
	q.Filter = filter
	return q, nil
}

// series prints a series.
func (a *app) series(ctx context.Context, r *api.Session, q ask.SeriesQuery, fresh freshness) error {
	q.Question = fresh.ask()
	answer, err := r.Series(ctx, q)
	if err == nil {
		err = fresh.check(answer.Position)
	}
	if err != nil {
		return err
	}
	if !a.text() {
		return a.value(answer)
	}
	if err := a.table(rowsOf("SINCE (UTC)|SUBMITTED|SUCCEEDED|FAILED|WHOLE P50/P95", answer.Buckets, func(b ask.Bucket) []any {
		return []any{b.Since.UTC().Format(time.DateTime), b.Submitted, b.Succeeded, b.Failed, twoOf(b.Whole)}
	})); err != nil {
		return err
	}
	return a.stand(fresh, answer.Position, "")
}

// figureTable is a table of figures, and the word that names it.
type figureTable struct {
	by, head string
	rows     func(*ask.FiguresAnswer) []ask.Figures
}

var figureTables = []figureTable{
	{"agent", "AGENT", func(f *ask.FiguresAnswer) []ask.Figures { return f.ByAgent }},
	{"pair", "FROM -> TO", func(f *ask.FiguresAnswer) []ask.Figures { return f.ByPair }},
	{"type", "TYPE", func(f *ask.FiguresAnswer) []ask.Figures { return f.ByType }},
	{"variant", "VARIANT", func(f *ask.FiguresAnswer) []ask.Figures { return f.ByVariant }},
}

// figureRows makes one table of figures.
func figureRows(head string, all []ask.Figures) [][]string {
	return rowsOf(head+"|HANDOFFS|OPEN|SUCCESS|ACCEPTED|QUEUE P50/P95|WORK P50/P95|WHOLE P50/P95|TOKENS|COST", all, func(r ask.Figures) []any {
		return []any{r.Key, r.Handoffs, r.Open, percent(r.Success), percent(r.Acceptance), twoOf(r.Queue), twoOf(r.Work), twoOf(r.Whole),
			knownTokens(r), cmp.Or(costOf(r), "-")}
	})
}

// statsBy prints the table of one word alone.
func (a *app) statsBy(by string, f ask.FiguresAnswer, fresh freshness) error {
	for _, t := range figureTables {
		if t.by != by {
			continue
		}
		rows := t.rows(&f)
		if err := printedList(a, rows, nil, func([]ask.Figures) error {
			if len(rows) == 0 {
				return nil
			}
			return a.table(figureRows(t.head, rows))
		}); err != nil || !a.text() {
			return err
		}
		return a.stand(fresh, f.Position, "")
	}
	return nil
}

// governance prints the figures of limits, gates and breakers.
func (a *app) governance(s statsAnswer) error {
	return a.tables(
		rowsOf("BARRED|CODE|FROM -> TO", s.Barred, func(b ask.BarredCount) []any {
			return []any{b.Count, b.Code, b.From + " -> " + cmp.Or(b.To, "?")}
		}),
		rowsOf("GATE|WAITING|PASSED|DENIED|LAPSED|ENDED|WAITED P50/P95", s.Gates, func(g ask.GateFigures) []any {
			return []any{g.Gate, g.Waiting, g.Passed, g.Denied, g.Lapsed, g.Ended, twoOf(g.Waited)}
		}),
		rowsOf("LIMIT|HANDOFFS|GRANTED|USED|RESERVED|OVER|OF HANDOFFS", s.Budgets, func(b ask.BudgetFigures) []any {
			return []any{b.Limit, b.Handoffs, amountOf(b, b.Granted), amountOf(b, b.Used), amountOf(b, b.Reserved), amountOf(b, b.Over), b.OverHandoffs}
		}),
		breakerRows(s.Breakers), keyRows(s.Limits), triggerRows(s.Triggers, a.now()))
}

// amountOf is an amount of a budget; costs are in the currency of the fleet.
func amountOf(b ask.BudgetFigures, n int64) string {
	if b.Limit == "max_cost_micros" && n != 0 {
		return explain.Cost(n)
	}
	return fmt.Sprint(n)
}

// breakerRows are the breakers that are not closed, and those whose agents failed recently.
func breakerRows(all []api.BreakerStatus) [][]string {
	all = slices.DeleteFunc(slices.Clone(all), func(v api.BreakerStatus) bool { return v.State == lifecycle.BreakerClosed && v.Failed == 0 })
	return rowsOf("BREAKER|IS|FAILED|TRIPS|SINCE|CHANGES", all, func(v api.BreakerStatus) []any {
		return []any{v.Agent, v.State, fmt.Sprintf("%d/%d", v.Failed, v.Policy.Threshold), v.Trips,
			cmp.Or(explain.Instant(v.OpenedAt), "-"), cmp.Or(explain.Instant(v.Until), "-")}
	})
}

// breakerCounts returns how many breakers are in each state: 2 closed, 1 open.
func breakerCounts(all []api.BreakerStatus) string {
	var words []string
	for _, state := range []lifecycle.BreakerState{lifecycle.BreakerClosed, lifecycle.BreakerHalfOpen, lifecycle.BreakerOpen} {
		n := 0
		for _, v := range all {
			if v.State == state {
				n++
			}
		}
		if n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, state))
		}
	}
	return cmp.Or(strings.Join(words, ", "), "none")
}

// orNone is a number; none is nothing.
func orNone[N int64 | uint64](n N) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// statsAnswer are the figures of "stats".
type statsAnswer struct {
	ask.FiguresAnswer
	Breakers []api.BreakerStatus   `json:"breakers"`
	Triggers *dossier.Triggers     `json:"triggers,omitempty"` // schedules, rules and signals, if there are any
	Limits   []lifecycle.KeyStatus `json:"limits,omitempty"`   // the keys with a limit
}

func (a *app) stats(s statsAnswer, fresh freshness) error {
	if !a.text() {
		return a.value(s)
	}
	if err := a.figures(s.FiguresAnswer, s.Triggers.Signals()); err != nil {
		return err
	}
	if err := a.governance(s); err != nil {
		return err
	}
	return a.stand(fresh, s.Position, "")
}

// figures prints figures for people.
func (a *app) figures(f ask.FiguresAnswer, signals string) error {
	all := f.All
	a.fields(
		"handoffs", fmt.Sprintf("%d, %d of them open", all.Handoffs, all.Open),
		"success", rateOf(all.Success, all.Succeeded, all.Succeeded+all.Failed),
		"accepted", rateOf(all.Acceptance, all.Accepted, all.Accepted+all.Refused),
		"queue", durations(all.Queue),
		"work", durations(all.Work),
		"whole", durations(all.Whole),
		"attempts", fmt.Sprint(all.Attempts),
		"tokens", tokensOf(all),
		"cost", costOf(all),
		"deadlocks", orNone(f.Deadlocks),
		"signals", signals,
	)
	var tables [][][]string
	for _, t := range figureTables {
		tables = append(tables, figureRows(t.head, t.rows(&f)))
	}
	return a.tables(append(tables,
		rowsOf("REFUSALS|BY|BECAUSE", f.Refusals, func(r ask.RefusalCount) []any { return []any{r.Count, r.Agent, r.Reason} }),
		rowsOf("HANDOFFS|WORKFLOW", f.Workflows, func(w ask.CountGroup) []any { return []any{w.Count, strings.Join(w.Values, ", ")} }))...)
}

// tokensOf are the tokens, and how many handoffs they are known of.
func tokensOf(f ask.Figures) string {
	if f.Reported == 0 {
		return knownTokens(f)
	}
	return fmt.Sprintf("%s (known of %d of %d closed)", knownTokens(f), f.Reported, f.Succeeded+f.Failed)
}

// knownTokens are the tokens of figures; a dash is that none are known.
func knownTokens(f ask.Figures) string {
	if f.Tokens == nil {
		return "-"
	}
	return fmt.Sprint(*f.Tokens)
}

func costOf(f ask.Figures) string {
	if f.CostMicros == nil || *f.CostMicros == 0 {
		return ""
	}
	return explain.Cost(*f.CostMicros)
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
