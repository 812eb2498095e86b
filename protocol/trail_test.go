package protocol_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/protocol"
)

// history makes a change of each list of events, a second apart.
func history(all ...[]protocol.Event) []protocol.Change {
	changes := make([]protocol.Change, len(all))
	for i, events := range all {
		changes[i] = protocol.Change{Seq: uint64(i + 1), Record: protocol.Record{Events: events}}
	}
	return changes
}

func at(seconds int) protocol.Meta {
	return protocol.Meta{At: vectorNow.Add(time.Duration(seconds) * time.Second), By: "supervisor"}
}

func TestTrailOf(t *testing.T) {
	type events = []protocol.Event
	changes := history(
		events{&protocol.Submitted{Meta: at(0), Summary: protocol.Summary{Origin: groupTicket}}, &protocol.Offered{Meta: at(0), Agent: "a"}},
		events{&protocol.Rejected{Meta: at(1), Agent: "a", ReasonCode: "capability_mismatch", Reason: "no Go", Alternative: "b"},
			&protocol.Rerouted{Meta: at(1), From: "a", To: "b", Reason: "refused by a"}, &protocol.Offered{Meta: at(1), Agent: "b"}},
		events{&protocol.Conditioned{Meta: at(2), Agent: "b", NeedsContext: []string{"the file", "the branch"}, NeedsPermission: []string{"to deploy"}, Reason: "only then"}},
		events{&protocol.Answered{Meta: protocol.Meta{At: at(3).At, By: "lead"}, Answer: protocol.Answer{By: "lead", Permit: true, Text: "it is main"}}, &protocol.Offered{Meta: at(3), Agent: "b"}},
		events{&protocol.Conditioned{Meta: at(4), Agent: "b", RetryAfterMS: 5, Reason: "later"}, &protocol.Offered{Meta: at(4), Agent: "b"}}, // a deferral
		events{&protocol.Accepted{Meta: at(5), Agent: "b", Holder: "h"}, &protocol.Started{Meta: at(5)}},
		events{&protocol.Progressed{Meta: at(6), Progress: protocol.Progress{Percent: 40, Message: "half"}}},
		events{&protocol.Failed{Meta: at(7), Code: "handler", Message: "no luck"}, &protocol.RetryScheduled{Meta: at(7)}},
		events{&protocol.Offered{Meta: at(8), Agent: "b"}, &protocol.Accepted{Meta: at(8), Agent: "b"}},
		events{&protocol.LeaseLost{Meta: at(9), Holder: "h", Fence: 8}, &protocol.Offered{Meta: at(9), Agent: "b"}},
		events{&protocol.TimedOut{Meta: at(10), Clock: protocol.ClockWork}, &protocol.Escalated{Meta: at(10), Level: 1, From: "b", To: "c", Reason: "no result", Assessment: "either would do"}, &protocol.Offered{Meta: at(10), Agent: "c"}},
		events{&protocol.Answered{Meta: protocol.Meta{At: at(11).At, By: "human"}, Answer: protocol.Answer{Deny: true, DenyReason: "not now"}}},
		events{&protocol.Rerouted{Meta: at(12), From: "c", To: "d", Reason: "I know better", Manual: true}, &protocol.Offered{Meta: at(12), Agent: "d"}},
		events{&protocol.Taken{Meta: at(13), Agent: "human"}, &protocol.Failed{Meta: at(13), Code: "x"}},
		events{&protocol.TimedOut{Meta: at(14), Clock: protocol.ClockDeadline, Agent: "z"}, &protocol.Closed{Meta: at(14)}},
		events{&protocol.Redriven{Meta: at(15), Ticket: groupTicket}}, // what became of it is no part of its way
	)
	on := func(seconds int, e protocol.TrailEntry) protocol.TrailEntry {
		e.At = at(seconds).At
		return e
	}
	want := []protocol.TrailEntry{
		on(0, protocol.TrailEntry{Event: "redriven", Agent: "supervisor", Words: "redrive of " + groupTicket}),
		on(1, protocol.TrailEntry{Event: "rejected", Agent: "a", To: "b", Code: "capability_mismatch", Words: "no Go"}),
		on(1, protocol.TrailEntry{Event: "rerouted", Agent: "a", To: "b", Words: "refused by a"}),
		on(2, protocol.TrailEntry{Event: "conditioned", Agent: "b", Words: "needs context: the file, the branch; needs permission: to deploy; only then"}),
		on(3, protocol.TrailEntry{Event: "answered", Agent: "lead", To: "b", Code: "permitted", Words: "it is main"}),
		on(7, protocol.TrailEntry{Event: "failed", Agent: "b", Code: "handler", Words: "no luck", Progress: &protocol.Progress{Percent: 40, Message: "half"}}),
		on(9, protocol.TrailEntry{Event: "lease_lost", Agent: "b", Code: "lease_lost", Words: "the worker that had it is gone"}),
		on(10, protocol.TrailEntry{Event: "timed_out", Agent: "b", Code: "work"}),
		on(10, protocol.TrailEntry{Event: "escalated", Agent: "b", To: "c", Words: "no result", Assessment: "either would do", Level: 1}),
		on(11, protocol.TrailEntry{Event: "answered", Agent: "human", To: "c", Code: "denied", Words: "not now"}),
		on(12, protocol.TrailEntry{Event: "rerouted", Agent: "c", To: "d", Code: "manual", Words: "I know better"}),
		on(13, protocol.TrailEntry{Event: "failed", Agent: "human", Code: "x"}),
		on(14, protocol.TrailEntry{Event: "timed_out", Agent: "z", Code: "deadline"}),
	}
	got := protocol.TrailOf(changes)
	for i := range max(len(got), len(want)) {
		var g, w protocol.TrailEntry
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if !reflect.DeepEqual(g, w) {
			t.Errorf("%d: %+v\nwant %+v", i, g, w)
		}
	}
	if len(protocol.TrailOf(nil)) != 0 {
		t.Error("a trail of nothing")
	}
}

// TestTrailBounds: the newest entries are kept, and words are cut between characters.
func TestTrailBounds(t *testing.T) {
	long := strings.Repeat("ж", protocol.TrailWordsBytesMax)
	var changes []protocol.Change
	for i := range 5 * protocol.TrailMax {
		changes = append(changes, history([]protocol.Event{&protocol.Escalated{Meta: at(i), Reason: long, Assessment: long, To: fmt.Sprint(i)}})...)
	}
	trail := protocol.TrailOf(changes)
	if len(trail) != protocol.TrailMax || trail[0].To != fmt.Sprint(4*protocol.TrailMax) || trail[len(trail)-1].To != fmt.Sprint(5*protocol.TrailMax-1) {
		t.Fatalf("%d entries, from %s to %s", len(trail), trail[0].To, trail[len(trail)-1].To)
	}
	for _, text := range []string{trail[0].Words, trail[0].Assessment} {
		if len(text) > protocol.TrailWordsBytesMax || len(text) < protocol.TrailWordsBytesMax-4 || !utf8.ValidString(text) || !strings.HasSuffix(text, "…") {
			t.Errorf("%d bytes, ending in %q", len(text), text[len(text)-8:])
		}
	}
	exact := strings.Repeat("x", protocol.TrailWordsBytesMax)
	if got := protocol.TrailOf(history([]protocol.Event{&protocol.Failed{Message: exact}})); got[0].Words != exact {
		t.Error("words at the limit are cut")
	}
}
