package lifecycle

import (
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// A directory that has counted says of every agent what it said before, and one
// made from it with a holder more knows of that.
func TestDirectoryThatHasCounted(t *testing.T) {
	d := &Directory{Holders: map[string]protocol.Holder{
		"a1": {ID: "a1", Agent: "a", Slots: 4, Busy: 1},
		"a2": {ID: "a2", Agent: "a", Slots: 2, Busy: 2},
		"a3": {ID: "a3", Agent: "a", Slots: 8, Draining: true},
		"b1": {ID: "b1", Agent: "b", Slots: 1, Polling: true},
	}}
	type counts struct{ live, slots, busy int }
	load := func(agent string) (c counts) {
		c.live, c.slots, c.busy = d.Load(agent)
		return c
	}
	for agent, want := range map[string]counts{"a": {2, 6, 3}, "b": {}, "nobody": {}} {
		d.counted = nil
		before := load(agent)
		d.Count()
		if after := load(agent); before != want || after != want {
			t.Errorf("%s has %v, and counted %v, want %v", agent, before, after, want)
		}
	}
	d = d.With(protocol.Holder{ID: "b2", Agent: "b", Slots: 3})
	if got := load("b"); got != (counts{live: 1, slots: 3}) {
		t.Errorf("with one more b has %v", got)
	}
}
