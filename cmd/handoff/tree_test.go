package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/brokertest"
	"github.com/agenthandoff/handoff/index"
	"github.com/agenthandoff/handoff/protocol"
)

// submitTo puts a handoff into the ledger of an engine in memory.
func submitTo(t *testing.T, b *broker.Broker, parent, task string) string {
	t.Helper()
	prepared, err := b.Prepare(t.Context(), protocol.Package{Source: "lead", Target: protocol.Target{Agent: protocol.Human}, Reason: "r",
		Task: protocol.Task{Description: task}, Parent: parent})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Submit(t.Context(), prepared); err != nil {
		t.Fatal(err)
	}
	return prepared.Ticket
}

// TestTreeWithIndex: a handoff that merely names another as its parent belongs to
// the tree where an index knows of it; where none answers a remark says so. Either
// way, from the named one and from the one that names it, it is the same.
func TestTreeWithIndex(t *testing.T) {
	engine := brokertest.NewMemory()
	t.Cleanup(func() { _ = engine.Close() })
	b, err := broker.New(engine, broker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	first := submitTo(t, b, "", "first")
	second := submitTo(t, b, first, "second")
	third := submitTo(t, b, second, "third")

	without, err := treeOf(t.Context(), b, second)
	if err != nil {
		t.Fatal(err)
	}
	if without.Root.Ticket != first || without.Handoffs != 2 || len(without.Notes) != 1 || !strings.HasPrefix(without.Notes[0], "no index answers") {
		t.Errorf("without an index: %d handoffs under %s, %q", without.Handoffs, without.Root.Ticket, without.Notes)
	}

	stop := serve(t, engine, index.VerbFamily, index.FamilyAnswer{Stand: index.Stand{Complete: true}, Handoffs: []index.Row{
		{Ticket: first, Description: "first, as the index has it"}, {Ticket: second, Parent: first}, {Ticket: third, Parent: second},
		{Ticket: protocol.NewTicket(), Parent: second}, // which the ledger does not have
	}})
	defer stop()
	for _, asked := range []string{first, second, third} {
		v, err := treeOf(t.Context(), b, asked)
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		v.Root.walk(func(n *treeNode, depth int) {
			lines = append(lines, fmt.Sprint(depth, " ", n.Relation, " ", n.Description))
		})
		want := []string{"0 root first, as the index has it", "1 follows second", "2 follows third"}
		if !slices.Equal(lines, want) || len(v.Notes) > 0 || v.Handoffs != 3 {
			t.Errorf("from %s: %q, notes %q", asked, lines, v.Notes)
		}
	}

	if _, err := treeOf(t.Context(), b, protocol.NewTicket()); exitFor(err).code != exitNoTicket {
		t.Errorf("an unknown ticket: %v", err)
	}
}

// serve gives every question of a verb the same answer, until it is stopped.
func serve(t *testing.T, engine broker.Engine, verb string, answer any) (stop func()) {
	t.Helper()
	body, err := json.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- engine.Serve(ctx, map[string]broker.Answerer{
			verb: func(context.Context, []byte) ([]byte, error) { return body, nil }})
	}()
	for err := broker.ErrNoAnswer; err != nil; _, err = engine.Ask(t.Context(), verb, nil) {
		if !errors.Is(err, broker.ErrNoAnswer) {
			t.Fatal(err)
		}
		runtime.Gosched()
	}
	return func() { cancel(); <-served }
}

// walk visits a tree from its root.
func (n *treeNode) walk(visit func(n *treeNode, depth int)) {
	var down func(n *treeNode, depth int)
	down = func(n *treeNode, depth int) {
		visit(n, depth)
		for _, child := range n.Children {
			down(child, depth+1)
		}
	}
	down(n, 0)
}

// TestTreeIsDrawn: branches, the mark, tickets that look alike, what is not there
// yet, and depths that no terminal holds.
func TestTreeIsDrawn(t *testing.T) {
	node := func(ticket string, is relation, n int, children ...*treeNode) *treeNode {
		return &treeNode{Ticket: ticket + "-0000-4000-8000-000000000000", Relation: is, N: n, Type: protocol.Sequential,
			Source: "a", Agent: "b", Phase: protocol.Working, TookMS: 4_000, Description: "do it", Children: children}
	}
	promised := &treeNode{Ticket: "00000004-0000-4000-8000-000000000000", Relation: relMember, N: 2}
	group := node("00000002", relHandedOn, 1, node("00000003", relMember, 1), promised)
	group.Type = protocol.Broadcast
	root := node("00000001", relRoot, 0, group, node("00000005", relReturn, 0))
	deep := node("00000100", relRoot, 0)
	for i := range 20 {
		deep = node(fmt.Sprintf("%08x", i+16), relHandedOn, 1, deep)
	}
	deep.Relation = relRoot

	draw := func(root *treeNode, asked string) string {
		var out bytes.Buffer
		a := &app{out: &out, err: &out, format: formatText, env: func(string) string { return "" }}
		if err := a.tree(treeView{Ticket: asked, Handoffs: 5, Root: root}, false); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	want := `HANDOFF           HOW        FROM -> TO  STANDS                 TOOK  TASK
00000001          submitted  a -> b      working                4s    do it
├─ 00000002       broadcast  a -> b      working                4s    do it
│  ├─ 00000003 *  member 1   a -> b      working                4s    do it
│  └─ 00000004    member 2               about to be submitted        
└─ 00000005       return     a -> b      working                4s    do it
5 handoffs, * is the one you asked for
`
	if got := draw(root, "00000003-0000-4000-8000-000000000000"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := draw(node("00000001", relRoot, 0, node("00000001", relReturn, 0)), ""); !strings.Contains(got, "└─ 00000001-0000-4000") {
		t.Errorf("two that begin alike are not told apart:\n%s", got)
	}
	if got := draw(deep, ""); !strings.Contains(got, strings.Repeat("   ", depthDrawn)+"20: 00000100") {
		t.Errorf("so deep that it is only counted:\n%s", got)
	}
}
