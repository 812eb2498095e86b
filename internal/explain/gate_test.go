package explain

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// TestForeseesTheEndOfALockWait: what waits for its locks ends with that wait, and not with its
// deadline.
func TestForeseesTheEndOfALockWait(t *testing.T) {
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	s := protocol.State{Ticket: "t", Phase: protocol.AwaitingApproval, SubmittedAt: at, UpdatedAt: at,
		Summary: protocol.Summary{Source: "lead", Deadline: at.Add(time.Hour), Workspace: "w", Locks: &protocol.Locks{Paths: []protocol.LockPath{{Path: "a"}}}},
		Gate: &protocol.Gate{Since: at, GateTerms: protocol.GateTerms{Waits: []protocol.GateKind{protocol.GateWorkspace}, Agent: "coder",
			Offer: lifecycle.OfferSubmitted, Until: at.Add(5 * time.Minute)}}}
	x := &explainer{Situation: Situation{State: s, Directory: &lifecycle.Directory{}, Now: at.Add(time.Minute), Zone: time.UTC}}
	next := x.foresee()
	if next == nil || !next.At.Equal(s.Gate.Until) || next.Event != protocol.EventClosed || next.Overdue || !strings.Contains(next.because, "its locks") {
		t.Errorf("foreseen is %+v", next)
	}
	x.Now = at.Add(10 * time.Minute)
	if next = x.foresee(); next == nil || !next.At.Equal(s.Gate.Until) || !next.Overdue {
		t.Errorf("after its end: %+v", next)
	}
	x.State.Locks = nil
	if next = x.foresee(); next == nil || !next.At.Equal(s.Deadline) {
		t.Errorf("without locks: %+v", next)
	}
}

// TestKeyWords: a handoff that waits for a place reads the use of its key, its position, and the pause.
func TestKeyWords(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	first, own := protocol.NewTicket(), protocol.NewTicket()
	use := protocol.KeyUse{Key: "model:m", Places: map[string]protocol.KeyPlace{protocol.NewTicket(): {Slot: protocol.Slot{Holder: "h", At: now}}},
		Starts: []int64{now.Add(-50 * time.Second).UnixMilli()}, SpanMS: 60_000,
		Waiting: []protocol.KeyWait{{Ticket: first, Rate: 1, PerMS: 60_000}, {Ticket: own, Rate: 1, PerMS: 60_000}}}
	instant := func(at time.Time) string { return "at " + at.Format(time.TimeOnly) }
	want := []string{"model:m allows 1 in 1m: 1 in work, 1 begun in the last 1m, and 1 before it", "The next may begin at 12:00:10"}
	if got := keyWords(use, own, now, instant); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	use.PausedUntil, use.PausedBy = now.Add(time.Minute), first
	want[1] = "model:m is paused, and may begin again at 12:01:00: " + first + " reported that its provider throttles"
	if got := keyWords(use, own, now, instant); !slices.Equal(got, want) {
		t.Errorf("paused: %q, want %q", got, want)
	}
	if got := keyWords(use, protocol.NewTicket(), now, instant); len(got) > 0 {
		t.Errorf("of one that does not wait: %q", got)
	}
}
