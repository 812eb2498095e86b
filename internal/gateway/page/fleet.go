package page

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	fleetAgents = 25 // agents of the strip, those in trouble first
	fleetRecent = 12 // handoffs of "just now"
	fleetBegins = 5  // schedules and rules, those in trouble first
	fleetKeys   = 5  // keys with a limit, the paused ones first
)

// fleetView is the answer to: is all well?
type fleetView struct {
	Worst      *agentRow // the longest queue without a worker, or else of an agent that is held back
	Others     int       // agents like it
	Gone       []string  // agents without a worker that nothing waits for
	People     api.People
	Stuck      int // handoffs in queues that no worker takes from
	StuckAt    []string
	Longest    *agentRow // with the oldest handoff in a queue
	Command    string
	Day        *day
	Agents     []agentRow
	MoreAgents int
	Begins     beginsView
	Keys       []keyRow
	MoreKeys   int
	Recent     []row
	Empty      bool
	NoIndex    bool
	Submit     *act
}

// agentRow is an agent of a table.
type agentRow struct {
	api.AgentStatus
	Here    mark
	Figures *ask.Figures
}

// Taken and Free are a dot for each slot; none if they are many.
func (r agentRow) Taken() string { return r.dots("●", r.Busy) }
func (r agentRow) Free() string  { return r.dots("○", r.Slots-r.Busy) }

func (r agentRow) dots(dot string, n int) string {
	if r.Slots > dotsMax {
		return ""
	}
	return strings.Repeat(dot, max(0, n))
}

// trouble orders agents: those first whose handoffs cannot go on.
func (r agentRow) trouble() int {
	if r.Here.Class == "bad" {
		return 1 + r.Queued
	}
	return 0
}

// row is a handoff of a list.
type row struct {
	ask.Row
	Mark  mark
	Words string
}

// fleet asks for the inbox, the series of a day and the last changes: three questions.
func (p *Page) fleet(x *request) (any, error) {
	var v fleetView
	var agents []api.AgentStatus
	var recent ask.ListAnswer
	var noSeries, noRecent error
	group, ctx := errgroup.WithContext(x.Context())
	group.Go(func() (err error) { agents, err = x.fleetNow(); return err })
	group.Go(func() error { v.People = x.count(true); return nil })
	group.Go(func() error { v.Day, noSeries = x.day(); return nil })
	group.Go(func() (err error) {
		if x.caller.May("Schedules") {
			v.Begins, err = x.begins(fleetBegins)
		}
		return err
	})
	group.Go(func() (err error) { v.Keys, v.MoreKeys, err = x.keys(fleetKeys); return err })
	group.Go(func() error {
		ctx, cancel := x.patient(ctx)
		defer cancel()
		recent, noRecent = x.session.List(ctx, ask.ListQuery{Question: ask.Question{WaitMS: -1}, Filter: x.caller.Scope(ask.Filter{}), Sort: ask.SortUpdated, Limit: fleetRecent})
		return nil
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	v.NoIndex = noSeries != nil || noRecent != nil
	rows := x.agentRows(agents)
	v.headline(x, rows)
	v.Agents = rows[:min(len(rows), fleetAgents)]
	v.MoreAgents = len(rows) - len(v.Agents)
	for _, r := range recent.Handoffs {
		v.Recent = append(v.Recent, x.row(r))
	}
	v.Empty = len(recent.Handoffs) == 0 && noRecent == nil && recent.Complete
	v.Submit = x.submitAct(agents)
	return &v, nil
}

// dotsMax is how many slots are shown as dots.
const dotsMax = 8

// agentRows makes rows of agents, those in trouble first.
func (x *request) agentRows(agents []api.AgentStatus) []agentRow {
	rows := make([]agentRow, len(agents))
	for i, a := range agents {
		rows[i] = agentRow{AgentStatus: a, Here: x.presence(a)}
	}
	slices.SortStableFunc(rows, func(a, b agentRow) int { return cmp.Compare(b.trouble(), a.trouble()) })
	return rows
}

// presence describes the workers of an agent. Red are those whose handoffs cannot go on.
func (x *request) presence(a api.AgentStatus) mark {
	class := "rest"
	if a.Queued > 0 {
		class = "bad"
	}
	switch {
	case a.ID == protocol.Human:
		return mark{"▲", "a person", "rest"}
	case a.Breaker != nil:
		return mark{"‖", "breaker " + strings.ReplaceAll(string(a.Breaker.State), "_", "-"), class}
	}
	switch a.Availability {
	case api.Paused:
		return mark{"‖", "paused", class}
	case api.Absent:
		if !a.AbsentSince.IsZero() {
			return mark{"✕", "gone " + x.frame.For(a.AbsentSince), class}
		}
		return mark{"✕", "no worker", class}
	case api.Polling:
		return mark{"●", "polls, " + x.frame.Ago(a.PolledAt), "here"}
	case api.Draining:
		return mark{"‖", "finishes, and takes no more", "rest"}
	}
	return mark{"●", fmt.Sprintf("%d here", a.Workers), "here"}
}

// headline finds the worst trouble. The rows begin with the agents in trouble, the longest queue first.
func (v *fleetView) headline(x *request, rows []agentRow) {
	var absent, held []agentRow
	for i, r := range rows {
		switch {
		case r.ID == protocol.Human:
			continue
		case r.Here.Class == "bad":
			v.Stuck += r.Queued
			v.StuckAt = append(v.StuckAt, r.ID)
			if r.Availability == api.Absent {
				absent = append(absent, r)
			} else {
				held = append(held, r)
			}
		case r.Availability == api.Absent:
			v.Gone = append(v.Gone, r.ID)
		}
		if !r.Oldest.IsZero() && (v.Longest == nil || r.Oldest.Before(v.Longest.Oldest)) {
			v.Longest = &rows[i]
		}
	}
	if len(absent) == 0 {
		absent = held
	}
	action, of := explain.OpWork, ""
	switch {
	case len(absent) > 0:
		v.Worst, v.Others, of = &absent[0], len(absent)-1, absent[0].ID
		switch {
		case v.Worst.Availability == api.Absent:
		case v.Worst.Breaker != nil:
			action = explain.OpResetBreaker
		default:
			action = explain.OpResume
		}
	case len(v.Gone) > 0 && v.People.Handoffs > 0:
		of = v.Gone[0]
	}
	if of != "" {
		v.Command = x.command(explain.NewAction("start a worker", action, "agent", of))
	}
}

// day is the course of 24 hours.
type day struct {
	Submitted, Succeeded, Failed int64
	Lines                        [2]string // the points of submitted and of done
	Bars                         []bar
	Hours                        []hour
}

// Ended counts the handoffs that ended.
func (d *day) Ended() int64 { return d.Succeeded + d.Failed }

type bar struct{ X, Y, Height int }

type hour struct {
	Hour string
	ask.Bucket
}

// The drawing of a day.
const dayWide, dayHigh = 1200, 84

func (x *request) day() (*day, error) {
	until := x.frame.now.Truncate(time.Hour).Add(time.Hour)
	ctx, cancel := x.patient(x.Context())
	defer cancel()
	answer, err := x.session.Series(ctx, ask.SeriesQuery{Question: ask.Question{WaitMS: -1}, Filter: x.caller.Scope(ask.Filter{}),
		Since: until.Add(-24 * time.Hour), Until: until, BucketMS: time.Hour.Milliseconds(), Counts: true})
	if err != nil {
		return nil, err
	}
	d := &day{}
	most := int64(1)
	for _, b := range answer.Buckets {
		most = max(most, b.Submitted, b.Succeeded, b.Failed)
	}
	for i, b := range answer.Buckets {
		at := func(n int64) int { return dayHigh - int(n*(dayHigh-8)/most) }
		px := i * dayWide / max(1, len(answer.Buckets)-1)
		for j, n := range []int64{b.Submitted, b.Succeeded} {
			d.Lines[j] += fmt.Sprintf("%d,%d ", px, at(n))
		}
		if b.Failed > 0 {
			high := max(6, dayHigh-at(b.Failed))
			d.Bars = append(d.Bars, bar{max(0, px-2), dayHigh - high, high})
		}
		d.Submitted, d.Succeeded, d.Failed = d.Submitted+b.Submitted, d.Succeeded+b.Succeeded, d.Failed+b.Failed
		d.Hours = append(d.Hours, hour{b.Since.In(x.frame.zone).Format("15:04"), b})
	}
	return d, nil
}

// row makes a row of a list.
func (x *request) row(r ask.Row) row {
	return row{r, markOf(stateOf(r)), explain.Person(r.From()) + " → " + explain.Person(cmp.Or(r.Agent, r.Target))}
}

// stateOf is the part of a state that a row has.
func stateOf(r ask.Row) protocol.State {
	s := protocol.State{Ticket: r.Ticket, Phase: r.Phase, Closed: r.Closed, Outcome: r.Outcome, Agent: r.Agent, EscalationLevel: r.Level, Reroutes: r.Reroutes}
	if r.Gate != "" {
		s.Gate = &protocol.Gate{}
		s.Gate.Waits = []protocol.GateKind{r.Gate}
	}
	if r.Phase == protocol.Conditional && r.Reason == "condition" {
		s.Conditions = &protocol.Conditions{}
	}
	return s
}

// keyRow is a key with a limit.
type keyRow struct {
	lifecycle.KeyStatus
	Mark mark
}

// keys returns the keys with a limit, the paused ones first, and how many are not returned.
func (x *request) keys(most int) (rows []keyRow, more int, err error) {
	all, err := x.p.keys.get(x.Context(), "", func(ctx context.Context) ([]lifecycle.KeyStatus, error) {
		all, err := x.session.KeyLimits(ctx)
		explain.SortKeys(all.Keys)
		return all.Keys, err
	})
	if err != nil {
		return nil, 0, err
	}
	for _, v := range all[:min(len(all), most)] {
		m := mark{"○", "none waits", "rest"}
		switch {
		case !v.PausedUntil.IsZero():
			m = mark{"‖", "paused " + explain.KeyPause(v, x.frame.Clock), "bad"}
		case v.Waiting > 0:
			m = mark{"○", fmt.Sprint(v.Waiting, " waiting"), "here"}
		}
		rows = append(rows, keyRow{v, m})
	}
	return rows, len(all) - len(rows), nil
}
