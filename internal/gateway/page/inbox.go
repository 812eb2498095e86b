package page

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// cardsMax is how many entries of an inbox a view shows, those that wait for longest.
const cardsMax = 50

// inboxView lists the handoffs that wait for a decision.
type inboxView struct {
	Of       string
	Tabs     []tab
	All      int
	Headline string
	Cards    []card
	More     int
	Decided  *card
}

// card is one entry of an inbox.
type card struct {
	Ticket, Title, Sub string
	Mark               mark
	Since, Age         string
	Open               bool
	Outcomes           []typed // of each decision, and of none
	Acts               []act
	Commands           []typed
	Decided            string
	To                 string // of several handoffs: where they are
}

// inbox asks for the entries of one inbox. The explanation of the open card may ask one question more.
func (p *Page) inbox(x *request) (any, error) {
	x.frame.Page = "inbox"
	all := x.caller.Inboxes()
	v := inboxView{Of: cmp.Or(x.URL.Query().Get("of"), x.inboxName())}
	if len(all) > 1 {
		for _, name := range all {
			word := name
			if name == protocol.Human {
				word = "for a person"
			}
			v.Tabs = append(v.Tabs, tab{name, word, name == v.Of})
		}
	}
	var waiting []broker.Waiting
	var people api.People // the index counts those that no card shows
	group, ctx := errgroup.WithContext(x.Context())
	group.Go(func() (err error) { waiting, err = x.session.FirstInbox(ctx, v.Of, cardsMax+1); return err })
	if v.Of == x.inboxName() {
		people = x.count(true)
	} else {
		x.count(false)
		people, _ = x.session.InboxCount(ctx, v.Of, true)
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if v.All = len(waiting); v.All > cardsMax {
		v.All = max(v.All, people.Handoffs)
	}
	if v.Of == x.inboxName() {
		x.counted(v.All, v.All > cardsMax && people.More)
	}
	since := func(w broker.Waiting) time.Time {
		if w.State.Closed {
			return w.State.ClosedAt
		}
		return lifecycle.InboxSince(w.State)
	}
	slices.SortStableFunc(waiting, func(a, b broker.Waiting) int { // the newest comes last, and moves nothing
		if a.State.Closed != b.State.Closed { // and those that are closed come after all others
			return map[bool]int{true: 1, false: -1}[a.State.Closed]
		}
		return since(a).Compare(since(b))
	})
	v.More, waiting = max(0, v.All-cardsMax), waiting[:min(len(waiting), cardsMax)]
	entries, err := dossier.InboxOf(x.Context(), x.session, waiting)
	if err != nil {
		return nil, err
	}
	open := x.URL.Query().Get("open")
	known := slices.ContainsFunc(waiting, func(w broker.Waiting) bool { return w.State.Ticket == open })
	if open != "" && !known {
		v.Decided = x.decidedCard(open)
	}
	if !known && len(entries.Entries) > 0 {
		open = firstOf(waiting, entries.Entries)
	}
	words := map[string]dossier.InboxEntry{}
	for _, e := range entries.Entries {
		words[e.Ticket] = e
	}
	for _, w := range waiting {
		e, single := words[w.State.Ticket]
		if !single {
			continue
		}
		c := x.card(e)
		if c.Open = e.Ticket == open; c.Open {
			if err := x.openCard(&c, e); err != nil {
				return nil, err
			}
		}
		v.Cards = append(v.Cards, c)
	}
	for _, a := range entries.Absences {
		v.Cards = append(v.Cards, card{Ticket: "absent-" + a.Absent, Mark: mark{"✕", "undelivered", "bad"}, To: "/ui/agents/" + a.Absent,
			Title: a.Absent + " has no worker; " + explain.Is(explain.Count(len(a.Handoffs), "handoff"), len(a.Handoffs)) + " here instead.",
			Sub:   "They go back to it as soon as it has one.", Since: x.clock(a.Since), Age: explain.Spoken(x.now.Sub(a.Since))})
	}
	v.headline(x)
	return &v, nil
}

// firstOf is the first of the waiting that has a card of its own.
func firstOf(waiting []broker.Waiting, entries []dossier.InboxEntry) string {
	for _, w := range waiting {
		if slices.ContainsFunc(entries, func(e dossier.InboxEntry) bool { return e.Ticket == w.State.Ticket }) {
			return w.State.Ticket
		}
	}
	return ""
}

func (v *inboxView) headline(x *request) {
	who := explain.Person(v.Of)
	switch v.All {
	case 0:
		v.Headline = "Nothing waits for " + who + "."
	case 1:
		v.Headline = "1 waits for " + who + "."
	default:
		v.Headline = fmt.Sprintf("%d wait for %s.", v.All, who)
	}
	x.frame.Title = "Inbox"
}

// card shows the wish, its author and its age.
func (x *request) card(e dossier.InboxEntry) card {
	s := e.State
	c := card{Ticket: s.Ticket, Mark: markOf(s), Title: e.Words, Since: x.clock(e.Since), Age: explain.Spoken(x.now.Sub(e.Since)),
		Sub: explain.Person(s.Source) + " → " + explain.Person(cmp.Or(s.Agent, s.TargetWords()))}
	switch e.Why {
	case lifecycle.InboxQuestion:
		needs := slices.Concat(s.Conditions.NeedsContext, s.Conditions.NeedsPermission)
		c.Title = explain.Person(s.Agent) + ": “" + oneLine(cmp.Or(strings.Join(needs, "; "), s.Conditions.Reason)) + "”"
		if words := oneLine(s.Conditions.Reason); words != "" && len(needs) > 0 {
			c.Sub += " · “" + protocol.CutText(words, 200) + "”"
		}
	case lifecycle.InboxApproval:
		c.Sub = explain.Person(s.Source) + " → " + explain.Person(s.Gate.Agent)
	case lifecycle.InboxReview:
		c.Mark.Class = "bad"
	case lifecycle.InboxOffer, lifecycle.InboxEscalation:
		c.Sub = explain.Person(s.Source) + " → " + s.TargetWords()
		if words := oneLine(s.Message); words != "" && words != e.Words {
			c.Sub += " · " + protocol.CutText(words, 200)
		}
	}
	c.Title = protocol.CutText(oneLine(cmp.Or(c.Title, e.Words, "a handoff without words")), 600)
	return c
}

// openCard adds the acts, and the effect of each, and of none.
func (x *request) openCard(c *card, e dossier.InboxEntry) error {
	why, err := x.session.Why(x.Context(), e.Ticket, x.zone)
	if err != nil {
		return err
	}
	actions := why.Actions
	if e.Closed {
		actions = append(explain.Inbox(e.State).Actions, actions...)
	}
	c.Acts, c.Commands = x.actsOf(e.State, actions)
	seen := map[string]bool{}
	for i := range c.Acts {
		a := &c.Acts[i]
		if label := strings.TrimSuffix(a.Label, "…"); len(c.Outcomes) < 2 && (a.Key == "a" || a.Key == "x") && !seen[label] {
			c.Outcomes, seen[label] = append(c.Outcomes, typed{label, a.Does}), true
		}
	}
	nothing := "It stays here until a decision."
	if n := why.Next; n != nil && n.Words != "" && !n.Overdue {
		nothing = "At " + x.clock(n.At) + " " + n.Words + "."
	}
	if e.Why == lifecycle.InboxApproval {
		nothing += " It is never approved by silence."
	}
	c.Outcomes = append(c.Outcomes, typed{"No decision", nothing})
	return nil
}

// decidedCard is an entry that was decided elsewhere.
func (x *request) decidedCard(ticket string) *card {
	ticket, err := protocol.ParseTicket(ticket)
	if err != nil {
		return nil
	}
	s, err := x.session.Status(x.Context(), ticket)
	if err != nil {
		return nil
	}
	return &card{Ticket: ticket, Mark: markOf(s), Title: cmp.Or(x.decided(ticket), "It no longer waits here."),
		Sub: explain.Person(s.Source) + " → " + explain.Person(cmp.Or(s.Agent, s.TargetWords()))}
}
