package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// list prints a list, whole or up to a limit.
func (a *app) list(ctx context.Context, r api.Reader, q ask.ListQuery, flags listFlags) error {
	most := flags.limit
	if flags.all {
		most = 0
	}
	whole := ask.ListAnswer{Handoffs: []ask.Row{}}
	var err error
	whole.Position, whole.Cursor, err = pages(ctx, r, q, most, flags.fresh, func(rows []ask.Row) error {
		if a.format == formatJSONL {
			return list(a, rows)
		}
		whole.Handoffs = append(whole.Handoffs, rows...)
		return nil
	})
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
	heading []string
	cells   func(r ask.Row, now time.Time) []string
}

var listTable = table{
	heading: []string{"TICKET", "PHASE", "PRIORITY", "AGE", "FROM", "TO", "TASK"},
	cells: func(r ask.Row, now time.Time) []string {
		return []string{r.Ticket, rowPhase(r), string(r.Priority), explain.Ago(r.SubmittedAt, now), r.Source, cmp.Or(r.Agent, r.Target), rowTask(r)}
	},
}

// rows prints handoffs as a table.
func (a *app) rows(t table, handoffs []ask.Row) error {
	if len(handoffs) == 0 {
		a.notef("handoff: none\n")
		return nil
	}
	now, rows := time.Now(), [][]string{t.heading}
	for _, r := range handoffs {
		rows = append(rows, t.cells(r, now))
	}
	return a.tableFit(rows, rowsPaint(handoffs, slices.Index(t.heading, "PHASE")))
}

// rowPhase is the phase and, where it says more, the outcome, the gate or the level.
func rowPhase(r ask.Row) string {
	switch {
	case r.Closed && string(r.Outcome) != string(r.Phase):
		return fmt.Sprintf("%s (%s)", r.Phase, r.Outcome)
	case r.Gate != "" && r.Gate != protocol.GateApproval:
		return fmt.Sprintf("%s (%s)", r.Phase, r.Gate)
	case !r.Closed && r.Level > 0:
		return fmt.Sprintf("%s, level %d", r.Phase, r.Level)
	}
	return string(r.Phase)
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
		a.printf("\n")
		if err := a.table(rows); err != nil {
			return err
		}
	}
	return a.stand(fresh, answer.Position, "")
}
