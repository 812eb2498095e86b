package cli

import (
	"fmt"
	"strings"

	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// depthDrawn is how deep a tree is drawn with branches; below that the lines
// say how deep they are.
const depthDrawn = 12

// tree draws a family.
func (a *app) tree(v dossier.Tree, long bool) error {
	d := &drawing{asked: v.Ticket, short: !long && unlikeAt(v.Root, shortTicket, map[string]bool{})}
	d.rows = [][]string{{"HANDOFF", "HOW", "FROM -> TO", "PHASE", "TOOK", "TASK"}}
	d.draw(v.Root, "", "", 0)
	if err := a.tableFit(d.rows, d.paint); err != nil {
		return err
	}
	if v.Handoffs > 1 {
		a.printf("%s, * is the one you asked for\n", explain.Count(v.Handoffs, "handoff"))
	}
	a.remarks(v.Notes, v.Actions)
	return nil
}

// remarks prints what a view may be missing, and the commands that would find it.
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
	short bool
	rows  [][]string
	nodes []*dossier.Node // of the rows below the heading
}

// paint colours the phase.
func (d *drawing) paint(row, column int) string {
	if row == 0 || d.rows[0][column] != "PHASE" {
		return ""
	}
	n := d.nodes[row-1]
	return phaseColour(n.Phase, n.Outcome, n.Closed, 0)
}

// draw adds the line of a handoff, and below it those that stand under it.
// branch is what stands before its ticket, trunk what stands before theirs.
func (d *drawing) draw(n *dossier.Node, branch, trunk string, depth int) {
	ticket := n.Ticket
	if d.short {
		ticket = ticket[:shortTicket]
	}
	if n.Ticket == d.asked {
		ticket += " *"
	}
	stands, took, who := string(n.Phase), "", n.Source+" -> "+n.Agent
	switch {
	case n.Phase == "":
		stands, who = "about to be submitted", ""
	case n.Closed:
		stands = fmt.Sprintf("%s (%s)", n.Phase, n.Outcome)
		fallthrough
	default:
		took = explain.Millis(n.TookMS)
	}
	d.nodes = append(d.nodes, n)
	d.rows = append(d.rows, []string{branch + ticket, howWords(n), who, stands, took, n.Description})
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

// howWords say what a handoff is to the one above it.
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

// shortTicket is how much of a ticket tells it from the others, as a rule.
const shortTicket = 8

// unlikeAt tells whether no two tickets of a tree begin with the same characters.
func unlikeAt(n *dossier.Node, length int, seen map[string]bool) bool {
	if seen[n.Ticket[:length]] {
		return false
	}
	seen[n.Ticket[:length]] = true
	for _, child := range n.Children {
		if !unlikeAt(child, length, seen) {
			return false
		}
	}
	return true
}
