package dossier

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// submitTo puts a handoff into the ledger of an engine in memory.
func submitTo(t *testing.T, b *broker.Broker, parent, task string) string {
	t.Helper()
	return brokertest.Submit(t, b, protocol.Package{Target: protocol.Target{Agent: protocol.Human}, Parent: parent, Task: protocol.Task{Description: task}}).Ticket
}

// TestTreeWithIndex checks that a handoff that merely names its parent is in the tree if an index
// answers, and that a note says so if none does. The tree is the same from each of its handoffs.
func TestTreeWithIndex(t *testing.T) {
	engine := brokertest.NewMemory()
	t.Cleanup(func() { _ = engine.Close() })
	b := brokertest.Over(t, engine)
	r := api.New(b, api.Config{}).As(api.Local("lead"))
	first := submitTo(t, b, "", "first")
	second := submitTo(t, b, first, "second")
	third := submitTo(t, b, second, "third")

	without, err := TreeOf(t.Context(), r, second)
	if err != nil {
		t.Fatal(err)
	}
	if without.Root.Ticket != first || without.Handoffs != 2 || len(without.Notes) != 1 || !strings.HasPrefix(without.Notes[0], "no index answers") {
		t.Errorf("without an index: %d handoffs under %s, %q", without.Handoffs, without.Root.Ticket, without.Notes)
	}

	stop := brokertest.Serve(t, engine, ask.VerbFamily, ask.FamilyAnswer{Position: ask.Position{Complete: true}, Handoffs: []ask.Row{
		{Ticket: first, Description: "first, as the index has it"}, {Ticket: second, Parent: first}, {Ticket: third, Parent: second},
		{Ticket: protocol.NewTicket(), Parent: second}, // which the ledger does not have
	}})
	defer stop()
	for _, asked := range []string{first, second, third} {
		v, err := TreeOf(t.Context(), r, asked)
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		v.Root.walk(func(n *Node, depth int) {
			lines = append(lines, fmt.Sprint(depth, " ", n.Relation, " ", n.Description))
		})
		want := []string{"0 root first, as the index has it", "1 follows second", "2 follows third"}
		if !slices.Equal(lines, want) || len(v.Notes) > 0 || v.Handoffs != 3 {
			t.Errorf("from %s: %q, notes %q", asked, lines, v.Notes)
		}
	}

	if _, err := TreeOf(t.Context(), r, protocol.NewTicket()); !errors.Is(err, &protocol.Error{Code: protocol.CodeNotFound}) {
		t.Errorf("an unknown ticket: %v", err)
	}
}

// walk visits a tree from its root.
func (n *Node) walk(visit func(n *Node, depth int)) {
	var down func(n *Node, depth int)
	down = func(n *Node, depth int) {
		visit(n, depth)
		for _, child := range n.Children {
			down(child, depth+1)
		}
	}
	down(n, 0)
}
