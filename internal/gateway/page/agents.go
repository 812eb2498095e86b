package page

import (
	"cmp"
	"context"
	"errors"
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
	Served, Troubled int
	Rows             []agentRow
	More             int    // agents that are not shown
	Note             string // on the figures
}

// figures are the success and the durations of the handoffs of an agent, or of all: one question, of at most
// five minutes ago. The first viewer of a large index gets errLater.
func (x *request) figures(f ask.Filter) (ask.FiguresAnswer, error) {
	return x.p.rates.get(x.Context(), x.sight()+strings.Join(f.Agent, ""), func(ctx context.Context) (ask.FiguresAnswer, error) {
		f.Since = x.frame.now.Add(-figuresSince)
		return x.session.Figures(ctx, ask.FiguresQuery{Question: ask.Question{WaitMS: -1}, Filter: x.caller.Scope(f), Top: ask.FiguresTopMax})
	})
}

// agents lists who is there.
func (p *Page) agents(x *request) (any, error) {
	var agents []api.AgentStatus
	var figures ask.FiguresAnswer
	var noFigures error
	var group errgroup.Group
	group.Go(func() (err error) { agents, err = x.fleetNow(); return err })
	group.Go(func() error { x.count(true); return nil })
	group.Go(func() error { figures, noFigures = x.figures(ask.Filter{}); return nil })
	if err := group.Wait(); err != nil {
		return nil, err
	}
	v := agentsView{Rows: x.agentRows(agents)}
	switch {
	case errors.Is(noFigures, errLater):
		v.Note = "; they are being counted"
	case noFigures != nil:
		v.Note = "; no index answers at the moment"
	default:
		for i := range v.Rows {
			v.Rows[i].Figures = figuresOf(figures, v.Rows[i].ID)
		}
	}
	for _, r := range v.Rows {
		switch r.Here.Class {
		case "here":
			v.Served++
		case "bad":
			v.Troubled++
		}
	}
	v.More = max(0, len(v.Rows)-agentsMax)
	v.Rows = v.Rows[:len(v.Rows)-v.More]
	return &v, nil
}

// figuresOf are those of one agent; nil without any.
func figuresOf(all ask.FiguresAnswer, agent string) *ask.Figures {
	at := slices.IndexFunc(all.ByAgent, func(f ask.Figures) bool { return f.Key == agent })
	if at < 0 {
		return nil
	}
	return &all.ByAgent[at]
}

// agentView is one agent.
type agentView struct {
	Row     agentRow
	Able    []string
	Lanes   []broker.QueueStatus // with offers
	Holders []protocol.Holder
	Figures *ask.Figures
	Refused []ask.RefusalCount
	Acts    []act
	Command string
}

// agent reads one agent: its workers, its queue, and its figures.
func (p *Page) agent(x *request) (any, error) {
	name := x.PathValue("agent")
	x.frame.Title = name
	var v agentView
	var status api.AgentStatus
	var queues []broker.QueueStatus
	var figures ask.FiguresAnswer
	var noFigures error
	group, ctx := errgroup.WithContext(x.Context())
	group.Go(func() (err error) { status, err = x.session.Agent(ctx, name); return err })
	group.Go(func() error { x.count(true); return nil })
	group.Go(func() error { figures, noFigures = x.figures(ask.Filter{Agent: []string{name}}); return nil })
	if x.caller.May("Queues") {
		group.Go(func() (err error) {
			queues, err = p.lanes.get(ctx, "", x.session.Queues)
			return err
		})
		group.Go(func() (err error) { v.Holders, err = x.session.Holders(ctx, name); return err })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for _, q := range queues {
		if q.Agent == name && q.Depth > 0 {
			if status.Oldest.IsZero() || q.Oldest.Before(status.Oldest) {
				status.Oldest = q.Oldest
			}
			v.Lanes = append(v.Lanes, q)
		}
	}
	v.Row = x.agentRows([]api.AgentStatus{status})[0]
	for _, c := range status.Capabilities {
		v.Able = append(v.Able, c.ID)
	}
	if noFigures == nil && figures.All.Handoffs > 0 {
		v.Figures = cmp.Or(figuresOf(figures, name), &figures.All)
		for _, r := range figures.Refusals {
			if r.Agent == name && len(v.Refused) < 10 {
				v.Refused = append(v.Refused, r)
			}
		}
	}
	v.acts(x, status)
	return &v, nil
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
