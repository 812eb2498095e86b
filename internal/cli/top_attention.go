package cli

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/dossier"
	"github.com/agenthandoff/handoff/explain"
	"github.com/agenthandoff/handoff/index/ask"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// attention is an open handoff that needs a person.
type attention struct {
	Why         string    `json:"why"`
	Ticket      string    `json:"ticket"`
	Agent       string    `json:"agent"`
	SubmittedAt time.Time `json:"submitted_at"`
	Words       string    `json:"words"` // what it waits for
}

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
	overdue, broken := lifecycle.OverdueSince(s, d, now)
	switch {
	case s.StuckReason != "" || broken != "":
		return "stuck"
	case !overdue.IsZero() && now.Sub(overdue) > lifecycle.LateAfter:
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
