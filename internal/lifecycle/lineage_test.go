package lifecycle

import (
	"slices"
	"testing"

	p "github.com/agenthandoff/handoff/protocol"
)

// TestInherit: a refusal holds for what follows while that asks for the same.
func TestInherit(t *testing.T) {
	needs := func(ids ...string) (list []p.RequiredCapability) {
		for _, id := range ids {
			list = append(list, p.RequiredCapability{ID: id})
		}
		return list
	}
	named := p.Summary{Target: p.Target{Agent: "a"}}
	capable := func(id string) p.Summary { return p.Summary{Target: p.Target{Capability: id}} }
	up := func(source string) p.Summary { return p.Summary{Type: p.Escalation, Source: source} }
	for _, c := range []struct {
		name          string
		parent, child p.Summary
		refused       []string
		otherTask     bool
		want          []string
	}{
		{name: "nobody refused", parent: named, child: named},
		{name: "the same target", parent: named, child: named, refused: []string{"a"}, want: []string{"a"}},
		{name: "the same capability", parent: capable("x"), child: capable("x"), refused: []string{"a", "b"}, want: []string{"a", "b"}},
		{name: "one of the same", parent: p.Summary{Requires: needs("x", "y")}, child: p.Summary{Requires: needs("y", "z")}, refused: []string{"a"}, want: []string{"a"}},
		{name: "by name what went to a capability", parent: capable("x"), child: named, refused: []string{"a"}, want: []string{"a"}},
		{name: "another capability", parent: capable("x"), child: capable("y"), refused: []string{"a"}},
		{name: "another task", parent: named, child: named, refused: []string{"a"}, otherTask: true},
		{name: "an escalation visits none twice", parent: up("a"), child: up("b"), refused: []string{"x"}, otherTask: true, want: []string{"x", "a"}},
		{name: "a person may be asked twice", parent: up(p.Human), child: up("b")},
		{name: "work is no way up", parent: up("a"), child: named, otherTask: true},
		{name: "a person may be asked again", parent: named, child: named, refused: []string{"a", p.Human}, want: []string{"a"}},
	} {
		if got := Inherit(p.State{Summary: c.parent, Refused: c.refused}, c.child, !c.otherTask); !slices.Equal(got, c.want) {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
