package lifecycle

import (
	"errors"
	"testing"

	p "github.com/agenthandoff/handoff/protocol"
)

// TestPlacesAreKept: a place is kept for a child before it is handed off, counts once however often
// it is asked for, and comes back only where the attempt that kept it is over without the hand-off.
func TestPlacesAreKept(t *testing.T) {
	most := 2
	opened, err := OpenWorkspace(p.Workspace{}, "w", p.WorkspaceLimits{MaxHandoffs: &most}, "me", t0)
	if err != nil {
		t.Fatal(err)
	}
	w, child := opened.State, p.ChildTicketN("parent", 0)
	parent := p.State{Ticket: "parent"}
	reserve := func(fence uint64, tickets ...string) error {
		t.Helper()
		parent.Fence = max(parent.Fence, fence)
		step, err := ReservePlaces(w, "w", Reservation{Tickets: tickets, For: "parent", Child: child, Fence: fence, By: "a"}, parent, t0)
		if err == nil {
			err = CheckWorkspace(w, step.State)
		}
		w = step.State
		return err
	}
	returned := func(parent p.State, drawn int) {
		t.Helper()
		step, err := ReturnOrphans(w, parent, t0)
		if err == nil {
			err = CheckWorkspace(w, step.State)
		}
		if w = step.State; err != nil || w.Drawn != drawn {
			t.Fatalf("%d places are counted, want %d: %v", w.Drawn, drawn, err)
		}
	}
	for _, fence := range []uint64{5, 5, 9, 5} { // again, by the next attempt, and by the one before it
		if err := reserve(fence, "child"); err != nil || w.Drawn != 1 {
			t.Fatalf("fence %d: %d places, %v", fence, w.Drawn, err)
		}
	}
	if err := reserve(9, "member 1", "member 2"); !errors.Is(err, &p.Error{Code: p.CodeLimitExceeded}) || w.Drawn != 1 {
		t.Fatalf("two more of one that is free: %d places, %v", w.Drawn, err)
	}
	returned(p.State{Ticket: "parent", Fence: 9}, 1)                                                      // it may hand off yet
	returned(p.State{Ticket: "parent", Closed: true, Children: &p.Children{Made: p.Bits("").With(0)}}, 1) // it has
	returned(p.State{Ticket: "other", Closed: true}, 1)
	step, err := JoinWorkspace(w, "w", Joining{Ticket: "child", From: "a", To: "b", Locks: []p.LockPath{{Path: "x", Mode: p.LockExclusive}}}, t0)
	if d, _ := step.State.Draw("child"); err != nil || d.Fence != 0 || step.State.Drawn != 1 || len(step.State.Locks) != 1 {
		t.Fatalf("the child takes its place: %+v, %v", step.State, err)
	}
	returned(p.State{Ticket: "parent", Fence: 10}, 0) // the attempt is over, and handed nothing off
	if err := reserve(10, "member 1", "member 2"); err != nil || w.Drawn != 2 {
		t.Fatalf("%d places, %v", w.Drawn, err)
	}
	for _, member := range []string{"member 1", "member 2"} {
		settled, err := EndPlace(w, member, false, t0)
		if w = settled.State; err != nil {
			t.Fatal(err)
		}
	}
	if len(w.Draws) != 0 {
		t.Fatalf("%+v", w.Draws)
	}
	parent.Children = &p.Children{Made: p.Bits("").With(0)}
	for _, fence := range []uint64{9, 10} { // a lost attempt, and the one that has handed it off
		if err := reserve(fence, "member 1"); err != nil || w.Drawn != 2 || len(w.Draws) != 0 {
			t.Fatalf("a second place for a child that has closed: %d places, %v", w.Drawn, err)
		}
	}
}
