package page

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// cardsMax is how many entries of an inbox a view shows, those that wait for longest.
const cardsMax = 50

// inboxView lists the handoffs that wait for a decision.
type inboxView struct {
	Of      string
	Inboxes []string // that the caller may read
	All     int
	Cards   []card
	More    int
	Decided *card
}

// card is one entry of an inbox.
type card struct {
	Ticket, Title, Sub string
	Mark               mark
	Since              time.Time
	Open               bool
	Outcomes           []typed // of each decision, and of none
	Acts               []act
	Commands           []typed
	Decided            string
	To                 string // of several handoffs: where they are
}

// inbox asks for the entries of one inbox. The explanation of the open card may ask one question more.
func (p *Page) inbox(x *request) (any, error) {
	v := inboxView{Of: cmp.Or(x.URL.Query().Get("of"), x.inboxName()), Inboxes: x.caller.Inboxes()}
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
	slices.SortStableFunc(waiting, func(a, b broker.Waiting) int { return dossier.FalseFirst(a.State.Closed, b.State.Closed) })
	v.More, waiting = max(0, v.All-cardsMax), waiting[:min(len(waiting), cardsMax)]
	inbox, err := dossier.InboxOf(x.Context(), x.session, waiting)
	if err != nil {
		return nil, err
	}
	entries := inbox.Entries
	slices.SortStableFunc(entries, func(a, b dossier.InboxEntry) int { // the newest comes last, and moves nothing
		return cmp.Or(dossier.FalseFirst(a.State.Closed, b.State.Closed), a.Since.Compare(b.Since))
	})
	open := x.URL.Query().Get("open")
	if !slices.ContainsFunc(waiting, func(w broker.Waiting) bool { return w.State.Ticket == open }) {
		if open != "" {
			v.Decided = x.decidedCard(open)
		}
		if open = ""; len(entries) > 0 {
			open = entries[0].Ticket
		}
	}
	for _, e := range entries {
		c := x.card(e)
		if c.Open = e.Ticket == open; c.Open {
			if err := x.openCard(&c, e); err != nil {
				return nil, err
			}
		}
		v.Cards = append(v.Cards, c)
	}
	for _, a := range inbox.Absences {
		v.Cards = append(v.Cards, card{Ticket: "absent-" + a.Absent, Mark: mark{"✕", "undelivered", "bad"}, To: "/ui/agents/" + a.Absent,
			Title: a.Absent + " has no worker; " + explain.Is(explain.Count(len(a.Handoffs), "handoff"), len(a.Handoffs)) + " here instead.",
			Sub:   "They go back to it as soon as it has one.", Since: a.Since})
	}
	return &v, nil
}

// card shows the wish, its author and its age.
func (x *request) card(e dossier.InboxEntry) card {
	s := e.State
	c := card{Ticket: s.Ticket, Mark: markOf(s), Title: e.Words, Since: e.Since,
		Sub: explain.Person(s.From()) + " → " + explain.Person(cmp.Or(s.Agent, s.TargetWords()))}
	switch e.Why {
	case lifecycle.InboxQuestion:
		needs := slices.Concat(s.Conditions.NeedsContext, s.Conditions.NeedsPermission)
		c.Title = explain.Person(s.Agent) + ": “" + oneLine(cmp.Or(strings.Join(needs, "; "), s.Conditions.Reason)) + "”"
		if words := oneLine(s.Conditions.Reason); words != "" && len(needs) > 0 {
			c.Sub += " · “" + protocol.CutText(words, 200) + "”"
		}
	case lifecycle.InboxApproval:
		c.Sub = explain.Person(s.From()) + " → " + explain.Person(s.Gate.Agent)
	case lifecycle.InboxReview:
		c.Mark.Class = "bad"
	case lifecycle.InboxOffer, lifecycle.InboxEscalation:
		c.Sub = explain.Person(s.From()) + " → " + s.TargetWords()
		if words := oneLine(s.Message); words != "" && words != e.Words {
			c.Sub += " · " + protocol.CutText(words, 200)
		}
	}
	c.Title = protocol.CutText(oneLine(cmp.Or(c.Title, e.Words, "a handoff without words")), 600)
	return c
}

// openCard adds the acts, and the effect of each, and of none.
func (x *request) openCard(c *card, e dossier.InboxEntry) error {
	why, err := x.session.Why(x.Context(), e.Ticket, x.frame.zone)
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
		nothing = "At " + x.frame.Clock(n.At) + " " + n.Words + "."
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
		Sub: explain.Person(s.From()) + " → " + explain.Person(cmp.Or(s.Agent, s.TargetWords()))}
}
