package page

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	fleetAgents = 25 // agents of the strip, those in trouble first
	fleetRecent = 12 // handoffs of "just now"
)

// fleetView is the answer to: is all well?
type fleetView struct {
	Headline, Then, Command string
	Class                   string
	Figures                 []figure
	Day                     *day
	Agents                  []agentRow
	MoreAgents              int
	Recent                  []row
	Empty                   bool
	NoIndex                 bool
	Submit                  *act
}

// figure is a number, with a link to the handoffs that it counts.
type figure struct{ Value, Words, More, Class, To string }

// agentRow is an agent of a table.
type agentRow struct {
	api.AgentStatus
	Here    mark
	Taken   string // a dot for each slot that is taken, and each that is free
	Free    string
	Waiting string // of its oldest offer
	Trouble int
	Figures *ask.Figures
}

// row is a handoff of a list.
type row struct {
	ask.Row
	Mark  mark
	Words string
	When  string
	At    string
}

// fleet asks for the inbox, the series of a day and the last changes: three questions.
func (p *Page) fleet(x *request) (any, error) {
	x.frame.Page, x.frame.Title = "fleet", "Fleet"
	var v fleetView
	var agents []api.AgentStatus
	var recent ask.ListAnswer
	var noSeries, noRecent error
	people := api.People{}
	group, ctx := errgroup.WithContext(x.Context())
	group.Go(func() (err error) { agents, err = x.fleetNow(); return err })
	group.Go(func() error { people = x.count(true); return nil })
	group.Go(func() error { v.Day, noSeries = x.day(); return nil })
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
	v.headline(x, rows, people)
	v.figures(x, rows, people)
	slices.SortStableFunc(rows, func(a, b agentRow) int { return cmp.Compare(b.Trouble, a.Trouble) })
	v.MoreAgents = max(0, len(rows)-fleetAgents)
	v.Agents = rows[:len(rows)-v.MoreAgents]
	for _, r := range recent.Handoffs {
		v.Recent = append(v.Recent, x.row(r))
	}
	v.Empty = len(recent.Handoffs) == 0 && noRecent == nil && recent.Complete
	v.Submit = x.submitAct(agents)
	return &v, nil
}

// dotsMax is how many slots are shown as dots.
const dotsMax = 8

func (x *request) agentRows(agents []api.AgentStatus) []agentRow {
	rows := make([]agentRow, 0, len(agents))
	for _, a := range agents {
		r := agentRow{AgentStatus: a, Here: x.presence(a)}
		if r.Here.Class == "bad" || r.Here.Class == "person" {
			r.Trouble = 1 + a.Queued
		}
		if a.Slots <= dotsMax {
			r.Taken, r.Free = strings.Repeat("●", a.Busy), strings.Repeat("○", max(0, a.Slots-a.Busy))
		}
		if a.Queued > 0 && !a.Oldest.IsZero() {
			r.Waiting = explain.Spoken(x.now.Sub(a.Oldest))
		}
		rows = append(rows, r)
	}
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
			return mark{"✕", "gone " + explain.Spoken(x.now.Sub(a.AbsentSince)), class}
		}
		return mark{"✕", "no worker", class}
	case api.Polling:
		return mark{"●", "polls, " + x.ago(a.PolledAt), "here"}
	case api.Draining:
		return mark{"‖", "finishes, and takes no more", "rest"}
	}
	return mark{"●", fmt.Sprintf("%d here", a.Workers), "here"}
}

// headline fills in one sentence about the worst trouble, or that all is well.
func (v *fleetView) headline(x *request, rows []agentRow, people api.People) {
	var absent, held []agentRow
	for _, r := range rows {
		switch {
		case r.Queued == 0 || r.ID == protocol.Human:
		case r.Availability == api.Absent:
			absent = append(absent, r)
		case r.Here.Class == "bad":
			held = append(held, r)
		}
	}
	worst := func(all []agentRow) agentRow {
		return slices.MaxFunc(all, func(a, b agentRow) int { return cmp.Compare(a.Queued, b.Queued) })
	}
	wait := func(r agentRow) string {
		words := explain.Count(r.Queued, "handoff") + " wait for it"
		if r.Queued == 1 {
			words = "1 handoff waits for it"
		}
		if !r.Oldest.IsZero() {
			words += ", the oldest since " + x.clock(r.Oldest)
		}
		return words + "."
	}
	others := func(all []agentRow) string {
		if len(all) == 1 {
			return ""
		}
		return " And so it is with " + explain.Count(len(all)-1, "other agent") + "."
	}
	switch {
	case len(absent) > 0:
		r := worst(absent)
		v.Class, v.Headline, v.Then = "bad", r.ID+" has no worker.", wait(r)+others(absent)
		if !r.AbsentSince.IsZero() {
			v.Headline = r.ID + " has had no worker for " + explain.Spoken(x.now.Sub(r.AbsentSince)) + "."
		}
		v.Command = x.command(explain.NewAction("start a worker", explain.OpWork, "agent", r.ID))
	case len(held) > 0:
		r := worst(held)
		v.Class, v.Headline, v.Then = "bad", r.ID+" is paused.", wait(r)+others(held)
		op := explain.OpResume
		if r.Breaker != nil {
			v.Headline, op = "The breaker of "+r.ID+" is "+strings.ReplaceAll(string(r.Breaker.State), "_", "-")+".", explain.OpResetBreaker
		}
		v.Command = x.command(explain.NewAction("", op, "agent", r.ID))
	case people.Handoffs > 0:
		v.Class, v.Headline = "person", explain.Count(people.Handoffs, "handoff")+" need a person."
		if people.Handoffs == 1 {
			v.Headline = "1 handoff needs a person."
		}
		v.Then = "All agents go on."
		var gone []string
		for _, r := range rows {
			if r.Availability == api.Absent && r.ID != protocol.Human {
				gone = append(gone, r.ID)
			}
		}
		if len(gone) > 0 {
			v.Then = explain.Has(explain.Some(gone), len(gone)) + " no worker."
			v.Command = x.command(explain.NewAction("start a worker", explain.OpWork, "agent", gone[0]))
		}
	default:
		v.Class, v.Headline, v.Then = "ok", "All is well.", "Nothing waits for a person, and every queue has a worker."
	}
}

func (v *fleetView) figures(x *request, rows []agentRow, people api.People) {
	person := figure{Value: fmt.Sprint(people.Handoffs), Words: "need a person", To: "/ui/inbox"}
	if people.More {
		person.Value += "+"
	}
	if people.Handoffs > 0 {
		person.Class, person.More = "person", "the oldest for "+explain.Spoken(x.now.Sub(people.Since))
	}
	stuck, who := 0, []string(nil)
	var longest agentRow
	for _, r := range rows {
		if r.Here.Class == "bad" {
			stuck += r.Queued
			who = append(who, r.ID)
		}
		if r.ID != protocol.Human && !r.Oldest.IsZero() && (longest.Oldest.IsZero() || r.Oldest.Before(longest.Oldest)) {
			longest = r
		}
	}
	late := figure{Value: fmt.Sprint(stuck), Words: "stuck in a queue", To: "/ui/agents"}
	if stuck > 0 {
		late.Class, late.More = "bad", "of "+explain.Some(who)
		if len(who) == 1 {
			late.To = "/ui/agents/" + who[0]
		}
	}
	failed := figure{Value: "–", Words: "failed in a day", To: "/ui/board?as=list&outcome=failed"}
	if v.Day != nil {
		failed.Value, failed.More = fmt.Sprint(v.Day.Failed), fmt.Sprintf("of %d that ended", v.Day.Failed+v.Day.Succeeded)
		if v.Day.Failed > 0 {
			failed.Class = "bad"
		}
	}
	waits := figure{Value: "–", Words: "the oldest in a queue", To: "/ui/board"}
	if longest.ID != "" {
		waits.Value, waits.More, waits.To = explain.Spoken(x.now.Sub(longest.Oldest)), longest.ID, "/ui/agents/"+longest.ID
	}
	v.Figures = []figure{person, late, failed, waits}
}

// day is the course of 24 hours.
type day struct {
	Submitted, Succeeded, Failed int64
	Whole                        string
	Lines                        [2]string // the points of submitted and of done
	Bars                         []bar
	Hours                        []hour
}

type bar struct{ X, Y, Height int }

type hour struct {
	Hour string
	ask.Bucket
}

// The drawing of a day.
const dayWide, dayHigh = 1200, 84

func (x *request) day() (*day, error) {
	until := x.now.Truncate(time.Hour).Add(time.Hour)
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
		d.Hours = append(d.Hours, hour{b.Since.In(x.zone).Format("15:04"), b})
	}
	return d, nil
}

// row makes a row of a list.
func (x *request) row(r ask.Row) row {
	v := row{Row: r, Mark: markOf(stateOf(r)), When: x.ago(r.UpdatedAt), At: r.UpdatedAt.UTC().Format(time.RFC3339)}
	v.Words = explain.Person(r.Source) + " → " + explain.Person(cmp.Or(r.Agent, r.Target))
	return v
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
