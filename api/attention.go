package api

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Attention has the handoffs that need a person.
type Attention struct {
	Open     int64      // open handoffs; -1 where no index answers
	Complete bool       // the index has read all of the ledger
	Handoffs []Attended // the most urgent first
}

// Attended is an open handoff that needs a person.
type Attended struct {
	Need  Need
	State protocol.State
	Words explain.Phrase // why it is stuck, or what it waits for
}

// Need is why a handoff needs a person.
type Need string

// The needs, the most urgent first.
const (
	NeedStuck    Need = "stuck"     // the supervisors have stopped trying
	NeedLate     Need = "late"      // something was due and was not decided
	NeedPerson   Need = "person"    // a person has it
	NeedApproval Need = "approval"  // it waits until it is approved
	NeedBudget   Need = "budget"    // it waits until its limits are raised
	NeedAnswer   Need = "question"  // an agent waits for an answer
	NeedDecision Need = "undecided" // it failed, was refused or timed out
	NeedLoop     Need = "deep"      // it follows from so many others that agents may hand off in a loop
	NeedPatience Need = "oldest"    // it is open for longest
)

const (
	candidatesMax = 20 // handoffs of each kind that are looked at
	oldestMax     = 3  // handoffs that are listed for nothing but their age
	readsAtOnce   = 16
)

var needs = []Need{NeedStuck, NeedLate, NeedPerson, NeedApproval, NeedBudget, NeedAnswer, NeedDecision, NeedLoop, NeedPatience}

// Attention implements Operator.
func (c *Session) Attention(ctx context.Context, also []string) (Attention, error) {
	if err := c.may("Attention"); err != nil {
		return Attention{}, err
	}
	d, err := c.s.b.Directory(ctx)
	if err != nil {
		return Attention{}, err
	}
	answer, candidates, noAnswer := c.s.candidates(ctx)
	if noAnswer != nil && !errors.Is(noAnswer, broker.ErrNoAnswer) {
		return Attention{}, noAnswer
	}
	states, err := c.s.states(ctx, slices.Concat(candidates, also))
	if err != nil {
		return Attention{}, err
	}
	answer.Handoffs = attend(states, d, time.Now())
	return answer, noAnswer
}

// candidates asks an index for handoffs that may need a person. What has become of them is
// read from the ledger.
func (s *Service) candidates(ctx context.Context) (Attention, []string, error) {
	none, open := Attention{Open: -1}, true
	fresh := ask.Question{WaitMS: -1} // the ledger says what the index has not read
	counted, err := s.cfg.Index.Count(ctx, ask.CountQuery{Question: fresh, Filter: ask.Filter{Open: &open}})
	if err != nil {
		return none, nil, err
	}
	var tickets []string
	for _, filter := range []ask.Filter{
		{Open: &open, Agent: []string{protocol.Human}},
		{Open: &open, Gate: []protocol.GateKind{protocol.GateApproval, protocol.GateBudget}},
		{Open: &open, Phase: []protocol.Phase{protocol.Conditional}},
		{Open: &open, Phase: []protocol.Phase{protocol.PhaseFailed, protocol.PhaseRejected, protocol.PhaseTimeout}},
		{Open: &open},
	} {
		page, err := s.cfg.Index.List(ctx, ask.ListQuery{Question: fresh, Filter: filter, Sort: ask.SortOldest, Limit: candidatesMax})
		if err != nil {
			return none, nil, err
		}
		for _, row := range page.Handoffs {
			tickets = append(tickets, row.Ticket)
		}
	}
	return Attention{Open: counted.Count, Complete: counted.Complete}, tickets, nil
}

// states reads handoffs side by side. Those that cannot be read are left out: a doctor tells
// of them.
func (s *Service) states(ctx context.Context, tickets []string) ([]protocol.State, error) {
	slices.Sort(tickets)
	tickets = slices.Compact(tickets)
	states := make([]protocol.State, len(tickets))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readsAtOnce)
	for i, ticket := range tickets {
		group.Go(func() error {
			head, err := s.b.Head(ctx, ticket, 0)
			if errors.Is(err, broker.ErrNotFound) || broker.Unreadable(err) {
				return nil
			}
			states[i] = head.State
			return err
		})
	}
	err := group.Wait()
	return slices.DeleteFunc(states, func(s protocol.State) bool { return s.Ticket == "" }), err
}

// attend says of states why they need a person: the most urgent first.
func attend(states []protocol.State, d *lifecycle.Directory, now time.Time) []Attended {
	var all, oldest []Attended
	for _, s := range states {
		if s.Closed {
			continue
		}
		switch item := (Attended{needOf(s, d, now), s, explain.WaitingFor(s)}); item.Need {
		case NeedPatience:
			oldest = append(oldest, item)
		case NeedLoop:
			item.Words = explain.Phrase{Words: explain.Depth(s) + " in its lineage"}
			all = append(all, item)
		case NeedStuck:
			item.Words = explain.Phrase{Words: s.StuckReason}
			all = append(all, item)
		default:
			all = append(all, item)
		}
	}
	byAge := func(a, b Attended) int { return a.State.SubmittedAt.Compare(b.State.SubmittedAt) }
	slices.SortFunc(oldest, byAge)
	all = append(all, oldest[:min(len(oldest), oldestMax)]...)
	slices.SortStableFunc(all, func(a, b Attended) int {
		return cmp.Or(cmp.Compare(slices.Index(needs, a.Need), slices.Index(needs, b.Need)), byAge(a, b))
	})
	return all
}

func needOf(s protocol.State, d *lifecycle.Directory, now time.Time) Need {
	overdue, broken := lifecycle.OverdueSince(s, d, now)
	switch {
	case s.StuckReason != "" || broken != "":
		return NeedStuck
	case !overdue.IsZero() && now.Sub(overdue) > lifecycle.LateAfter:
		return NeedLate
	case s.Agent == protocol.Human:
		return NeedPerson
	case s.Gate.First() == protocol.GateApproval:
		return NeedApproval
	case s.Gate.First() == protocol.GateBudget:
		return NeedBudget
	case s.Phase == protocol.Conditional && s.Conditions != nil:
		return NeedAnswer
	case s.Phase == protocol.PhaseFailed || s.Phase == protocol.PhaseRejected || s.Phase == protocol.PhaseTimeout:
		return NeedDecision
	case lifecycle.Deep(s.Summary):
		return NeedLoop
	}
	return NeedPatience
}
