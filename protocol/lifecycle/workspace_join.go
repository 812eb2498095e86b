package lifecycle

import (
	"cmp"
	"slices"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// A handoff with a workspace has its place there before its first offer: it is submitted behind a
// gate, which opens once the workspace has the place and the locks that the package declares. The
// way up is free: an escalation or a return has no place.

// joins tells whether a handoff is one that has a place in its workspace.
func joins(s *p.Summary) bool {
	return s.Workspace != "" && s.Aggregate == nil && s.Type != p.Escalation && s.ReturnOf == ""
}

// joinTerms adds the workspace to what the first offer of a handoff waits for.
func joinTerms(s *p.State, terms *p.GateTerms, now time.Time) *p.GateTerms {
	if s.Workspace == "" || s.Joined || !joins(&s.Summary) {
		return terms
	}
	if terms == nil {
		terms = &p.GateTerms{Until: lockWaitEnd(&s.Summary, now)}
	}
	terms.Waits = append(slices.Clip(terms.Waits), p.GateWorkspace)
	return terms
}

// lockWaitEnd is when a handoff that begins to wait for its declared locks does so no longer; zero
// where it declares none.
func lockWaitEnd(s *p.Summary, begun time.Time) time.Time {
	if s.Locks == nil {
		return time.Time{}
	}
	return begun.Add(s.Locks.Wait())
}

// LockWaitLeft is how much longer a handoff behind the gate of its workspace waits for the locks
// that it declares: until the gate says, however late its request is made.
func LockWaitLeft(s p.State, now time.Time) time.Duration {
	if s.Gate.First() != p.GateWorkspace || s.Gate.Until.IsZero() {
		return s.Locks.Wait()
	}
	return max(0, s.Gate.Until.Sub(now))
}

// LocksNotFree is the refusal of a handoff whose wait for its declared locks is over.
func LocksNotFree(s p.State) *p.Error {
	return p.Errorf(p.CodeLockBusy, "locks", "%s was not free within %v", s.Locks.Paths[0].Path, s.Locks.Wait())
}

// RejoinWorkspace steps a workspace in which a handoff behind its gate has its place. Locks that
// it has stopped waiting for are asked for anew: it was with an authority meanwhile.
func RejoinWorkspace(w p.Workspace, s p.State, now time.Time) (WorkspaceStep, error) {
	left := LockWaitLeft(s, now)
	if s.Locks == nil || left <= 0 || len(w.LocksOf(s.Ticket)) > 0 || w.WaitOf(s.Ticket) != nil {
		return StepWorkspace(w, now)
	}
	return LockPaths(w, LockRequest{Ticket: s.Ticket, By: s.Source, Locks: s.Locks.Paths, Wait: left}, now)
}

// ForeseeLocks returns how a handoff ends whose declared locks are not free in time; false where it
// waits for none. The workspace tells whether they are, so that Foresee does not know of it.
func ForeseeLocks(s p.State, now time.Time) (Foreseen, bool) {
	if !AwaitsWorkspace(s) || s.Locks == nil || s.Gate.Until.IsZero() {
		return Foreseen{}, false
	}
	at := s.Gate.Until
	if at.Before(now) {
		at = now
	}
	step, err := RefuseGate(s, p.GateWorkspace, LocksNotFree(s), at)
	return Foreseen{At: at, Step: step}, err == nil
}

// shareWorkspace gives a handoff the workspace of the one that it follows from. An escalation and a
// return have it for what their holder hands off.
func shareWorkspace(s *p.Summary, from p.State) { s.Workspace = cmp.Or(s.Workspace, from.Workspace) }

// AwaitsWorkspace tells whether a gate keeps a handoff from its offer until it has its place and
// its locks.
func AwaitsWorkspace(s p.State) bool {
	return !s.Closed && !s.CancelRequested && s.Gate.First() == p.GateWorkspace
}

// LeavesWorkspace tells whether the workspace of a handoff has to be told of its end.
func LeavesWorkspace(s p.State) bool { return s.Closed && joins(&s.Summary) }

// NeverBegan reports whether a handoff closed before any agent could have it: its place in the
// workspace does not count.
func NeverBegan(s p.State) bool { return s.Closed && !s.Joined && s.AttemptsTotal == 0 }

// NeedsPlaces reports whether what a handoff of this type hands off has places in a workspace.
func NeedsPlaces(s p.Summary) bool { return s.Type != p.Escalation }
