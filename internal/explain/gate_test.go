package explain

import (
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
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
