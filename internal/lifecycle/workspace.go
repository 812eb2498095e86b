package lifecycle

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// The state of a workspace is computed from its events like that of a handoff: ApplyWorkspace
// defines the legal events, decideWorkspace the events that follow by themselves, and StepWorkspace
// combines both in an append. So no stored state has a request that could be granted.

// WorkspaceStep is one append of a workspace, and the state after it.
type WorkspaceStep struct {
	Events []p.WorkspaceEvent
	State  p.Workspace
}

// StepWorkspace applies events to a workspace, followed by the decisions at now. It may return no
// events.
func StepWorkspace(w p.Workspace, now time.Time, events ...p.WorkspaceEvent) (WorkspaceStep, error) {
	step := WorkspaceStep{State: w}
	for _, e := range events {
		if err := step.add(e); err != nil {
			return WorkspaceStep{State: w}, err
		}
	}
	for _, e := range decideWorkspace(step.State, now) {
		if err := step.add(e); err != nil {
			return WorkspaceStep{State: w}, err
		}
	}
	return step, nil
}

func (s *WorkspaceStep) add(e p.WorkspaceEvent) (err error) {
	s.Events = append(s.Events, e)
	s.State, err = ApplyWorkspace(s.State, e)
	return err
}

// ApplyWorkspace returns the workspace after an event. It returns ErrStale if the event has already
// happened, and ErrIllegal if it cannot happen.
func ApplyWorkspace(w p.Workspace, e p.WorkspaceEvent) (p.Workspace, error) {
	apply, known := workspaceRules[e.Type]
	if !known {
		return w, fmt.Errorf("%w: %q of a workspace", ErrIllegal, e.Type)
	}
	if (w.Name == "") != (e.Type == p.WorkspaceOpened) {
		return w, fmt.Errorf("%w: %s of the workspace %q", ErrIllegal, e.Type, w.Name)
	}
	after := w
	if err := apply(&after, e); err != nil {
		return w, fmt.Errorf("%s in the workspace %q: %w", e.Type, w.Name, err)
	}
	if e.At.After(after.UpdatedAt) {
		after.UpdatedAt = e.At
	}
	return after, nil
}

// workspaceRules define the effect of each event. They never change a slice or a map of the
// previous state.
var workspaceRules = map[p.WorkspaceEventType]func(*p.Workspace, p.WorkspaceEvent) error{
	p.WorkspaceOpened:   applyWorkspaceOpened,
	p.WorkspaceLimited:  applyWorkspaceLimited,
	p.WorkspaceClosed:   applyWorkspaceClosed,
	p.WorkspaceReserved: applyReserved,
	p.WorkspaceDrawn:    applyDrawn,
	p.WorkspaceReturned: applyPlaceReturned,
	p.WorkspaceSettled:  applySettled,
	p.WorkspaceLocked:   applyLocked,
	p.WorkspaceQueued:   applyQueued,
	p.WorkspaceGranted:  applyGranted,
	p.WorkspaceUnlocked: applyUnlocked,
	p.WorkspaceExpired:  applyWaitExpired,
	p.WorkspaceSet:      applyVariables,
	p.WorkspaceResolved: applyVariables,
}

func applyWorkspaceOpened(w *p.Workspace, e p.WorkspaceEvent) error {
	if e.Name == "" {
		return fmt.Errorf("%w: it has no name", ErrIllegal)
	}
	w.Name, w.OpenedAt = e.Name, e.At
	return applyWorkspaceLimited(w, e)
}

func applyWorkspaceLimited(w *p.Workspace, e p.WorkspaceEvent) error {
	if e.Limits != nil {
		w.Limits = *e.Limits
	}
	return nil
}

func applyWorkspaceClosed(w *p.Workspace, e p.WorkspaceEvent) error {
	if !w.ClosedAt.IsZero() {
		return ErrStale
	}
	w.ClosedAt = e.At
	return nil
}

// applyReserved reserves a place for a child that an attempt is about to hand off. A later attempt
// takes over the place of an earlier one for the same child.
func applyReserved(w *p.Workspace, e p.WorkspaceEvent) error {
	if e.For == "" || e.Child == "" || e.Fence == 0 {
		return fmt.Errorf("%w: a place kept for %q under the fence %d", ErrIllegal, e.For, e.Fence)
	}
	place := p.Draw{Ticket: e.Ticket, For: e.For, Child: e.Child, Fence: e.Fence}
	if kept, is := w.Draw(e.Ticket); is && (kept.Fence == 0 || kept.Fence >= e.Fence) {
		return ErrStale
	}
	return setPlace(w, place)
}

// setPlace gives a handoff a place instead of the one that it has, or a free one.
func setPlace(w *p.Workspace, place p.Draw) error {
	if i := slices.IndexFunc(w.Draws, func(d p.Draw) bool { return d.Ticket == place.Ticket }); i >= 0 {
		w.Draws = slices.Clone(w.Draws)
		w.Draws[i] = place
		return nil
	}
	if err := roomFor(*w, 1); err != nil {
		return fmt.Errorf("%w: %w", ErrIllegal, err)
	}
	w.Draws = append(slices.Clip(w.Draws), place)
	w.Drawn++
	return nil
}

// applyDrawn gives a handoff its place: the reserved one, or a free one.
func applyDrawn(w *p.Workspace, e p.WorkspaceEvent) error {
	if kept, is := w.Draw(e.Ticket); is && kept.Fence == 0 {
		return ErrStale
	}
	if err := setPlace(w, p.Draw{Ticket: e.Ticket, Above: e.Above}); err != nil {
		return err
	}
	w.Log = appendLast(w.Log, p.Joined{Ticket: e.Ticket, From: e.From, To: e.To, At: e.At}, p.WorkspaceLogMax)
	return nil
}

// applyPlaceReturned ends the place of a handoff that never existed or never began: it does not
// count.
func applyPlaceReturned(w *p.Workspace, e p.WorkspaceEvent) error {
	if err := applySettled(w, e); err != nil {
		return err
	}
	w.Drawn--
	return nil
}

// applySettled ends the place of a handoff, with its locks and its request. The handoffs below it
// become children of the one above it.
func applySettled(w *p.Workspace, e p.WorkspaceEvent) error {
	gone, drawn := w.Draw(e.Ticket)
	if !drawn {
		return ErrStale
	}
	draws := make([]p.Draw, 0, len(w.Draws)-1)
	for _, d := range w.Draws {
		if d.Ticket == e.Ticket {
			continue
		}
		if d.Above == e.Ticket {
			d.Above = gone.Above
		}
		draws = append(draws, d)
	}
	w.Draws = draws
	w.Locks = without(w.Locks, func(l p.Lock) bool { return l.Ticket == e.Ticket })
	w.Waiting = without(w.Waiting, func(l p.LockWait) bool { return l.Ticket == e.Ticket })
	return nil
}

func applyLocked(w *p.Workspace, e p.WorkspaceEvent) error {
	if _, drawn := w.Draw(e.Ticket); !drawn || len(e.Locks) == 0 {
		return fmt.Errorf("%w: %s has no place in it", ErrIllegal, e.Ticket)
	}
	if b := blockers(*w, e.Ticket, e.Locks, w.Waiting); len(b) > 0 {
		return fmt.Errorf("%w: %s has it", ErrIllegal, b[0].Ticket)
	}
	return grant(w, p.LockWait{Ticket: e.Ticket, Locks: e.Locks, Fence: e.Fence, By: e.By}, e.At)
}

// grant gives a handoff its locks. They replace its earlier locks on the same paths.
func grant(w *p.Workspace, to p.LockWait, at p.Time) error {
	locks := without(w.Locks, func(l p.Lock) bool {
		return l.Ticket == to.Ticket && slices.ContainsFunc(to.Locks, func(n p.LockPath) bool { return n.Path == l.Path })
	})
	if len(locks)+len(to.Locks) > p.WorkspaceLocksMax {
		return fmt.Errorf("%w: it has %d locks", ErrIllegal, len(w.Locks))
	}
	w.Grants++
	for _, l := range to.Locks {
		fence := to.Fence
		for _, had := range w.Locks { // declared locks stay declared
			if had.Ticket == to.Ticket && had.Path == l.Path && had.Fence == 0 {
				fence = 0
			}
		}
		locks = append(locks, p.Lock{LockPath: l, Ticket: to.Ticket, Fence: fence, By: to.By, Seq: w.Grants, At: at})
	}
	w.Locks = locks
	return nil
}

func applyQueued(w *p.Workspace, e p.WorkspaceEvent) error {
	_, drawn := w.Draw(e.Ticket)
	switch {
	case !drawn || len(e.Locks) == 0:
		return fmt.Errorf("%w: %s has no place in it", ErrIllegal, e.Ticket)
	case w.WaitOf(e.Ticket) != nil:
		return ErrStale
	case len(w.Waiting) >= p.WorkspaceLocksMax:
		return fmt.Errorf("%w: %d wait", ErrIllegal, len(w.Waiting))
	}
	w.Waiting = append(slices.Clip(w.Waiting), p.LockWait{Ticket: e.Ticket, Locks: e.Locks, Fence: e.Fence, By: e.By, Since: e.At, Until: e.Until})
	return nil
}

func applyGranted(w *p.Workspace, e p.WorkspaceEvent) error {
	for i, wait := range w.Waiting {
		if wait.Ticket != e.Ticket {
			continue
		}
		if b := blockers(*w, wait.Ticket, wait.Locks, w.Waiting[:i]); len(b) > 0 {
			return fmt.Errorf("%w: %s is before %s", ErrIllegal, b[0].Ticket, e.Ticket)
		}
		w.Waiting = slices.Delete(slices.Clone(w.Waiting), i, i+1)
		return grant(w, wait, e.At)
	}
	return ErrStale
}

// applyUnlocked removes locks that an attempt requested during the work. Without named locks it
// removes all of them, and the pending request.
func applyUnlocked(w *p.Workspace, e p.WorkspaceEvent) error {
	gone := func(l p.Lock) bool {
		return l.Ticket == e.Ticket && l.Fence == e.Fence && l.Fence != 0 &&
			(len(e.Locks) == 0 || slices.ContainsFunc(e.Locks, func(n p.LockPath) bool { return n.Path == l.Path }))
	}
	waits := func(l p.LockWait) bool {
		return l.Ticket == e.Ticket && l.Fence == e.Fence && l.Fence != 0 && len(e.Locks) == 0
	}
	if !slices.ContainsFunc(w.Locks, gone) && !slices.ContainsFunc(w.Waiting, waits) {
		return ErrStale
	}
	w.Locks, w.Waiting = without(w.Locks, gone), without(w.Waiting, waits)
	return nil
}

func applyWaitExpired(w *p.Workspace, e p.WorkspaceEvent) error {
	if w.WaitOf(e.Ticket) == nil {
		return ErrStale
	}
	w.Waiting = without(w.Waiting, func(l p.LockWait) bool { return l.Ticket == e.Ticket })
	return nil
}

func applyVariables(w *p.Workspace, e p.WorkspaceEvent) error {
	if len(e.Values) == 0 {
		return fmt.Errorf("%w: no variable is named", ErrIllegal)
	}
	variables := maps.Clone(w.Variables)
	if variables == nil {
		variables = map[string]p.Variable{}
	}
	for name, value := range e.Values {
		variables[name] = p.Variable{Value: value, Version: variables[name].Version + 1, By: e.By, Ticket: e.Ticket, At: e.At}
	}
	if len(variables) > p.VariablesMax {
		return fmt.Errorf("%w: %d variables", ErrIllegal, len(variables))
	}
	w.Variables = variables
	return nil
}

// without returns the remaining elements in a new list, or nil if none remain.
func without[T any](list []T, gone func(T) bool) []T {
	var left []T
	for _, x := range list {
		if !gone(x) {
			left = append(left, x)
		}
	}
	return left
}

// decideWorkspace returns the events that follow in a workspace by themselves: requests end when
// their time is up, and free locks are granted in the order of the requests.
func decideWorkspace(w p.Workspace, now time.Time) (events []p.WorkspaceEvent) {
	follow := func(kind p.WorkspaceEventType, ticket string) bool {
		e := p.WorkspaceEvent{Type: kind, At: now, By: By, Ticket: ticket}
		after, err := ApplyWorkspace(w, e)
		if err != nil { // it has the maximum number of locks
			return false
		}
		w, events = after, append(events, e)
		return true
	}
	for _, wait := range w.Waiting {
		if !wait.Until.IsZero() && !wait.Until.After(now) {
			follow(p.WorkspaceExpired, wait.Ticket)
		}
	}
	for i := 0; i < len(w.Waiting); {
		if next := w.Waiting[i]; len(blockers(w, next.Ticket, next.Locks, w.Waiting[:i])) > 0 || !follow(p.WorkspaceGranted, next.Ticket) {
			i++
		} else { // it blocks none before it that it did not already block
			i = 0
		}
	}
	return events
}

// Blocker is a handoff that has a lock, or requested it before another.
type Blocker struct {
	Ticket string
	Path   string // that it has or waits for
	Waits  bool
}

// Blockers returns the handoffs that a handoff waits for in a workspace: the holders of the locks
// that it requests, and earlier requesters. It is empty for a handoff that does not wait.
func Blockers(w p.Workspace, ticket string) []Blocker {
	for i, wait := range w.Waiting {
		if wait.Ticket == ticket {
			return blockers(w, ticket, wait.Locks, w.Waiting[:i])
		}
	}
	return nil
}

// blockers returns the handoffs that block a request. It excludes the handoff itself and those
// above it, and earlier requests that wait for one of these.
func blockers(w p.Workspace, ticket string, locks []p.LockPath, ahead []p.LockWait) (list []Blocker) {
	above := lineageIn(w, ticket)
	for _, held := range w.Locks {
		if !above[held.Ticket] && excludesAny(held.LockPath, locks) {
			list = append(list, Blocker{Ticket: held.Ticket, Path: held.Path})
		}
	}
	for _, wait := range ahead {
		if above[wait.Ticket] || waitsForOneOf(w, wait, above) {
			continue
		}
		for _, l := range wait.Locks {
			if excludesAny(l, locks) {
				list = append(list, Blocker{Ticket: wait.Ticket, Path: l.Path, Waits: true})
				break
			}
		}
	}
	return list
}

// lineageIn returns a handoff and those above it.
func lineageIn(w p.Workspace, ticket string) map[string]bool {
	above := map[string]bool{}
	for ticket != "" && !above[ticket] {
		above[ticket] = true
		d, _ := w.Draw(ticket)
		ticket = d.Above
	}
	return above
}

func excludesAny(l p.LockPath, locks []p.LockPath) bool {
	return slices.ContainsFunc(locks, l.Excludes)
}

// waitsForOneOf reports whether a request waits for a lock of one of these handoffs.
func waitsForOneOf(w p.Workspace, wait p.LockWait, handoffs map[string]bool) bool {
	above := lineageIn(w, wait.Ticket)
	return slices.ContainsFunc(w.Locks, func(l p.Lock) bool {
		return handoffs[l.Ticket] && !above[l.Ticket] && excludesAny(l.LockPath, wait.Locks)
	})
}

// cycleThrough returns, in order, the handoffs through which a handoff waits for itself, if it waits
// for those in its way.
func cycleThrough(w p.Workspace, ticket string, inWay []Blocker) []string {
	seen := map[string]bool{}
	var follow func(list []Blocker, path []string) []string
	follow = func(list []Blocker, path []string) []string {
		for _, b := range list {
			if b.Ticket == ticket {
				return path
			}
			if seen[b.Ticket] {
				continue
			}
			seen[b.Ticket] = true
			if found := follow(Blockers(w, b.Ticket), append(slices.Clip(path), b.Ticket)); found != nil {
				return found
			}
		}
		return nil
	}
	return follow(inWay, nil)
}

// workspaceSize returns the size of the stored state in bytes.
func workspaceSize(w p.Workspace) int {
	body, err := json.Marshal(w)
	if err != nil {
		return p.WorkspaceBytesMax + 1
	}
	return len(body)
}

// A handoff with a workspace gets its place before its first offer: it is submitted behind a gate,
// which opens once the workspace has the place and the locks that the package declares. Escalations
// and returns need no place.

// joins reports whether a handoff needs a place in its workspace.
func joins(s *p.Summary) bool {
	return s.Workspace != "" && s.Aggregate == nil && s.Type != p.Escalation && s.ReturnOf == ""
}

// joinTerms adds the workspace to the conditions of the first offer of a handoff.
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

// lockWaitEnd returns when a handoff stops waiting for its declared locks; zero if it declares
// none.
func lockWaitEnd(s *p.Summary, begun time.Time) time.Time {
	if s.Locks == nil {
		return time.Time{}
	}
	return begun.Add(s.Locks.Wait())
}

// LockWaitLeft returns how much longer a handoff behind the gate of its workspace waits for the
// locks that it declares: until the time in the gate, however late its request is made.
func LockWaitLeft(s p.State, now time.Time) time.Duration {
	if s.Gate.First() != p.GateWorkspace || s.Gate.Until.IsZero() {
		return s.Locks.Wait()
	}
	return max(0, s.Gate.Until.Sub(now))
}

// LocksNotFree returns the refusal of a handoff whose wait for its declared locks is over.
func LocksNotFree(s p.State) *p.Error {
	return p.Errorf(p.CodeLockBusy, "locks", "%s was not free within %v", s.Locks.Paths[0].Path, s.Locks.Wait())
}

// RejoinWorkspace steps a workspace in which a handoff behind its gate already has its place. It
// requests again the locks for which the handoff stopped waiting while it was with an authority.
func RejoinWorkspace(w p.Workspace, s p.State, now time.Time) (WorkspaceStep, error) {
	left := LockWaitLeft(s, now)
	if s.Locks == nil || left <= 0 || len(w.LocksOf(s.Ticket)) > 0 || w.WaitOf(s.Ticket) != nil {
		return StepWorkspace(w, now)
	}
	return LockPaths(w, LockRequest{Ticket: s.Ticket, By: s.Source, Locks: s.Locks.Paths, Wait: left}, now)
}

// ForeseeLocks returns how a handoff ends if its declared locks are not free in time. It returns
// false if it waits for none. Foresee does not cover this, since only the workspace knows its
// locks.
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

// shareWorkspace gives a handoff the workspace of the one that it follows from. Escalations and
// returns keep it for the hand-offs of their holders.
func shareWorkspace(s *p.Summary, from p.State) { s.Workspace = cmp.Or(s.Workspace, from.Workspace) }

// AwaitsWorkspace reports whether a handoff is gated until it has its place and its locks.
func AwaitsWorkspace(s p.State) bool {
	return !s.Closed && !s.CancelRequested && s.Gate.First() == p.GateWorkspace
}

// LeavesWorkspace reports whether the workspace of a handoff must learn of its end.
func LeavesWorkspace(s p.State) bool { return s.Closed && joins(&s.Summary) }

// NeverBegan reports whether a handoff closed before any agent could have it: its place in the
// workspace does not count.
func NeverBegan(s p.State) bool { return s.Closed && !s.Joined && s.AttemptsTotal == 0 }

// NeedsPlaces reports whether the hand-offs of a handoff of this type have places in a workspace.
func NeedsPlaces(s p.Summary) bool { return s.Type != p.Escalation }
