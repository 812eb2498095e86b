package page

import (
	"cmp"
	"context"
	"strings"

	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
)

// beginsMax bounds the schedules and rules of a view.
const beginsMax = 120

// beginsView are the schedules and the rules, which begin handoffs.
type beginsView struct {
	Rows    []beginsRow
	All     int        // also those that are not shown
	More    int        // that are not shown
	Paused  int        // of those that are shown
	Bad     *beginsRow // the first in trouble
	Signals string     // that wait, or begin nothing
}

// beginsRow is a schedule or a rule.
type beginsRow struct {
	explain.Trigger
	Mark  mark
	Words string // why its next handoff may not begin in time
	Acts  []act
}

// schedules shows the schedules and the rules.
func (p *Page) schedules(x *request) (any, error) {
	x.count(true)
	v, err := x.begins(beginsMax)
	return &v, err
}

func (x *request) begins(most int) (v beginsView, err error) {
	all, err := x.p.begins.get(x.Context(), "", func(ctx context.Context) (*dossier.Triggers, error) {
		return dossier.ReadTriggers(ctx, x.session, x.frame.now)
	})
	if err != nil || all == nil {
		return v, err
	}
	v.Signals, v.All, v.More = all.Signals(), len(all.All), max(0, len(all.All)-most)
	for _, t := range all.All[:len(all.All)-v.More] {
		r := beginsRow{Trigger: t, Words: t.Words(x.frame.Clock)}
		acts := []string{"pause-" + t.Kind()}
		switch {
		case !t.Paused.IsZero():
			v.Paused++
			r.Mark, acts[0] = mark{"‖", "paused", "rest"}, "resume-"+t.Kind()
		case !t.Late.IsZero():
			r.Mark = mark{"✕", "late", "bad"}
		case t.Refused != "":
			r.Mark = mark{"✕", "refused", "bad"}
		case t.Full:
			r.Mark = mark{"‖", "full", "rest"}
		default:
			r.Mark = mark{"○", cmp.Or(x.frame.Clock(t.Next), "on a signal"), "here"}
		}
		for _, op := range append(acts, "run-"+t.Kind()) {
			if a, may := x.newAct(op, strings.NewReplacer(), "name", t.Name()); may {
				r.Acts = append(r.Acts, a)
			}
		}
		if v.Rows = append(v.Rows, r); v.Bad == nil && r.Mark.Class == "bad" {
			v.Bad = &r
		}
	}
	return v, nil
}
