package cli

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

func newHistory(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "history TICKET",
		Short: "Show everything that happened to a handoff",
		Long: `History reads the ledger's entries of one handoff, oldest first: when, how long after
the event before, the event, and by whom. With -o json or jsonl it is complete: each
entry with its sequence, its hash, its events and the state after them.`,
		Example: `  handoff history 5f0c…
  handoff history 5f0c… -o jsonl | jq -r '.events[].type'`,
		Args: takes("a TICKET"),
		RunE: a.onTicket(func(ctx context.Context, s *source, ticket string) error {
			changes, unread := s.session.History(ctx, ticket)
			if len(changes) == 0 || unread != nil && !broker.Unreadable(unread) {
				return unread
			}
			if a.text() {
				return errors.Join(a.history(changes), unread)
			}
			views, err := dossier.History(changes)
			if err != nil {
				return err
			}
			return errors.Join(list(a, views), unread)
		}),
	}
}

// history prints one line for each event.
func (a *app) history(changes []protocol.Change) error {
	if len(changes) == 0 {
		return nil
	}
	last := changes[len(changes)-1].Record.State
	day := changes[0].Record.Events[0].When().UTC().Format(time.DateOnly)
	a.printf("%s  %s -> %s  %s  %s\n", a.shortens(last.Ticket)(last.Ticket), last.From(), last.TargetWords(), a.phase(last), day)
	rows := [][]string{{"TIME (UTC)", "AFTER", "EVENT", "BY", "DETAIL"}}
	var before time.Time
	for _, c := range changes {
		for _, e := range c.Record.Events {
			at := e.When().UTC()
			stamp, after := at.Format("15:04:05.000"), ""
			if today := at.Format(time.DateOnly); today != day {
				stamp, day = at.Format("2006-01-02 15:04:05.000"), today
			}
			if !before.IsZero() {
				after = "+" + explain.Duration(at.Sub(before))
			}
			by, detail := explain.Event(e)
			rows = append(rows, []string{stamp, after, string(e.EventType()), explain.By(by), detail})
			before = at
		}
	}
	if err := a.table(rows); err != nil {
		return err
	}
	if last.Closed {
		a.paragraph(fmt.Sprintf("%s after %s, attempts: %d", explain.Ending(last), explain.Duration(explain.Took(last.SubmittedAt, last.ClosedAt)), last.AttemptsTotal))
	} else {
		a.paragraph(fmt.Sprintf("open for %s; waits for %s", explain.Duration(explain.Took(last.SubmittedAt, a.now())), phrase(explain.WaitingFor(last))))
	}
	return nil
}

func newWhy(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "why TICKET",
		Aliases: []string{"explain"},
		Short:   "Explain why a handoff waits, and its next step",
		Long: `Why explains in a few sentences why a handoff waits, its next step and when that comes
if nothing else happens, and your choices. The next step is no guess: the rules of the
supervisors compute it.

Times are in UTC. With -o json there are ticket, phase, closed, waiting_for (one
word), sentences, next (at, event, to, words) and commands. The words of waiting_for:
approval, limit (a place under a key), agent (none is fit), person, worker (none is
running), resume (the agent is paused), slot (all are busy), taker (a worker that is
free), acknowledgement, start, work, answer, time, children, members, stop (of the
worker, since the end was asked for), decision (of a supervisor), nothing (it is
closed).

Exit codes: 0 the handoff exists, however it went; 3 no such ticket.`,
		Example: `  handoff why 5f0c…
  handoff why 5f0c… -o json | jq -r .next.at`,
		Args: takes("a TICKET"),
		RunE: a.onTicket(func(ctx context.Context, s *source, ticket string) error {
			explanation, err := s.session.Why(ctx, ticket, time.UTC)
			if err != nil {
				return err
			}
			return a.explanation(explanation)
		}),
	}
}

// hasClock matches a time of day.
var hasClock = regexp.MustCompile(`\b[0-9]{2}:[0-9]{2}\b`)

// whyView is an explanation with its actions as command lines.
type whyView struct {
	explain.Explanation
	Zone     string        `json:"zone"` // of the clocks in the sentences
	Commands []commandView `json:"commands,omitempty"`
}

// commandView is an action that the reader may take.
type commandView struct {
	To  string `json:"to"` // in words: start a worker
	Run string `json:"run"`
}

// explanation prints an explanation.
func (a *app) explanation(e explain.Explanation) error {
	v := whyView{Explanation: e, Zone: time.UTC.String()}
	for _, action := range e.Actions {
		v.Commands = append(v.Commands, commandView{To: action.To, Run: commandLine(action)})
	}
	if !a.text() {
		return a.value(v)
	}
	for _, sentence := range e.Sentences {
		a.paragraph(sentence)
	}
	if slices.ContainsFunc(e.Sentences, hasClock.MatchString) {
		a.printf("Times are in %s.\n", v.Zone)
	}
	if len(v.Commands) == 0 {
		return nil
	}
	a.printf("\n")
	var rows []string
	for _, c := range v.Commands {
		rows = append(rows, "to "+c.To, c.Run)
	}
	a.commands(rows...)
	return nil
}

func newTree(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "tree TICKET",
		Aliases: []string{"family"},
		Short:   "Draw the chain or tree of handoffs that one belongs to",
		Long: `Tree draws all handoffs that belong together with one, from the first of them on: those
that follow from it, the members of groups, returns, redrives. The one you asked for is
marked. Each line has its ticket, its relation to the one above it, from whom to whom it
goes, its state, how long it took or has taken, and its task. "handed on" is a link of a
chain, by goto, and "(end)" its last one: "(open end)" while that is open.

It is read from the ledger. Handoffs that merely name one of these as their parent are
found through the index (handoff index; handoff dev has one); if none answers, a remark
warns that they may be missing. It shows at most 1,001: the largest group, and all of
its members.

Exit codes: 0 the handoff exists; 3 no such ticket.`,
		Example: `  handoff tree 5f0c…
  handoff tree 5f0c… -o json | jq -r '.. | .ticket? // empty'`,
		Args: takes("a TICKET"),
		RunE: a.onTicket(func(ctx context.Context, s *source, ticket string) error {
			v, err := dossier.TreeOf(ctx, s.session, ticket)
			return printed(a, v, err, a.tree)
		}),
	}
}

// depthDrawn is how deep a tree is drawn with branches; lines below that carry their depth.
const depthDrawn = 12

// tree draws a family.
func (a *app) tree(v dossier.Tree) error {
	d := &drawing{asked: v.Ticket}
	d.rows = [][]string{{"HANDOFF", "HOW", "FROM -> TO", "PHASE", "TOOK", "TASK"}}
	d.draw(v.Root, "", "", 0)
	if err := a.table(d.rows); err != nil {
		return err
	}
	if v.Handoffs > 1 {
		a.printf("%s, * is the one you asked for\n", explain.Count(v.Handoffs, "handoff"))
	}
	a.remarks(v.Notes, v.Actions)
	return nil
}

// remarks prints the gaps of a view, and the commands that would fill them.
func (a *app) remarks(notes []string, actions []explain.Action) {
	for _, note := range notes {
		a.notef("handoff: %s\n", note)
	}
	for _, action := range actions {
		a.notef("handoff: to %s: %s\n", action.To, commandLine(action))
	}
}

type drawing struct {
	asked string
	rows  [][]string
}

// draw adds the line of a handoff, and below it those of its children. branch is the prefix of its
// ticket, trunk the prefix of theirs.
func (d *drawing) draw(n *dossier.Node, branch, trunk string, depth int) {
	ticket := n.Ticket
	if n.Ticket == d.asked {
		ticket += " *"
	}
	phase, took, who := string(n.Phase), "", n.From()+" -> "+n.Agent
	switch {
	case n.Phase == "":
		phase, who = "about to be submitted", ""
	case n.Closed:
		phase = explain.ClosedPhase(n.Phase, n.Outcome)
		took = explain.Millis(n.TookMS)
	case !n.StartAt.IsZero():
		phase = "start at " + explain.Instant(n.StartAt)
	default:
		took = explain.Millis(n.TookMS)
	}
	d.rows = append(d.rows, []string{branch + ticket, howWords(n), who, phase, took, n.Description})
	for i, child := range n.Children {
		fork, under := "├─ ", "│  "
		if i == len(n.Children)-1 {
			fork, under = "└─ ", "   "
		}
		if depth+1 > depthDrawn {
			d.draw(child, strings.Repeat("   ", depthDrawn)+fmt.Sprintf("%d: ", depth+1), "", depth+1)
			continue
		}
		d.draw(child, trunk+fork, trunk+under, depth+1)
	}
}

// howWords names the relation of a handoff to the one above it.
func howWords(n *dossier.Node) string {
	switch n.Relation {
	case dossier.Root:
		if n.Type == protocol.Sequential {
			return "submitted"
		}
		return string(n.Type)
	case dossier.Member:
		return fmt.Sprintf("member %d", n.N)
	case dossier.HandedOff:
		if n.Type != "" && n.Type != protocol.Sequential {
			return string(n.Type)
		}
		return "handed off"
	case dossier.HandedOn:
		words := "handed on"
		if n.Type != "" && n.Type != protocol.Sequential {
			words += ", " + string(n.Type)
		}
		switch {
		case n.ChainEnd && n.Closed:
			words += " (end)"
		case n.ChainEnd:
			words += " (open end)"
		}
		return words
	}
	return string(n.Relation)
}

// valueWithMembers prints a state for programs, with the members of a group, or the chain.
func (a *app) valueWithMembers(ctx context.Context, from *source, s protocol.State) error {
	// Also where a wait has just run out, or Ctrl-C ended it.
	ctx, cancel := a.asking(context.WithoutCancel(ctx))
	defer cancel()
	v, err := a.viewOf(ctx, from, s)
	if err != nil {
		return err
	}
	return a.value(v)
}

func (a *app) viewOf(ctx context.Context, from *source, s protocol.State) (dossier.StateView, error) {
	v, err := dossier.StateWithMembers(ctx, from.session, s)
	if err == nil {
		v.HandedOn, err = dossier.ChainOf(ctx, from, s)
	}
	return v, err
}

// membersShown is how many members people are shown; programs get all.
const membersShown = 20

func (a *app) memberTable(views []dossier.MemberState) error {
	if len(views) == 0 {
		return nil
	}
	if err := a.table(rowsOf("#|MEMBER|AGENT|PHASE", views[:min(len(views), membersShown)], func(v dossier.MemberState) []any {
		phase := string(v.Phase)
		switch {
		case v.Closed:
			phase = explain.ClosedPhase(v.Phase, v.Outcome)
		case v.Phase == "":
			phase = "about to be submitted"
		}
		return []any{v.N, v.Ticket, v.Agent, phase}
	})); err != nil {
		return err
	}
	if more := len(views) - membersShown; more > 0 {
		a.printf("and %d more: handoff status -o json lists all\n", more)
	}
	return nil
}
