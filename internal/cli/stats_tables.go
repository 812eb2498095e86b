package cli

import (
	"cmp"
	"fmt"

	"github.com/agenthandoff/handoff/internal/index/ask"
)

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

// printFigures prints one table of figures.
func (a *app) printFigures(head string, all []ask.Figures) error {
	rows := [][]string{{head, "HANDOFFS", "OPEN", "SUCCESS", "ACCEPTED", "QUEUE P50/P95", "WORK P50/P95", "WHOLE P50/P95", "TOKENS", "COST"}}
	for _, r := range all {
		rows = append(rows, []string{r.Key, fmt.Sprint(r.Handoffs), fmt.Sprint(r.Open), percent(r.Success), percent(r.Acceptance),
			twoOf(r.Queue), twoOf(r.Work), twoOf(r.Whole), knownTokens(r), cmp.Or(costOf(r), "-")})
	}
	return a.table(rows)
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
			return a.printFigures(t.head, rows)
		}); err != nil || !a.text() {
			return err
		}
		return a.stand(fresh, f.Position, "")
	}
	return nil
}
