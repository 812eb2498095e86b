package cli

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/doctor"
	"github.com/agenthandoff/handoff/dossier"
	"github.com/agenthandoff/handoff/explain"
	"github.com/agenthandoff/handoff/index/ask"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// topView is one picture, for programs.
type topView struct {
	At        time.Time   `json:"at"`
	Served    int         `json:"served"` // agents that have a worker
	Open      int64       `json:"open"`   // handoffs; -1 where no index answers
	Rates     rates       `json:"rates"`
	Agents    []topAgent  `json:"agents"`
	Attention []attention `json:"attention"`
	Note      string      `json:"note,omitempty"` // what is missing, and why
}

// topAgent is a line about an agent.
type topAgent struct {
	Agent        string           `json:"agent"`
	Availability api.Availability `json:"availability"`
	PolledAt     time.Time        `json:"polled_at,omitzero"` // where it polls: when it was last heard of
	Workers      int              `json:"workers"`
	Slots        int              `json:"slots"`
	Busy         int              `json:"busy"`
	Queued       int              `json:"queued"` // offers, those being worked on included
	Lanes        topLanes         `json:"lanes"`
	Waiting      time.Time        `json:"waiting_since,omitzero"` // the first that no worker has taken
	rates
}

type topLanes struct {
	Critical int `json:"critical"`
	High     int `json:"high"`
	Normal   int `json:"normal"`
	Low      int `json:"low"`
}

func (l *topLanes) add(lane protocol.Priority, n int) {
	switch lane {
	case protocol.Critical:
		l.Critical += n
	case protocol.High:
		l.High += n
	case protocol.Normal:
		l.Normal += n
	case protocol.Low:
		l.Low += n
	}
}

// attention is an open handoff that needs a person.
type attention struct {
	Why         string    `json:"why"`
	Ticket      string    `json:"ticket"`
	Agent       string    `json:"agent"`
	SubmittedAt time.Time `json:"submitted_at"`
	Words       string    `json:"words"` // what it waits for
}

// topWatch is what a picture is made of.
type topWatch struct {
	b       *broker.Broker
	answers ask.Answers
	seen    *topRates
	stop    func() // ends what goes on beside, and waits for it

	noIndex time.Time // when none answered
}

// topIndexWithin is how long a picture waits for one answer of an index.
const topIndexWithin = 2 * time.Second

// noIndexFor is how long no index is asked after none has answered: that takes
// topIndexWithin each time.
const noIndexFor = 15 * time.Second

// startTop begins to follow the ledger, a minute back.
func startTop(ctx context.Context, a *app, b *broker.Broker) (*topWatch, error) {
	ledger, err := b.LedgerInfo(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := b.Directory(ctx); err != nil { // it begins its watch
		return nil, err
	}
	from, now := ledger.Last+1, time.Now()
	first, err := b.Since(ctx, now.Add(-rateWindow))
	switch {
	case err == nil:
		from = first.Seq
	case !errors.Is(err, broker.ErrNotFound):
		return nil, err
	}
	covers := now.Add(-rateWindow)
	if ledger.Last > ratesBack && from < ledger.Last-ratesBack {
		from, covers = ledger.Last-ratesBack, time.Time{} // the first entry says from when on
	}
	past := ledger.Last
	if from > past { // nothing happened for a minute
		past = 0
	}
	w := &topWatch{b: b, answers: ask.Client{Asker: asker{engine: b, timeout: topIndexWithin}}, seen: newTopRates(covers, past)}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = followLedger(ctx, b, ledger, from, func(string) {}, w.seen.take) // it ends with ctx; a cut shows in the picture itself
	}()
	w.stop = func() { cancel(); <-ended }
	return w, w.seen.caughtUp(ctx)
}

// viewWithin is how long one picture may take.
const viewWithin = 5 * time.Second

func (w *topWatch) view(ctx context.Context) (topView, error) {
	ctx, cancel := context.WithTimeout(ctx, viewWithin)
	defer cancel()
	directory, err := w.b.Directory(ctx)
	if err != nil {
		return topView{}, err
	}
	if directory.ConnectedSince.IsZero() { // no need to wait for an answer
		return topView{}, broker.ErrUnreachable
	}
	queues, err := w.b.Queues(ctx)
	if err != nil {
		return topView{}, err
	}
	now := time.Now().UTC()
	v := topView{At: now, Open: -1, Attention: []attention{}}
	all, byAgent := w.seen.now(now)
	v.Rates, v.Agents = all, topAgents(directory, queues, byAgent)
	for _, a := range v.Agents {
		if a.Workers > 0 {
			v.Served++
		}
	}
	candidates, err := w.candidates(ctx, &v)
	switch {
	case errors.Is(err, broker.ErrNoAnswer):
		if time.Since(w.noIndex) >= noIndexFor {
			w.noIndex = time.Now()
		}
		v.Note = "no index answers, so that handoffs which need attention are not shown; start one: handoff index"
		candidates = nil
	case err != nil:
		return topView{}, err
	}
	v.Attention, err = w.attention(ctx, append(candidates, w.seen.stuckTickets()...), directory, now)
	return v, err
}

// topAgents puts agents, workers and queues together: those with the most in
// their queues first.
func topAgents(d *lifecycle.Directory, queues []broker.QueueStatus, rates map[string]rates) []topAgent {
	all := map[string]*topAgent{}
	of := func(id string) *topAgent {
		if all[id] == nil {
			profile, known := d.Agent(id)
			all[id] = &topAgent{Agent: id, Availability: "unknown", rates: rates[id]}
			if known {
				all[id].Availability = api.AvailabilityOf(profile, d)
				all[id].PolledAt, _ = d.Polled(id)
			}
			all[id].Workers, all[id].Slots, all[id].Busy = d.Load(id)
		}
		return all[id]
	}
	for id := range d.Agents {
		of(id)
	}
	for _, q := range queues {
		a := of(q.Agent)
		a.Queued += q.Depth
		a.Lanes.add(q.Lane, q.Depth)
		if !q.Waiting.IsZero() && (a.Waiting.IsZero() || q.Waiting.Before(a.Waiting)) {
			a.Waiting = q.Waiting
		}
	}
	agents := []topAgent{}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		agents = append(agents, *all[id])
	}
	slices.SortStableFunc(agents, func(a, b topAgent) int {
		return cmp.Or(cmp.Compare(b.Queued, a.Queued), cmp.Compare(b.Busy, a.Busy), cmp.Compare(b.Workers, a.Workers))
	})
	return agents
}

const (
	// candidatesMax is how many handoffs of each kind are looked at.
	candidatesMax = 20
	// oldestMax is how many are shown for nothing but their age.
	oldestMax = 3
)

// candidates asks an index for handoffs that may need a person. What they are is
// read from the ledger.
func (w *topWatch) candidates(ctx context.Context, v *topView) ([]string, error) {
	if time.Since(w.noIndex) < noIndexFor {
		return nil, broker.ErrNoAnswer
	}
	open := true
	fresh := ask.Question{WaitMS: -1} // a picture need not wait
	counted, err := w.answers.Count(ctx, ask.CountQuery{Question: fresh, Filter: ask.Filter{Open: &open}})
	if err != nil {
		return nil, err
	}
	v.Open = counted.Count
	if !counted.Complete {
		v.Note = "the index is catching up: more handoffs may need attention than are shown"
	}
	var tickets []string
	for _, q := range []ask.ListQuery{
		{Filter: ask.Filter{Open: &open, Agent: []string{protocol.Human}}, Limit: candidatesMax},
		{Filter: ask.Filter{Open: &open, Phase: []protocol.Phase{protocol.Conditional}}, Limit: candidatesMax},
		{Filter: ask.Filter{Open: &open, Phase: []protocol.Phase{protocol.PhaseFailed, protocol.PhaseRejected, protocol.PhaseTimeout}}, Limit: candidatesMax},
		{Filter: ask.Filter{Open: &open}, Limit: candidatesMax},
	} {
		q.Question, q.Sort = fresh, ask.SortOldest
		page, err := w.answers.List(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, row := range page.Handoffs {
			tickets = append(tickets, row.Ticket)
		}
	}
	return tickets, nil
}

// attention reads what has become of candidates, and says why a person should look.
func (w *topWatch) attention(ctx context.Context, candidates []string, d *lifecycle.Directory, now time.Time) ([]attention, error) {
	slices.Sort(candidates)
	candidates = slices.Compact(candidates)
	states := make([]protocol.State, len(candidates))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(dossier.ReadsAtOnce)
	for i, ticket := range candidates {
		group.Go(func() error {
			head, err := w.b.Head(ctx, ticket, 0)
			if errors.Is(err, broker.ErrNotFound) || broker.Unreadable(err) { // doctor tells of those
				return nil
			}
			states[i] = head.State
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return attend(states, d, now), nil
}

// whys are the reasons for attention, the most urgent first.
var whys = []string{"stuck", "late", "person", "question", "undecided", "oldest"}

// attend says of states why a person should look at them: the most urgent first.
func attend(states []protocol.State, d *lifecycle.Directory, now time.Time) []attention {
	all, oldest := []attention{}, []attention{}
	for _, s := range states {
		if s.Ticket == "" || s.Closed {
			continue
		}
		item := attention{Why: whyAttend(s, d, now), Ticket: s.Ticket, Agent: s.Agent, SubmittedAt: s.SubmittedAt, Words: phrase(explain.WaitingFor(s))}
		switch item.Why {
		case "stuck":
			item.Words = s.StuckReason
		case "oldest":
			oldest = append(oldest, item)
			continue
		}
		all = append(all, item)
	}
	byAge := func(a, b attention) int { return a.SubmittedAt.Compare(b.SubmittedAt) }
	slices.SortFunc(oldest, byAge)
	all = append(all, oldest[:min(len(oldest), oldestMax)]...)
	slices.SortStableFunc(all, func(a, b attention) int {
		return cmp.Or(cmp.Compare(slices.Index(whys, a.Why), slices.Index(whys, b.Why)), byAge(a, b))
	})
	return all
}

func whyAttend(s protocol.State, d *lifecycle.Directory, now time.Time) string {
	overdue, broken := doctor.OverdueSince(s, d, now)
	switch {
	case s.StuckReason != "" || broken != "":
		return "stuck"
	case !overdue.IsZero() && now.Sub(overdue) > doctor.LateAfter:
		return "late"
	case s.Agent == protocol.Human:
		return "person"
	case s.Phase == protocol.Conditional && s.Conditions != nil:
		return "question"
	case s.Phase == protocol.PhaseFailed || s.Phase == protocol.PhaseRejected || s.Phase == protocol.PhaseTimeout:
		return "undecided"
	}
	return "oldest"
}
