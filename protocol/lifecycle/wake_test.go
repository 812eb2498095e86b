package lifecycle

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// TestWakeAndNextLook: the clocks of each phase, and the look that comes though
// none of them ran out.
func TestWakeAndNextLook(t *testing.T) {
	in := func(column string, change func(*p.State)) p.State {
		s := stateIn(t, column)
		if change != nil {
			change(&s)
		}
		return s
	}
	cancelled := func(s *p.State) { s.CancelRequested, s.CancelRequestedAt = true, t0.Add(10*sec) }
	day := 24 * time.Hour
	cases := []struct {
		name       string
		state      p.State
		after      time.Duration // when NextLook is asked
		wake, next time.Duration // since t0
	}{
		{"pending: the acknowledge timeout", in("pending", nil), sec, 30 * sec, 30 * sec},
		{"pending: that has passed, and the agent is there", in("pending", nil), 30 * sec, 30 * sec, 90 * sec},
		{"pending: the doubling step", in("pending", nil), time.Hour, 30 * sec, 2 * time.Hour},
		{"pending: never past the deadline", in("pending", nil), 23 * time.Hour, 30 * sec, day},
		{"pending: the queue timeout", in("pending", func(s *p.State) { s.Policy.QueueTimeoutMS = 100_000 }), 50 * sec, 30 * sec, 100 * sec},
		{"pending at a person's", in("pending", func(s *p.State) { s.Agent = p.Human }), sec, day, 61 * sec},
		{"claimed: in two leases", in("claimed", nil), sec, day, 61 * sec},
		{"claimed: never past the deadline", in("claimed", nil), day - sec, day, day},
		{"accepted: the reminder", in("accepted", nil), 47 * time.Minute, sec + 48*time.Minute, 48 * time.Minute},
		{"working: a minute before the reminder", in("working", nil), 47*time.Minute + 30*sec, sec + 48*time.Minute, sec + 48*time.Minute},
		{"working: reminded", in("working", func(s *p.State) { s.RemindedAt = t0.Add(48 * time.Minute) }), 59*time.Minute + 30*sec, time.Hour + sec, time.Hour + sec},
		{"working: no work timeout", in("working", func(s *p.State) { s.Policy.WorkTimeoutMS = 0 }), sec, day, 61 * sec},
		{"asking", in("asking", nil), 59*time.Minute + 30*sec, time.Hour + sec, time.Hour + sec},
		{"deferred", in("deferred", nil), 30 * sec, 61 * sec, 61 * sec},
		{"retrying", in("retrying", nil), 30 * sec, time.Minute, time.Minute},
		{"failed: at once", in("failed", nil), 2 * sec, sec, 62 * sec},
		{"cancelled in the work: the grace", in("working", cancelled), 20 * sec, 40 * sec, 40 * sec},
		{"cancelled in the work, and the deadline comes first", in("working", func(s *p.State) { cancelled(s); s.Deadline = t0.Add(30 * sec) }), 20 * sec, 30 * sec, 30 * sec},
		{"cancelled in the work, and the deadline has passed", in("working", func(s *p.State) { cancelled(s); s.Deadline = t0.Add(15 * sec) }), 20 * sec, 15 * sec, 40 * sec},
	}
	for _, c := range cases {
		if got := Wake(c.state).Sub(t0); got != c.wake {
			t.Errorf("%s: wakes after %s, want %s", c.name, got, c.wake)
		}
		if got := NextLook(c.state, t0.Add(c.after)).Sub(t0); got != c.next {
			t.Errorf("%s: next look after %s, want %s", c.name, got, c.next)
		}
	}
	for _, s := range []p.State{{}, closedIn(t, "complete"), closedIn(t, "failed")} {
		if !Wake(s).IsZero() || DutiesOf(s) != (Duties{}) {
			t.Errorf("%s: wakes at %s, duties %+v", s.Phase, Wake(s), DutiesOf(s))
		}
	}
}

// TestLongWaitWakesSeldom: a handoff that waits a month wakes some twenty times.
func TestLongWaitWakesSeldom(t *testing.T) {
	l := submit(t, fleet(agent("a")).live("a", "w1", 4), func(s *p.Summary) { s.Deadline = t0.Add(30 * 24 * time.Hour) })
	looks := 0
	for now := t0; now.Before(l.state.Deadline); now = NextLook(l.state, now) {
		looks++
	}
	if looks > 20 {
		t.Errorf("%d looks in 30 days", looks)
	}
}

// TestLargestState: with every text and list at its longest, in the characters
// that are dearest in JSON, a state stays within what an append may carry.
func TestLargestState(t *testing.T) {
	dear := strings.Repeat("\x01\u2028\"\xff", 50_000)
	id := func(prefix string, n int) string {
		return prefix + strings.Repeat("x", p.IDBytesMax-len(prefix)-3) + string(rune('a'+n/26)) + string(rune('a'+n%26)) + "z"
	}
	l := submit(t, fleet(agent("a", "c0")), func(s *p.Summary) {
		for i := range p.RequiredCapabilitiesMax - 1 {
			s.Requires = append(s.Requires, p.RequiredCapability{ID: id("c", i), MinProficiency: 0.123456789})
		}
		s.Requires = append(s.Requires, p.RequiredCapability{ID: "c0"})
		s.Parent, s.WorkflowID, s.ConversationID, s.TaskID = ticket, id("w", 0), id("v", 0), id("t", 0)
	})
	needs := make([]string, 100)
	for i := range needs {
		needs[i] = dear
	}
	now := t0
	for i := range p.ReroutesMax + p.EscalationsMax {
		now = now.Add(sec)
		l.add(&p.Rejected{Meta: p.Meta{At: now}, Offer: l.state.Offer, Agent: l.state.Agent, ReasonCode: dear, Reason: dear, Alternative: dear})
		l.add(&p.Rerouted{Meta: p.Meta{At: now}, From: l.state.Agent, To: id("a", i)}, &p.Offered{Meta: p.Meta{At: now}, Agent: id("a", i)})
	}
	l.add(&p.Stuck{Meta: p.Meta{At: now}, Reason: dear})
	l.add(&p.Conditioned{Meta: p.Meta{At: now}, Offer: l.state.Offer, NeedsContext: needs, NeedsPermission: needs, Reason: dear})
	asking := l.state
	l.add(&p.Answered{Meta: p.Meta{At: now}, Offer: l.state.Offer}, &p.Offered{Meta: p.Meta{At: now}, Agent: l.state.Agent})
	l.accept("w1", time.Minute)
	details, _ := json.Marshal(strings.Repeat("x", MessageBytesMax-2))
	l.add(&p.Stuck{Meta: p.Meta{At: now}, Reason: dear})
	l.add(&p.Progressed{Meta: p.Meta{At: now}, Fence: l.state.Fence, Progress: p.Progress{Message: dear, Details: details}})
	l.add(&p.LeaseLost{Meta: p.Meta{At: now}, Holder: "w1", Fence: l.state.Fence}) // the progress stays
	l.add(&p.Conditioned{Meta: p.Meta{At: now}, Offer: l.state.Offer, NeedsContext: needs, NeedsPermission: needs, Reason: dear})
	for name, s := range map[string]p.State{"asking": asking, "asking, with the progress of an attempt before": l.state} {
		if _, err := p.EncodeRecord(p.Record{ID: "id", State: s}); err != nil || len(asJSON(t, s)) > p.StateBytesMax {
			t.Errorf("%s: %d bytes, %v", name, len(asJSON(t, s)), err)
		} else {
			t.Logf("%s: %d of %d bytes", name, len(asJSON(t, s)), p.StateBytesMax)
		}
	}
}
