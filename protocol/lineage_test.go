package protocol_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// TestRings: of identical hand-offs in a ring of any length, whatever led to it, none is made in a
// fourth round; and none that is not identical is taken for one.
func TestRings(t *testing.T) {
	for length := 1; length <= 80; length++ {
		for _, visits := range []int{1, 2} { // how often a ring passes its first edge, with other reasons
			if length < 2*visits {
				visits = 1
			}
			for lead := 0; lead+3*length < protocol.LineageDepthMax && lead <= 130; lead += 1 + lead/8 {
				var l *protocol.Lineage
				for n := range lead {
					if l = l.Then(hopOf(fmt.Sprint("lead", n), "next", "000000", n)); l.Again != 0 {
						t.Fatalf("a lead of %d: %d is taken for a repetition", lead, n)
					}
				}
				n := 0
				for ; l == nil || l.Again == 0; n++ {
					at := n % length
					from := fmt.Sprint("agent", at)
					if at%(length/visits) == 0 {
						from = "agent0"
					}
					l = l.Then(hopOf(from, "to", "aaaaaa", at))
					if l.Again != 0 && (n < length || l.Again%length != 0) {
						t.Fatalf("a ring of %d after %d: hand-off %d is taken for one %d ago", length, lead, n, l.Again)
					}
					if n >= 3*length {
						t.Fatalf("a ring of %d after %d goes into its fourth round", length, lead)
					}
				}
			}
		}
	}
}

func hopOf(from, to, work string, reason int) protocol.Hop {
	return protocol.NewHop(from, to, fmt.Sprintf("%s%08x", work, reason))
}

// TestHopTimes: the same work counts, whatever else changes and goes between, and is found in a
// lineage that was stored.
func TestHopTimes(t *testing.T) {
	var l *protocol.Lineage
	for n := range 300 {
		l = l.Then(hopOf("a", "b", "aaaaaa", 2*n)).Then(hopOf("b", "a", "bbbbbb", 2*n+1))
		body, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		l = new(protocol.Lineage)
		if err := json.Unmarshal(body, l); err != nil {
			t.Fatal(err)
		}
		if all := l.All(); len(all) != 2 || int(all[1].Times) != min(n+1, 255) || !all[0].Names("a") || all[0].Names("c") {
			t.Fatalf("after %d rounds: %+v", n+1, all)
		}
	}
	if l.Depth != 600 || len(l.Hops) > 40 || len(l.Saved) > 80 {
		t.Errorf("%+v", l)
	}
}

// TestContextHash: what changes the work, what the context of it, and what neither.
func TestContextHash(t *testing.T) {
	pkg := func(change func(*protocol.Package)) string {
		p := protocol.Package{Reason: "r", Task: protocol.Task{Description: "take in the return of 0c1e9a52-6d0c-4c0e-8c8e-3d1e5a2b7f10, please"}}
		p.Context.Previous = &protocol.Previous{Agent: "a", Ticket: protocol.NewTicket(), Body: json.RawMessage(`"draft of 0c1e9a52-6d0c-4c0e-8c8e-3d1e5a2b7f10"`)}
		change(&p)
		return p.ContextHash()
	}
	first := pkg(func(*protocol.Package) {})
	for name, c := range map[string]struct {
		change        func(*protocol.Package)
		work, context bool
	}{
		"the task":       {func(p *protocol.Package) { p.Task.Description += "!" }, true, true},
		"a ticket in it": {func(p *protocol.Package) { p.Task.Description = strings.ReplaceAll(p.Task.Description, "0c1e", "1d2f") }, false, false},
		"a ticket before": {func(p *protocol.Package) {
			p.Context.Previous.Body = json.RawMessage(strings.ReplaceAll(string(p.Context.Previous.Body), "0c1e", "1d2f"))
		}, false, false},
		"the reason":         {func(p *protocol.Package) { p.Reason = "point 1 is missing" }, false, true},
		"the result before":  {func(p *protocol.Package) { p.Context.Previous.Body = json.RawMessage(`"draft 2"`) }, false, true},
		"its summary":        {func(p *protocol.Package) { p.Context.Previous.Summary = "s" }, false, true},
		"no result":          {func(p *protocol.Package) { p.Context.Previous = nil }, false, true},
		"a variable":         {func(p *protocol.Package) { p.Context.Variables = map[string]json.RawMessage{"a": []byte(`1`)} }, true, true},
		"the summary so far": {func(p *protocol.Package) { p.Context.Summary = "s" }, false, false},
		"a message":          {func(p *protocol.Package) { p.Context.ConversationHistory = []protocol.Message{[]byte(`{}`)} }, false, false},
	} {
		got := pkg(c.change)
		if (got[:6] != first[:6]) != c.work || (got[6:] != first[6:]) != c.context || len(got) != 14 {
			t.Errorf("%s: %s, and %s before", name, got, first)
		}
	}
}
