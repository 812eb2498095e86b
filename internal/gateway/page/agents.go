package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	figuresSince = 7 * 24 * time.Hour // the span of the figures of agents
	agentsMax    = 120                // agents of a view, those in trouble first
)

type agentsView struct {
	Headline string
	Rows     []agentRow
	More     int // agents that are not shown
	Day      *ask.Figures
	NoIndex  bool
	Later    bool // the figures are being counted
}

// figures are the success and the durations of the handoffs of an agent, or of all: one question, of at most
// five minutes ago. The first viewer of a large index gets errLater.
func (x *request) figures(f ask.Filter) (ask.FiguresAnswer, error) {
	return x.p.rates.get(x.Context(), x.sight()+strings.Join(f.Agent, ""), ratesFresh, ratesPatience, func(ctx context.Context) (ask.FiguresAnswer, error) {
		f.Since = x.now.Add(-figuresSince)
		return x.session.Figures(ctx, ask.FiguresQuery{Question: ask.Question{WaitMS: -1}, Filter: x.caller.Scope(f), Top: ask.FiguresTopMax})
	})
}

// agents lists who is there.
func (p *Page) agents(x *request) (any, error) {
	x.frame.Page, x.frame.Title = "agents", "Agents"
	x.count(true)
	agents, err := x.fleetNow()
	if err != nil {
		return nil, err
	}
	v := agentsView{Rows: x.agentRows(agents)}
	figures, err := x.figures(ask.Filter{})
	v.Later = errors.Is(err, errLater)
	if v.NoIndex = err != nil && !v.Later; err == nil {
		for i := range v.Rows {
			at := slices.IndexFunc(figures.ByAgent, func(f ask.Figures) bool { return f.Key == v.Rows[i].ID })
			if at >= 0 {
				v.Rows[i].Figures = &figures.ByAgent[at]
			}
		}
	}
	served, troubled := 0, 0
	for _, r := range v.Rows {
		if r.Here.Class == "here" {
			served++
		}
		if r.Here.Class == "bad" {
			troubled++
		}
	}
	v.Headline = explain.Has(explain.Count(served, "agent"), served) + " a worker."
	if troubled > 0 {
		v.Headline = explain.Count(troubled, "agent") + " cannot go on; " + explain.Count(served, "other") + " can."
	}
	slices.SortStableFunc(v.Rows, func(a, b agentRow) int { return cmp.Compare(b.Trouble, a.Trouble) })
	v.More = max(0, len(v.Rows)-agentsMax)
	v.Rows = v.Rows[:len(v.Rows)-v.More]
	return &v, nil
}

// agentView is one agent.
type agentView struct {
	Row     agentRow
	Prose   []string // in prose
	Lanes   []lane
	Holders []holderRow
	Figures *ask.Figures
	Refused []ask.RefusalCount
	Acts    []act
	Command string
}

type lane struct{ Lane, Waits, Oldest string }

type holderRow struct{ ID, Where, Slots, Since string }

// agent reads one agent: its workers, its queue, and its figures.
func (p *Page) agent(x *request) (any, error) {
	name := x.PathValue("agent")
	x.frame.Page, x.frame.Title = "agents", name
	var v agentView
	var status api.AgentStatus
	var queues []broker.QueueStatus
	var holders []protocol.Holder
	var figures ask.FiguresAnswer
	var noFigures error
	group, ctx := errgroup.WithContext(x.Context())
	group.Go(func() (err error) { status, err = x.session.Agent(ctx, name); return err })
	group.Go(func() error { x.count(true); return nil })
	group.Go(func() error { figures, noFigures = x.figures(ask.Filter{Agent: []string{name}}); return nil })
	if x.caller.May("Queues") {
		group.Go(func() (err error) {
			queues, err = p.lanes.get(ctx, "", fleetFresh, viewTimeout, x.session.Queues)
			return err
		})
		group.Go(func() (err error) { holders, err = x.session.Holders(ctx, name); return err })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for _, q := range queues {
		if q.Agent == name && q.Depth > 0 {
			if status.Oldest.IsZero() || q.Oldest.Before(status.Oldest) {
				status.Oldest = q.Oldest
			}
			v.Lanes = append(v.Lanes, lane{string(q.Lane), explain.Count(q.Depth, "offer"), explain.Spoken(x.now.Sub(q.Oldest))})
		}
	}
	v.Row = x.agentRows([]api.AgentStatus{status})[0]
	for _, h := range holders {
		where := h.Host
		if h.Draining {
			where += ", finishes and takes no more"
		}
		v.Holders = append(v.Holders, holderRow{short(h.ID), where, fmt.Sprintf("%d of %d busy", h.Busy, h.Slots), x.ago(h.StartedAt)})
	}
	if noFigures == nil && figures.All.Handoffs > 0 {
		v.Figures = &figures.All
		for _, f := range figures.ByAgent {
			if f.Key == name {
				v.Figures = &f
			}
		}
		for _, r := range figures.Refusals {
			if r.Agent == name && len(v.Refused) < 10 {
				v.Refused = append(v.Refused, r)
			}
		}
	}
	v.describe(x, status)
	v.acts(x, status)
	return &v, nil
}

// describe renders the profile in prose.
func (v *agentView) describe(x *request, a api.AgentStatus) {
	add := func(words string) {
		if words != "" {
			v.Prose = append(v.Prose, protocol.CutText(oneLine(words), 400))
		}
	}
	var able []string
	for _, c := range a.Capabilities {
		able = append(able, c.ID)
	}
	add(explain.After("It can do ", explain.Some(able)))
	add(explain.After("Above it is ", explain.Person(cmp.Or(a.EscalatesTo, protocol.Human))))
	add(strings.Join(a.Gates, "; "))
	if a.MaxConcurrency > 0 {
		add("It has at most " + explain.Count(a.MaxConcurrency, "handoff") + " at a time")
	}
	if a.MaxRisk != "" {
		add("It takes a risk up to " + string(a.MaxRisk))
	}
	if b := a.Breaker; b != nil {
		words := "Its breaker is " + string(b.State) + ": " + explain.Count(b.Failed, "handoff") + " failed"
		if !b.Until.IsZero() {
			words += ", and one is tried at " + x.clock(b.Until)
		}
		add(words)
	}
}

func (v *agentView) acts(x *request, a api.AgentStatus) {
	add := func(op string) {
		if form, may := x.newAct(op, strings.NewReplacer("{name}", a.ID), "agent", a.ID); may {
			v.Acts = append(v.Acts, form)
		}
	}
	if a.ID == protocol.Human {
		return
	}
	if a.Breaker != nil {
		add(explain.OpResetBreaker)
	}
	if a.Paused {
		add(explain.OpResume)
	} else {
		add("pause")
	}
	if a.Availability == api.Absent {
		v.Command = x.command(explain.NewAction("start a worker", explain.OpWork, "agent", a.ID))
	}
}
