package page

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/protocol"
)

// TestChain: a family of 200 children, and one of 200 handoffs in a row, are drawn up to 120 boxes, and
// the others counted; a view stays below 60 KB.
func TestChain(t *testing.T) {
	const many = 200
	node := func(n int, is dossier.Relation) *dossier.Node {
		return &dossier.Node{Ticket: fmt.Sprintf("00000000-0000-4000-8000-%012d", n), Relation: is, N: n, Agent: fmt.Sprintf("an-agent-with-a-name-%d", n),
			Source: "lead", Phase: protocol.Working, Description: "a task with a description of more than eighty characters, as agents write it, and more"}
	}
	wide, deep := node(0, dossier.Root), node(0, dossier.Root)
	for last, n := deep, 1; n <= many; n++ {
		wide.Children = append(wide.Children, node(n, dossier.HandedOff))
		next := node(n, dossier.HandedOn)
		last.Children = append(last.Children, next)
		last = next
	}
	p := New(Config{})
	for name, root := range map[string]*dossier.Node{"wide": wide, "deep": deep} {
		tree := dossier.Tree{Ticket: root.Ticket, Root: root}
		c := chainOf(tree, protocol.State{Ticket: root.Ticket, Phase: protocol.Working}, nil)
		if len(c.Boxes) != boxesMax || c.Folded != many+2-boxesMax || len(c.Edges) != boxesMax-1 {
			t.Errorf("%s: %d boxes, %d edges, %d folded", name, len(c.Boxes), len(c.Edges), c.Folded)
		}
		var text bytes.Buffer
		view := &handoffView{State: protocol.State{Ticket: root.Ticket}, Chain: c}
		if err := p.templates["handoff"].Execute(&text, &frame{Caller: "human", Body: view, zone: time.UTC}); err != nil {
			t.Fatal(err)
		}
		if text.Len() > 56<<10 {
			t.Errorf("%s: %d bytes", name, text.Len())
		}
	}
}
