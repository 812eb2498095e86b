package page

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// chain is the way of a handoff and its family, as it went, to be drawn.
type chain struct {
	Wide, High int
	Boxes      []box
	Edges      []edge
	Words      string // for those who do not see it
	Folded     int    // handoffs that are not drawn
}

// box is an agent that had a handoff.
type box struct {
	X, Y, Wide  int
	Name, Class string
	Glyph       string
	To          string // the ticket of another handoff
	Here        bool
	Title       string
}

// edge leads from a box to another.
type edge struct{ Path, Class, Label, Anchor, Title, X, Y string }

// The drawing of a chain.
const (
	boxHigh, boxGap, rowHigh = 34, 74, 62
	letterWide, boxPad       = 8, 34
	nameMax                  = 18
	boxesMax                 = 120 // so that a view has less than 60 KB
)

// drawing places boxes: each row is a branch.
type drawing struct {
	chain
	rows  int
	words []string
}

// chainOf draws the family of a handoff: the source, the agents that had it in their order, and
// their children.
func chainOf(t dossier.Tree, state protocol.State, changes []protocol.Change) *chain {
	if t.Root == nil {
		return nil
	}
	d := &drawing{rows: 1}
	source := d.box(0, 0, explain.Person(t.Root.From()), mark{Class: "source"}, "", "")
	d.node(source, t.Root, "", t.Ticket, state, changes)
	d.High = d.rows*rowHigh + 8
	d.Words = protocol.CutText(strings.Join(d.words, "; "), 1_000)
	return &d.chain
}

func (d *drawing) box(x, row int, name string, m mark, to, title string) int {
	shown := name
	if runes := []rune(name); len(runes) > nameMax {
		shown = string(runes[:nameMax-1]) + "…"
	}
	b := box{X: x, Y: row*rowHigh + 18, Wide: len([]rune(shown))*letterWide + boxPad, Name: shown, Class: m.Class, Glyph: m.Glyph, To: to, Title: strings.TrimSpace(name + " " + m.Word + " " + title)}
	d.Boxes = append(d.Boxes, b)
	d.Wide = max(d.Wide, b.X+b.Wide+8)
	return len(d.Boxes) - 1
}

// join draws an edge from a box to the next one, to the right or below.
func (d *drawing) join(from, to int, class, label, title string) {
	a, b := d.Boxes[from], d.Boxes[to]
	x1, y1, x2, y2 := a.X+a.Wide, a.Y+boxHigh/2, b.X, b.Y+boxHigh/2
	e := edge{Class: class, Label: label, Title: title, X: fmt.Sprint((x1 + x2) / 2), Y: fmt.Sprint(y2 - 6)}
	if y1 == y2 {
		e.Path = fmt.Sprintf("M%d %dH%d", x1, y1, x2-1)
	} else {
		e.Path = fmt.Sprintf("M%d %dC%d %d %d %d %d %d", x1, y1, x1+boxGap/2, y1, x1+boxGap/4, y2, x2-1, y2)
		e.X, e.Y = fmt.Sprint(x2-boxGap/4), fmt.Sprint(y2+18)
	}
	d.Edges = append(d.Edges, e)
}

// hop is an agent that a handoff had on its way.
type hop struct {
	agent string
	mark  mark
	edge  [3]string // class, label and title of the edge that leads to it
}

// hopsOf lists the agents that had a handoff, and why it went on from one to the next.
func hopsOf(changes []protocol.Change, state protocol.State) []hop {
	var hops []hop
	left := mark{}
	for _, c := range changes {
		next := [3]string{"on", "", ""}
		for _, e := range c.Record.Events {
			o := protocol.OutlineOf(e)
			switch e.EventType() {
			case protocol.EventRejected:
				left, next = mark{"⇄", "refused", "gone"}, [3]string{"refused", "refused", o.Words}
			case protocol.EventEscalated:
				left, next = mark{"▲", "escalated", "gone"}, [3]string{"up", "goes up", o.Words}
			case protocol.EventFailed, protocol.EventLeaseLost, protocol.EventTimedOut:
				left = mark{"✕", "failed", "gone"}
			case protocol.EventRerouted:
				if next[1] == "" {
					next = [3]string{"refused", "rerouted", o.Words}
				}
			case protocol.EventTaken:
				next = [3]string{"on", "taken", ""}
			}
		}
		agent := c.Record.State.Agent
		if agent == "" || len(hops) > 0 && hops[len(hops)-1].agent == agent {
			continue
		}
		if n := len(hops); n > 0 {
			hops[n-1].mark = left
			if left.Glyph == "" {
				hops[n-1].mark = mark{"⇄", "", "gone"}
			}
			if left.Word == "refused" {
				next[0], next[1] = "refused", "refused"
			}
		}
		left = mark{}
		hops = append(hops, hop{agent: agent, edge: next})
	}
	if n := len(hops); n > 0 {
		hops[n-1].mark = markOf(state)
	}
	return hops
}

// node draws a handoff behind a box, and then its children, each in a row of its own.
func (d *drawing) node(from int, n *dossier.Node, label, focus string, state protocol.State, changes []protocol.Change) {
	if len(d.Boxes) >= boxesMax {
		d.Folded++
		for _, child := range n.Children {
			d.node(from, child, "", focus, state, changes)
		}
		return
	}
	row, class := d.Boxes[from].Y/rowHigh, "on"
	if label != "" && label != goesOn {
		row, class = d.rows, "child"
		d.rows++
	}
	last := from
	if n.Ticket == focus {
		for i, h := range hopsOf(changes, state) {
			b := d.Boxes[last]
			at := d.box(b.X+b.Wide+boxGap, row, explain.Person(h.agent), h.mark, "", "")
			if i == 0 {
				h.edge = [3]string{class, label, ""}
			}
			d.join(last, at, h.edge[0], h.edge[1], h.edge[2])
			d.words = append(d.words, strings.TrimSpace(d.Boxes[last].Name+" → "+h.agent+" "+h.edge[1]))
			last = at
		}
		d.Boxes[last].Here = last != from
	}
	if last == from {
		b := d.Boxes[from]
		s := protocol.State{Phase: n.Phase, Closed: n.Closed, Outcome: n.Outcome, Agent: n.Agent}
		at := d.box(b.X+b.Wide+boxGap, row, explain.Person(n.Agent), markOf(s), n.Ticket, n.Description)
		if n.Ticket == focus {
			d.Boxes[at].To, d.Boxes[at].Here = "", true
		}
		d.join(from, at, class, label, "")
		d.words = append(d.words, b.Name+" → "+n.Agent)
		last = at
	}
	for _, child := range n.Children {
		d.node(last, child, cmp.Or(relations[child.Relation], "asks"), focus, state, changes)
	}
}

// relations are the labels of the edges to children; any other one asks.
var relations = map[dossier.Relation]string{dossier.HandedOn: goesOn, dossier.Member: "member", dossier.Return: "return", dossier.Redrive: "again", dossier.Follows: "follows"}

const goesOn = "goes on"
