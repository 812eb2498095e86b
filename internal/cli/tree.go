package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

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
	v, err := dossier.StateWithMembers(ctx, from.reader(), s)
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
