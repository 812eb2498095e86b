package cli

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// governance prints what limits, gates and breakers did.
func (a *app) governance(s statsAnswer) error {
	barred := [][]string{{"BARRED", "CODE", "FROM -> TO"}}
	for _, b := range s.Barred {
		barred = append(barred, []string{fmt.Sprint(b.Count), b.Code, b.From + " -> " + cmp.Or(b.To, "?")})
	}
	gates := [][]string{{"GATE", "WAITING", "PASSED", "DENIED", "LAPSED", "ENDED", "WAITED P50/P95"}}
	for _, g := range s.Gates {
		gates = append(gates, []string{string(g.Gate), fmt.Sprint(g.Waiting), fmt.Sprint(g.Passed), fmt.Sprint(g.Denied),
			fmt.Sprint(g.Lapsed), fmt.Sprint(g.Ended), twoOf(g.Waited)})
	}
	budgets := [][]string{{"LIMIT", "HANDOFFS", "GRANTED", "USED", "RESERVED", "OVER", "OF HANDOFFS"}}
	for _, b := range s.Budgets {
		budgets = append(budgets, []string{b.Limit, fmt.Sprint(b.Handoffs), amountOf(b, b.Granted), amountOf(b, b.Used),
			amountOf(b, b.Reserved), amountOf(b, b.Over), fmt.Sprint(b.OverHandoffs)})
	}
	for _, rows := range [][][]string{barred, gates, budgets, breakerRows(s.Breakers)} {
		if len(rows) == 1 {
			continue
		}
		a.printf("\n")
		if err := a.table(rows); err != nil {
			return err
		}
	}
	return nil
}

// amountOf is an amount of a budget; costs are in the currency of the fleet.
func amountOf(b ask.BudgetFigures, n int64) string {
	if b.Limit == "max_cost_micros" && n != 0 {
		return explain.Cost(n)
	}
	return fmt.Sprint(n)
}

// breakerRows are the breakers that are not closed, and those whose agents failed of late.
func breakerRows(all []api.BreakerStatus) [][]string {
	rows := [][]string{{"BREAKER", "IS", "FAILED", "TRIPS", "SINCE", "CHANGES"}}
	for _, v := range all {
		if v.State == lifecycle.BreakerClosed && v.Failed == 0 {
			continue
		}
		rows = append(rows, []string{v.Agent, string(v.State), fmt.Sprintf("%d/%d", v.Failed, v.Policy.Threshold), fmt.Sprint(v.Trips),
			cmp.Or(explain.Instant(v.OpenedAt), "-"), cmp.Or(explain.Instant(v.Until), "-")})
	}
	return rows
}

// breakerCounts says how many breakers are in each state: 2 closed, 1 open.
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

func countOrNone(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}
