package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/protocol"
)

// TestTreeIsDrawn: branches, the mark, tickets that look alike, what is not there
// yet, and depths that no terminal holds.
func TestTreeIsDrawn(t *testing.T) {
	node := func(ticket string, is dossier.Relation, n int, children ...*dossier.Node) *dossier.Node {
		return &dossier.Node{Ticket: ticket + "-0000-4000-8000-000000000000", Relation: is, N: n, Type: protocol.Sequential,
			Source: "a", Agent: "b", Phase: protocol.Working, TookMS: 4_000, Description: "do it", Children: children}
	}
	promised := &dossier.Node{Ticket: "00000004-0000-4000-8000-000000000000", Relation: dossier.Member, N: 2}
	group := node("00000002", dossier.HandedOff, 1, node("00000003", dossier.Member, 1), promised)
	group.Type = protocol.Broadcast
	root := node("00000001", dossier.Root, 0, group, node("00000005", dossier.Return, 0))
	deep := node("00000100", dossier.Root, 0)
	for i := range 20 {
		deep = node(fmt.Sprintf("%08x", i+16), dossier.HandedOff, 1, deep)
	}
	deep.Relation = dossier.Root

	draw := func(root *dossier.Node, asked string, width int) string {
		var out bytes.Buffer
		a := &app{out: &out, err: &out, format: formatText, terminal: true, width: width, hasIndex: func() bool { return true }, env: func(string) string { return "dumb" }}
		if err := a.tree(dossier.Tree{Ticket: asked, Handoffs: 5, Root: root}); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	want := `HANDOFF           HOW        FROM -> TO  PHASE                  TOOK  TASK
00000001          submitted  a -> b      working                  4s  do it
├─ 00000002       broadcast  a -> b      working                  4s  do it
│  ├─ 00000003 *  member 1   a -> b      working                  4s  do it
│  └─ 00000004    member 2               about to be submitted
└─ 00000005       return     a -> b      working                  4s  do it
5 handoffs, * is the one you asked for
`
	if got := draw(root, "00000003-0000-4000-8000-000000000000", 100); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	// Where the tasks have lines of their own, the branches pass in front of them.
	want = `HANDOFF           FROM -> TO  PHASE
00000001          a -> b      working
│ do it
├─ 00000002       a -> b      working
│  │ do it
│  ├─ 00000003 *  a -> b      working
│  │    do it
│  └─ 00000004                about to be submitted
└─ 00000005       a -> b      working
     do it
no room for HOW, TOOK (--wide)
5 handoffs, * is the one you asked for
`
	if got := draw(root, "00000003-0000-4000-8000-000000000000", 52); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := draw(deep, "", 120); !strings.Contains(got, strings.Repeat("   ", depthDrawn)+"20: 00000100") {
		t.Errorf("so deep that it is only counted:\n%s", got)
	}
}
