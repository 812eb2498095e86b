package api

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// The operations of this file ask the index, some in addition to the ledger.

// List returns a page of handoffs. A caller that may not see all handoffs must filter by one of
// its names as source, agent or target.
func (c *Session) List(ctx context.Context, q ask.ListQuery) (ask.ListAnswer, error) {
	return unless(c.mayFilter("List", q.Filter), func() (ask.ListAnswer, error) { return c.s.cfg.Index.List(ctx, q) })
}

// Count counts handoffs. It has the same rule for the filter as List.
func (c *Session) Count(ctx context.Context, q ask.CountQuery) (ask.CountAnswer, error) {
	return unless(c.mayFilter("Count", q.Filter), func() (ask.CountAnswer, error) { return c.s.cfg.Index.Count(ctx, q) })
}

// Figures returns success rates, durations and refusals. Figures and Series have the same rule
// for the filter as List.
func (c *Session) Figures(ctx context.Context, q ask.FiguresQuery) (ask.FiguresAnswer, error) {
	return unless(c.mayFilter("Figures", q.Filter), func() (ask.FiguresAnswer, error) { return c.s.cfg.Index.Figures(ctx, q) })
}

// Series returns counts and durations over time.
func (c *Session) Series(ctx context.Context, q ask.SeriesQuery) (ask.SeriesAnswer, error) {
	return unless(c.mayFilter("Series", q.Filter), func() (ask.SeriesAnswer, error) { return c.s.cfg.Index.Series(ctx, q) })
}

// Position returns the position in the ledger that the index has reached.
func (c *Session) Position(ctx context.Context, q ask.Question) (ask.Position, error) {
	if err := c.may("Position"); err != nil {
		return ask.Position{}, err
	}
	answer, err := c.s.cfg.Index.Position(ctx, ask.PositionQuery{Question: q})
	return answer.Position, err
}

// Find returns the one ticket that begins with a prefix of at least PrefixMin characters. It is
// refused if several do (CodeAmbiguous), and to a caller that may not see all handoffs, because
// such a caller knows its tickets.
func (c *Session) Find(ctx context.Context, prefix string) (string, error) {
	if err := c.may("Find"); err != nil {
		return "", err
	}
	if !c.caller.seesAll() {
		return "", forbidden("ticket", "a caller that sees its own handoffs alone gives whole tickets")
	}
	if _, err := ask.ParsePrefix(prefix); err != nil {
		return "", err
	}
	found, err := c.s.cfg.Index.Tickets(ctx, ask.TicketsQuery{Prefix: prefix})
	switch {
	case err != nil:
		return "", err
	case len(found.Tickets) == 1:
		return found.Tickets[0], nil
	case len(found.Tickets) == 0 && !found.Complete:
		return "", protocol.Errorf(protocol.CodeBehind, "ticket", "the index has no ticket that begins with %s, and has not read all of the ledger; give the whole ticket", prefix)
	case len(found.Tickets) == 0:
		return "", protocol.Errorf(protocol.CodeNotFound, "ticket", "no handoff has a ticket that begins with %s", prefix)
	}
	others := ""
	if found.More {
		others = " and others"
	}
	return "", protocol.Errorf(protocol.CodeAmbiguous, "ticket", "%s is the beginning of several tickets: %s%s", prefix, strings.Join(found.Tickets, ", "), others)
}

// mayFilter refuses a filter that selects handoffs that the caller may not see.
func (c *Session) mayFilter(operation string, f ask.Filter) error {
	if err := c.may(operation); err != nil || c.caller.seesAll() {
		return err
	}
	for _, names := range [...][]string{f.Source, f.Agent, f.Target} {
		if len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool { return !c.caller.isNamed(name) }) {
			return nil
		}
	}
	return forbidden("filter", "selects handoffs that %s may not see: give a source, an agent or a target of its own", c.caller.Name)
}

// Family returns the handoffs of a family that the caller may see.
func (c *Session) Family(ctx context.Context, q ask.FamilyQuery) (ask.FamilyAnswer, error) {
	var err error
	if q.Ticket, err = c.locate(ctx, "Family", q.Ticket); err != nil {
		return ask.FamilyAnswer{}, err
	}
	answer, err := c.s.cfg.Index.Family(ctx, q)
	if !c.caller.seesAll() {
		answer.Handoffs = slices.DeleteFunc(answer.Handoffs, func(r ask.Row) bool {
			return !c.caller.isNamed(r.Source) && !c.caller.isNamed(r.Agent) && !c.caller.isNamed(r.Target)
		})
	}
	return answer, err
}

// Why explains why a handoff waits. Its times are in the given zone.
func (c *Session) Why(ctx context.Context, ticket string, zone *time.Location) (explain.Explanation, error) {
	ticket, err := c.locate(ctx, "Why", ticket)
	if err != nil {
		return explain.Explanation{}, err
	}
	situation, err := explain.Gather(ctx, c.s.b, c.s.cfg.Index, ticket, zone)
	if err != nil {
		return explain.Explanation{}, err
	}
	return explain.Explain(situation), nil
}

// Attention lists the handoffs that need a person.
type Attention struct {
	Open     int64      `json:"open"`     // open handoffs; -1 if no index answers
	Complete bool       `json:"complete"` // the index has read the whole ledger
	Handoffs []Attended `json:"handoffs"` // the most urgent first
	People   People     `json:"people"`
}

// People counts the handoffs that wait for a person.
type People struct {
	Handoffs int       `json:"handoffs"` // open ones
	Since    time.Time `json:"since,omitzero"`
	More     bool      `json:"more,omitempty"` // more exist than were counted
}

// add counts an entry of a person's inbox.
func (p *People) add(since time.Time) {
	if p.Handoffs++; p.Since.IsZero() || since.Before(p.Since) {
		p.Since = since
	}
}

// peopleBelow counts the handoffs that wait for a person and concern an agent: it was their target,
// it had them, or it asks a question.
func peopleBelow(waiting []broker.Waiting, agent string) (p People) {
	for _, w := range waiting {
		if s := w.State; !s.Closed && (s.Target.Agent == agent || s.Agent == agent || s.Gate != nil && s.Gate.Agent == agent || slices.Contains(s.Chain, agent)) {
			p.add(lifecycle.InboxSince(s))
		}
	}
	return p
}

// Attended is an open handoff that needs a person.
type Attended struct {
	Need  Need           `json:"need"`
	State protocol.State `json:"state"`
	Words explain.Phrase `json:"words"` // why it is stuck, or its next step
}

// Need is why a handoff needs a person.
type Need string

// The needs, in order of urgency.
const (
	NeedStuck    Need = "stuck"     // the supervisors have stopped trying
	NeedLate     Need = "late"      // a decision is overdue
	NeedPerson   Need = "person"    // a person has it
	NeedApproval Need = "approval"  // it waits until it is approved
	NeedBudget   Need = "budget"    // it waits until its limits are raised
	NeedAnswer   Need = "question"  // an agent waits for an answer
	NeedDecision Need = "undecided" // it failed, was refused or timed out
	NeedLoop     Need = "deep"      // it is so deep in its lineage that agents may hand off in a loop
	NeedPatience Need = "oldest"    // it has been open for longest
)

const (
	candidatesMax = 20 // handoffs of each kind that are checked
	oldestMax     = 3  // handoffs that are listed only because of their age
	readsAtOnce   = 16
)

var needs = []Need{NeedStuck, NeedLate, NeedPerson, NeedApproval, NeedBudget, NeedAnswer, NeedDecision, NeedLoop, NeedPatience}

// Attention returns the open handoffs that need a person, from the candidates of an index and
// the tickets in also. Without an index the error is broker.ErrNoAnswer, and the answer covers
// only also.
func (c *Session) Attention(ctx context.Context, also []string) (Attention, error) {
	d, err := allowed(ctx, c, "Attention", c.s.b.Directory)
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
	if noAnswer == nil {
		answer.People, noAnswer = c.s.people(ctx, d)
	}
	return answer, noAnswer
}

// people asks an index for the number of open handoffs in the inbox of a person.
func (s *Service) people(ctx context.Context, d *lifecycle.Directory) (p People, err error) {
	page, err := s.cfg.Index.Waiting(ctx, ask.WaitingQuery{Question: ask.Question{WaitMS: -1}, Agent: protocol.Human,
		Registered: lifecycle.Answering(d), Limit: ask.PageMax})
	for _, row := range page.Handoffs {
		if row.Inbox != lifecycle.InboxReview {
			p.add(row.UpdatedAt)
		}
	}
	p.More = page.Cursor != ""
	return p, err
}

// PeopleFor counts the handoffs that wait for a person and concern an agent.
func (c *Session) PeopleFor(ctx context.Context, agent string) (People, error) {
	waiting, err := c.Inbox(ctx, protocol.Human)
	return peopleBelow(waiting, agent), err
}

// InboxCount counts the handoffs in the inbox of an agent or a person, by an index, at most
// ask.CountedMax. Closed ones count, too, and with held those that the agent works on. The caller needs the
// right to read that inbox.
func (c *Session) InboxCount(ctx context.Context, agent string, held bool) (People, error) {
	if err := c.mayReadInbox(agent); err != nil {
		return People{}, err
	}
	d, err := c.s.b.Directory(ctx)
	if err != nil {
		return People{}, err
	}
	a, err := c.s.cfg.Index.Waiting(ctx, ask.WaitingQuery{Question: ask.Question{WaitMS: -1}, Agent: agent,
		Registered: lifecycle.Answering(d), Below: lifecycle.ApproversBelow(agent, d), Count: true, Free: !held})
	return People{Handoffs: min(a.Counted, ask.CountedMax), More: a.Counted > ask.CountedMax, Since: a.Since}, err
}

// candidates asks an index for handoffs that may need a person. Their current states are read from
// the ledger.
func (s *Service) candidates(ctx context.Context) (Attention, []string, error) {
	none, open := Attention{Open: -1}, true
	fresh := ask.Question{WaitMS: -1} // the current states come from the ledger
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

// states reads handoffs in parallel. It omits unreadable ones: the doctor reports them.
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

// attend selects the states that need a person, with the reasons, in order of urgency.
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
	overdue, err := lifecycle.OverdueSince(s, d.At(now))
	switch {
	case s.StuckReason != "" || err != nil:
		return NeedStuck
	case !overdue.IsZero() && now.Sub(overdue) > lifecycle.LateAfter:
		return NeedLate
	case s.Agent == protocol.Human && s.Phase != protocol.AwaitingApproval: // it is offered to a person behind the gate
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
