package lifecycle

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// A workspace is folded from its events like a handoff: ApplyWorkspace says what is legal,
// DecideWorkspace what follows by itself, and StepWorkspace makes an append of both. So no state
// that is stored has a request in it that could be granted.

// WorkspaceStep is what one append of a workspace adds, and the state after it.
type WorkspaceStep struct {
	Events []p.WorkspaceEvent
	State  p.Workspace
}

// StepWorkspace applies events to a workspace, and what follows from them at now. Without either
// it has no events.
func StepWorkspace(w p.Workspace, now time.Time, events ...p.WorkspaceEvent) (WorkspaceStep, error) {
	step := WorkspaceStep{State: w}
	for _, e := range events {
		if err := step.add(e); err != nil {
			return WorkspaceStep{State: w}, err
		}
	}
	for _, e := range DecideWorkspace(step.State, now) {
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

// ApplyWorkspace returns the workspace after an event. ErrStale is an event that has happened
// already, ErrIllegal one that cannot happen.
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

// workspaceRules say what each event changes. They never change what a slice or a map of the
// state before has.
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

// applyReserved keeps a place for a child that an attempt is about to hand off. A later attempt
// takes over the place that an earlier one kept for the same child.
func applyReserved(w *p.Workspace, e p.WorkspaceEvent) error {
	if e.For == "" || e.Child == "" || e.Fence == 0 {
		return fmt.Errorf("%w: a place kept for %q under the fence %d", ErrIllegal, e.For, e.Fence)
	}
	place := p.Draw{Ticket: e.Ticket, For: e.For, Child: e.Child, Fence: e.Fence}
	if kept, is := w.Draw(e.Ticket); is {
		if kept.Fence == 0 || kept.Fence >= e.Fence {
			return ErrStale
		}
		setPlace(w, place)
		return nil
	}
	if err := roomFor(*w, 1); err != nil {
		return fmt.Errorf("%w: %w", ErrIllegal, err)
	}
	w.Draws = append(slices.Clip(w.Draws), place)
	w.Drawn++
	return nil
}

func setPlace(w *p.Workspace, place p.Draw) {
	w.Draws = slices.Clone(w.Draws)
	for i := range w.Draws {
		if w.Draws[i].Ticket == place.Ticket {
			w.Draws[i] = place
		}
	}
}

// applyDrawn gives a handoff its place: the one that was kept for it, or a free one.
func applyDrawn(w *p.Workspace, e p.WorkspaceEvent) error {
	place := p.Draw{Ticket: e.Ticket, Above: e.Above}
	switch kept, is := w.Draw(e.Ticket); {
	case is && kept.Fence == 0:
		return ErrStale
	case is:
		setPlace(w, place)
	default:
		if err := roomFor(*w, 1); err != nil {
			return fmt.Errorf("%w: %w", ErrIllegal, err)
		}
		w.Draws = append(slices.Clip(w.Draws), place)
		w.Drawn++
	}
	w.Log = append(slices.Clip(w.Log), p.Joined{Ticket: e.Ticket, From: e.From, To: e.To, At: e.At})
	w.Log = w.Log[max(0, len(w.Log)-p.WorkspaceLogMax):]
	return nil
}

// applyPlaceReturned ends the place of a handoff that never came to be, or never began: it does not
// count.
func applyPlaceReturned(w *p.Workspace, e p.WorkspaceEvent) error {
	if err := applySettled(w, e); err != nil {
		return err
	}
	w.Drawn--
	return nil
}

// applySettled ends the place of a handoff, with its locks and what it waits for. Those below it
// are below the one above it from then on.
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

// grant gives a handoff its locks. Those in it that it had already are replaced.
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
		for _, had := range w.Locks { // what the package declares stays declared
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

// applyUnlocked takes locks away that an attempt has asked for in the work, and what it waits for
// where no lock is named.
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

// without returns what is left of a list, which stays as it is; nil where nothing is.
func without[T any](list []T, gone func(T) bool) []T {
	var left []T
	for _, x := range list {
		if !gone(x) {
			left = append(left, x)
		}
	}
	return left
}

// DecideWorkspace returns what follows in a workspace by itself. Requests end whose time is up,
// and locks that are free are granted in the order of asking.
func DecideWorkspace(w p.Workspace, now time.Time) (events []p.WorkspaceEvent) {
	follow := func(kind p.WorkspaceEventType, ticket string) bool {
		e := p.WorkspaceEvent{Type: kind, At: now, By: By, Ticket: ticket}
		after, err := ApplyWorkspace(w, e)
		if err != nil { // it has as many locks as it may
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
		} else { // it is in the way of none before it that it was not in the way of already
			i = 0
		}
	}
	return events
}

// Blocker is a handoff that has a lock, or asked for it before another.
type Blocker struct {
	Ticket string
	Path   string // that it has or waits for
	Waits  bool
}

// Blockers returns what a handoff waits for in a workspace. These are the holders of the locks that
// it asks for, and those that have asked before it. None is a handoff that does not wait.
func Blockers(w p.Workspace, ticket string) []Blocker {
	for i, wait := range w.Waiting {
		if wait.Ticket == ticket {
			return blockers(w, ticket, wait.Locks, w.Waiting[:i])
		}
	}
	return nil
}

// blockers returns the handoffs that are in the way of a request. The handoff itself and those
// above it are not, nor those ahead that wait for one of these.
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

// waitsForOneOf tells whether a request waits for a lock of one of these handoffs.
func waitsForOneOf(w p.Workspace, wait p.LockWait, handoffs map[string]bool) bool {
	above := lineageIn(w, wait.Ticket)
	return slices.ContainsFunc(w.Locks, func(l p.Lock) bool {
		return handoffs[l.Ticket] && !above[l.Ticket] && excludesAny(l.LockPath, wait.Locks)
	})
}

// closesCycle tells whether a handoff that asks for locks would wait for itself, and names those
// that it would wait for, one after another.
func closesCycle(w p.Workspace, ticket string, locks []p.LockPath) (cycle []string) {
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
	return follow(blockers(w, ticket, locks, w.Waiting), nil)
}

// workspaceSize is how large the state is when it is stored.
func workspaceSize(w p.Workspace) int {
	body, err := json.Marshal(w)
	if err != nil {
		return p.WorkspaceBytesMax + 1
	}
	return len(body)
}
