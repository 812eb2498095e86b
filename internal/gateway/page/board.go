package page

import (
	"context"
	"fmt"
	"html/template"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	columnMax = 25
	boardRows = 200 // open handoffs that are sorted into columns
	listRows  = 50
)

// boardView shows the handoffs that move.
type boardView struct {
	Columns []column
	Rows    []row
	List    bool
	Next    template.URL // the query of the next page of the list
	Acts    []bulkAct    // on the chosen rows
	Most    int          // rows of one act
	Filters []typed
	Words   template.URL // the query of the filters
}

type column struct {
	Title string
	Rows  []row
	N     int64
	More  int64
	To    template.URL // the query of its list
}

// filterOf reads the filters of a URL.
func filterOf(q url.Values) (f ask.Filter, filters []typed) {
	f.Agent = valuesOf[string](q, "agent", &filters)
	f.Source = valuesOf[string](q, "source", &filters)
	f.WorkflowID = valuesOf[string](q, "workflow", &filters)
	f.ConversationID = valuesOf[string](q, "conversation", &filters)
	if f.Text = q.Get("text"); f.Text != "" {
		filters = append(filters, typed{"text", f.Text})
	}
	f.Outcome = valuesOf[protocol.Outcome](q, "outcome", &filters)
	if slices.Equal(f.Outcome, []protocol.Outcome{protocol.OutcomeFailed}) { // all that did not succeed
		f.Outcome = []protocol.Outcome{protocol.OutcomeFailed, protocol.OutcomeTimeout, protocol.OutcomeRejected}
	}
	f.Phase = valuesOf[protocol.Phase](q, "phase", &filters)
	if open := q.Get("open"); open != "" {
		is := open == "true"
		f.Open = &is
		filters = append(filters, typed{"open", open})
	}
	return f, filters
}

// valuesOf reads the values of one filter, and adds it to those of the view.
func valuesOf[T ~string](q url.Values, name string, filters *[]typed) (values []T) {
	if q.Get(name) == "" {
		return nil
	}
	for _, value := range q[name] {
		values = append(values, T(value))
	}
	*filters = append(*filters, typed{name, strings.Join(q[name], ", ")})
	return values
}

// board shows columns, or a list. Columns are a count and two lists: three questions, and a
// fourth while a handoff is at a gate.
func (p *Page) board(x *request) (any, error) {
	q := x.URL.Query()
	filter, filters := filterOf(q)
	filter = x.caller.Scope(filter)
	v := boardView{Filters: filters, List: q.Get("as") == "list" || len(filter.Outcome) > 0}
	x.frame.Query = filter.Text
	keep := url.Values{}
	for _, f := range filters {
		keep[f.Name] = q[f.Name]
	}
	v.Words = template.URL(keep.Encode())
	if v.List {
		x.count(true)
		page, err := x.session.List(x.Context(), ask.ListQuery{Filter: filter, Sort: ask.SortUpdated, Limit: listRows, Cursor: q.Get("cursor")})
		if err != nil {
			return nil, err
		}
		for _, r := range page.Handoffs {
			v.Rows = append(v.Rows, x.row(r))
		}
		if page.Cursor != "" {
			keep.Set("cursor", page.Cursor)
			keep.Set("as", "list")
			v.Next = template.URL(keep.Encode())
		}
		for _, a := range bulkActs {
			if x.may(deeds[a.Op].Operation) {
				v.Acts = append(v.Acts, a)
			}
		}
		v.Most = bulkMax
		return &v, nil
	}
	x.count(false)
	yes, no := true, false
	var counted ask.CountAnswer
	var open, closed ask.ListAnswer
	group, ctx := errgroup.WithContext(x.Context())
	now := ask.Question{WaitMS: -1}
	with := func(is *bool) ask.Filter { f := filter; f.Open = is; return f }
	group.Go(func() (err error) {
		counted, err = x.session.Count(ctx, ask.CountQuery{Question: now, Filter: with(&yes), By: []ask.By{ask.ByPhase, ask.ByAgent}})
		return err
	})
	group.Go(func() (err error) {
		open, err = x.session.List(ctx, ask.ListQuery{Question: now, Filter: with(&yes), Sort: ask.SortUpdated, Limit: boardRows})
		return err
	})
	group.Go(func() (err error) {
		closed, err = x.session.List(ctx, ask.ListQuery{Question: now, Filter: with(&no), Sort: ask.SortUpdated, Limit: columnMax})
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	v.Columns = []column{{Title: "Waiting", To: "phase=pending"}, {Title: "Working", To: "phase=working&phase=accepted"},
		{Title: "With a person", To: "agent=human"}, {Title: "Coming back", To: "phase=retrying&phase=failed&phase=timeout&phase=rejected"}, {Title: "Just ended", To: "open=false"}}
	gated := false
	for _, g := range counted.Groups {
		phase := protocol.Phase(g.Values[0])
		v.Columns[columnOf(phase, g.Values[1], "")].N += g.Count
		gated = gated || phase == protocol.AwaitingApproval
	}
	if gated { // the count has no gates; those of people are few
		at := with(&yes)
		at.Gate = gatesOfPeople
		people, err := x.session.Count(x.Context(), ask.CountQuery{Question: now, Filter: at})
		if err != nil {
			return nil, err
		}
		v.Columns[0].N = max(0, v.Columns[0].N-people.Count) // a later instant than that of the first count
		v.Columns[2].N += people.Count
	}
	for _, r := range open.Handoffs {
		if c := &v.Columns[columnOf(r.Phase, r.Agent, r.Gate)]; len(c.Rows) < columnMax {
			c.Rows = append(c.Rows, x.row(r))
		}
	}
	for _, r := range closed.Handoffs {
		v.Columns[4].Rows = append(v.Columns[4].Rows, x.row(r))
	}
	for i := range v.Columns[:4] {
		c := &v.Columns[i]
		c.More = max(0, c.N-int64(len(c.Rows)))
	}
	return &v, x.waitWords(v.Columns)
}

// gatesOfPeople are the gates that a person opens.
var gatesOfPeople = []protocol.GateKind{protocol.GateApproval, protocol.GateBudget}

// columnOf is the column of an open handoff. One at a gate may name its next agent, even a person, who
// has nothing to do before the gate is open.
func columnOf(phase protocol.Phase, agent string, gate protocol.GateKind) int {
	switch {
	case phase == protocol.AwaitingApproval && !slices.Contains(gatesOfPeople, gate):
		return 0
	case agent == protocol.Human, phase == protocol.AwaitingApproval, phase == protocol.Conditional:
		return 2
	case phase == protocol.Working, phase == protocol.PhaseAccepted:
		return 1
	case phase == protocol.Retrying, phase == protocol.PhaseFailed, phase == protocol.PhaseTimeout, phase == protocol.PhaseRejected:
		return 3
	}
	return 0
}

// waitWords reads the states of the cards, and describes the wait of each. Viewers share a state until the
// index has a later one.
func (x *request) waitWords(columns []column) error {
	var cards []*row
	for i := range columns {
		for j := range columns[i].Rows {
			cards = append(cards, &columns[i].Rows[j])
		}
	}
	return dossier.InParallel(x.Context(), len(cards), func(ctx context.Context, i int) error {
		r := cards[i]
		s, err := x.p.states.get(ctx, fmt.Sprint(r.Ticket, r.Seq), func(ctx context.Context) (protocol.State, error) {
			return x.session.Status(ctx, r.Ticket)
		})
		switch {
		case err != nil: // the row keeps the words of the index
			return ctx.Err()
		case s.Closed:
			r.Words += " · " + protocol.CutText(oneLine(explain.Ending(s)), 120)
		default:
			r.Mark = markOf(s)
			r.Words = "waits for " + protocol.CutText(oneLine(explain.WaitingFor(s).Words), 160)
		}
		return nil
	})
}
