package cli

import (
	"fmt"
	"strings"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
)

// statsAnswer are the figures of "stats".
type statsAnswer struct {
	ask.FiguresAnswer
	Breakers []api.BreakerStatus `json:"breakers"`
}

func (a *app) stats(s statsAnswer, fresh freshness) error {
	if !a.text() {
		return a.value(s)
	}
	if err := a.figures(s.FiguresAnswer); err != nil {
		return err
	}
	if err := a.governance(s); err != nil {
		return err
	}
	return a.stand(fresh, s.Position, "")
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
		"tokens", tokensOf(all),
		"cost", costOf(all),
		"deadlocks", countOrNone(f.Deadlocks),
	); err != nil {
		return err
	}
	for _, t := range figureTables {
		if len(t.rows(&f)) == 0 {
			continue
		}
		a.printf("\n")
		if err := a.printFigures(t.head, t.rows(&f)); err != nil {
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
		if err := a.tableFit(rows, nil); err != nil {
			return err
		}
	}
	if len(f.Workflows) > 0 {
		rows := [][]string{{"HANDOFFS", "WORKFLOW"}}
		for _, w := range f.Workflows {
			rows = append(rows, []string{fmt.Sprint(w.Count), strings.Join(w.Values, ", ")})
		}
		a.printf("\n")
		return a.tableFit(rows, nil)
	}
	return nil
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
