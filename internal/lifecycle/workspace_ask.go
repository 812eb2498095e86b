package lifecycle

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Requests to a workspace. Each function returns the append, or a *protocol.Error that describes
// the current state, and changes nothing.

// OpenWorkspace creates a workspace, or changes the limits of an existing one.
func OpenWorkspace(w p.Workspace, name string, limits p.WorkspaceLimits, by string, now time.Time) (WorkspaceStep, error) {
	event := p.WorkspaceEvent{Type: p.WorkspaceLimited, At: now, By: by, Limits: &limits}
	switch {
	case w.Name == "":
		event.Type, event.Name = p.WorkspaceOpened, name
	case !w.ClosedAt.IsZero():
		return WorkspaceStep{State: w}, closedWorkspace(w)
	case sameLimits(w.Limits, limits):
		return WorkspaceStep{State: w}, nil
	}
	return askWorkspace(w, now, event)
}

func sameLimits(a, b p.WorkspaceLimits) bool {
	if !slices.Equal(a.Agents, b.Agents) {
		return false
	}
	if a.MaxHandoffs == nil || b.MaxHandoffs == nil {
		return a.MaxHandoffs == b.MaxHandoffs
	}
	return *a.MaxHandoffs == *b.MaxHandoffs
}

// EnterWorkspace lets an agent that a gateway has authenticated name a workspace in a hand-off.
// Knowing the name is not enough. The agent may enter a workspace that lists it; one in which a
// handoff above the new one has a place (within); and one that does not exist, which this call
// opens for the agent.
func EnterWorkspace(w p.Workspace, name, agent string, within bool, now time.Time) (WorkspaceStep, error) {
	same := WorkspaceStep{State: w}
	switch {
	case w.Name == "":
		return askWorkspace(w, now, p.WorkspaceEvent{Type: p.WorkspaceOpened, At: now, By: agent, Name: name, Limits: &p.WorkspaceLimits{Agents: []string{agent}}})
	case !within && !w.Lists(agent):
		return same, p.Errorf(p.CodeForbidden, "workspace", "%s may not join the workflow %s: only the agents that its operator lists, the agent that opened it, and their hand-offs within it may", agent, name)
	}
	return same, nil
}

// CloseWorkspace closes a workspace to further handoffs.
func CloseWorkspace(w p.Workspace, by string, now time.Time) (WorkspaceStep, error) {
	if !w.ClosedAt.IsZero() {
		return WorkspaceStep{State: w}, nil
	}
	return askWorkspace(w, now, p.WorkspaceEvent{Type: p.WorkspaceClosed, At: now, By: by})
}

func closedWorkspace(w p.Workspace) error {
	return p.Errorf(p.CodeClosed, "workspace", "the workflow %s was closed, and no handoff can join it", w.Name)
}

// roomFor refuses more handoffs than the workspace has room for.
func roomFor(w p.Workspace, more int) error {
	switch most := w.Limits.MaxHandoffs; {
	case !w.ClosedAt.IsZero():
		return closedWorkspace(w)
	case most != nil && w.Drawn+more > *most:
		return p.Errorf(p.CodeLimitExceeded, "limits.max_handoffs", "at most %s in the workflow %s, and %d begun; open it with a higher limit", counted(int64(*most), "handoffs"), w.Name, w.Drawn)
	case len(w.Draws)+more > p.WorkspaceDrawsMax:
		return p.Errorf(p.CodeLimitExceeded, "workspace", "the workflow %s has %d open handoffs, the most that it may have at once", w.Name, len(w.Draws))
	}
	return nil
}

// Joining is a handoff that requests its place in a workspace, and the locks that its package
// declares.
type Joining struct {
	Ticket, From, To string
	Above            string // the nearest handoff above it with a place
	Members          int    // of a group, which has one place per member and none of its own
	Locks            []p.LockPath
	Wait             time.Duration // for the locks; 0: do not wait
}

// JoinWorkspace gives a handoff its place. A handoff that already has one changes nothing.
func JoinWorkspace(w p.Workspace, name string, j Joining, now time.Time) (WorkspaceStep, error) {
	kept, drawn := w.Draw(j.Ticket)
	if drawn && kept.Fence == 0 {
		return WorkspaceStep{State: w}, nil
	}
	if err := roomFor(w, max(1, j.Members)); err != nil && !drawn {
		return WorkspaceStep{State: w}, err
	}
	var events []p.WorkspaceEvent
	if w.Name == "" {
		events = append(events, p.WorkspaceEvent{Type: p.WorkspaceOpened, At: now, By: j.From, Name: name})
	}
	events = append(events, p.WorkspaceEvent{Type: p.WorkspaceDrawn, At: now, By: j.From, Ticket: j.Ticket, Above: j.Above, From: j.From, To: j.To})
	if len(j.Locks) > 0 {
		joined := w
		joined.Draws = without(w.Draws, func(d p.Draw) bool { return d.Ticket == j.Ticket })
		joined.Draws = append(joined.Draws, p.Draw{Ticket: j.Ticket, Above: j.Above})
		lock, err := lockEvent(joined, LockRequest{Ticket: j.Ticket, By: j.From, Locks: j.Locks, Wait: j.Wait}, now)
		if err != nil {
			return WorkspaceStep{State: w}, err
		}
		events = append(events, lock)
	}
	return askWorkspace(w, now, events...)
}

// Reservation requests the places for a hand-off that an attempt is about to make: one per member
// of a group, or one.
type Reservation struct {
	Tickets []string
	For     string // the handoff that hands off
	Child   string // the ticket of the child
	Fence   uint64
	By      string
}

// ReservePlaces reserves the places of a child, all or none, before its hand-off is recorded. s is the
// handoff that hands off, read after the workspace: an attempt that has ended by then reserves
// nothing, and neither does one whose child is handed off. That child may have closed, and a second
// place of it would count.
func ReservePlaces(w p.Workspace, name string, r Reservation, s p.State, now time.Time) (WorkspaceStep, error) {
	if s.Closed || s.Fence != r.Fence || handedOffAs(&s, r.Child) {
		return WorkspaceStep{State: w}, nil
	}
	var events []p.WorkspaceEvent
	if w.Name == "" {
		events = append(events, p.WorkspaceEvent{Type: p.WorkspaceOpened, At: now, By: r.By, Name: name})
	}
	more, changed := 0, false
	for _, ticket := range r.Tickets {
		kept, is := w.Draw(ticket)
		if is && (kept.Fence == 0 || kept.Fence >= r.Fence) {
			continue
		}
		if changed = true; !is {
			more++
		}
		events = append(events, p.WorkspaceEvent{Type: p.WorkspaceReserved, At: now, By: r.By, Ticket: ticket, For: r.For, Child: r.Child, Fence: r.Fence})
	}
	if !changed {
		return WorkspaceStep{State: w}, nil
	}
	if more > 0 {
		if err := roomFor(w, more); err != nil {
			return WorkspaceStep{State: w}, err
		}
	}
	return askWorkspace(w, now, events...)
}

// Reserves reports whether a workspace has places reserved for children of a handoff.
func Reserves(w p.Workspace, ticket string) bool {
	return slices.ContainsFunc(w.Draws, func(d p.Draw) bool { return d.For == ticket })
}

// ReturnOrphans returns the places that attempts of a handoff reserved for children that they never
// handed off, and never will. s is that handoff, read after the workspace.
func ReturnOrphans(w p.Workspace, s p.State, now time.Time) (WorkspaceStep, error) {
	var events []p.WorkspaceEvent
	for _, d := range w.Draws {
		if d.For == s.Ticket && (s.Closed || d.Fence != s.Fence) && !handedOffAs(&s, d.Child) {
			events = append(events, p.WorkspaceEvent{Type: p.WorkspaceReturned, At: now, By: By, Ticket: d.Ticket})
		}
	}
	return StepWorkspace(w, now, events...)
}

// handedOffAs reports whether a handoff has a child with the ticket. Its ordinal may differ from
// the planned one, if another attempt or another hand-off of the same attempt came between.
func handedOffAs(s *p.State, ticket string) bool {
	return s.Children != nil && slices.ContainsFunc(s.Children.Made.Numbers(), func(n int) bool { return s.ChildTicket(n) == ticket })
}

// EndPlace ends the place of a closed handoff, with all its locks and requests. The place of a
// handoff that never began does not count.
func EndPlace(w p.Workspace, ticket string, neverBegan bool, now time.Time) (WorkspaceStep, error) {
	event := p.WorkspaceEvent{Type: p.WorkspaceSettled, At: now, By: By, Ticket: ticket}
	if neverBegan {
		event.Type = p.WorkspaceReturned
	}
	if _, drawn := w.Draw(ticket); !drawn {
		return StepWorkspace(w, now)
	}
	return StepWorkspace(w, now, event)
}

// LockRequest requests locks during the work, under the fence of an attempt.
type LockRequest struct {
	Ticket, By string
	Fence      uint64
	Locks      []p.LockPath  // as CleanLocks returns them
	Wait       time.Duration // 0: do not wait
}

// LockPaths grants locks to a handoff, or queues its request. Locks that it already has, and a
// request that already waits, change nothing.
func LockPaths(w p.Workspace, r LockRequest, now time.Time) (WorkspaceStep, error) {
	same := WorkspaceStep{State: w}
	if _, err := p.CheckLockWait("wait_ms", max(0, r.Wait.Milliseconds())); err != nil { // below 0: do not wait
		return same, err
	}
	if _, drawn := w.Draw(r.Ticket); !drawn {
		return same, p.Errorf(p.CodeForbidden, "workspace", "%s has no place in the workflow %s", r.Ticket, w.Name)
	}
	had := w.LocksOf(r.Ticket)
	r.Locks = without(r.Locks, func(l p.LockPath) bool {
		return slices.ContainsFunc(had, func(h p.Lock) bool { return h.Includes(l) })
	})
	if len(r.Locks) == 0 {
		return same, nil
	}
	if wait := w.WaitOf(r.Ticket); wait != nil {
		if wait.Fence == r.Fence && slices.Equal(wait.Locks, r.Locks) {
			return StepWorkspace(w, now)
		}
		return same, p.Errorf(p.CodeConflict, "locks", "%s waits for other locks already (%s)", r.Ticket, pathWords(wait.Locks))
	}
	event, err := lockEvent(w, r, now)
	if err != nil {
		return same, err
	}
	return askWorkspace(w, now, event)
}

// lockEvent decides a request for locks.
func lockEvent(w p.Workspace, r LockRequest, now time.Time) (p.WorkspaceEvent, error) {
	event := p.WorkspaceEvent{Type: p.WorkspaceLocked, At: now, By: r.By, Ticket: r.Ticket, Fence: r.Fence, Locks: r.Locks}
	if len(w.Locks)+len(r.Locks) > p.WorkspaceLocksMax || len(w.Waiting) >= p.WorkspaceLocksMax {
		return event, p.Errorf(p.CodeTooLarge, "locks", "the workflow %s has %d locks and %d requests, at most %d of each are allowed", w.Name, len(w.Locks), len(w.Waiting), p.WorkspaceLocksMax)
	}
	inWay := blockers(w, r.Ticket, r.Locks, w.Waiting)
	if len(inWay) == 0 {
		return event, nil
	}
	if cycle := cycleThrough(w, r.Ticket, inWay); cycle != nil {
		return event, p.Errorf(p.CodeDeadlock, "locks", "a deadlock: %s would wait for itself, through %s; release a lock and ask again", r.Ticket, strings.Join(cycle, ", "))
	}
	if r.Wait <= 0 {
		has := "has it"
		if inWay[0].Waits {
			has = "has asked for it before"
		}
		return event, p.Errorf(p.CodeLockBusy, "locks", "%s is locked: %s %s", inWay[0].Path, inWay[0].Ticket, has)
	}
	event.Type, event.Until = p.WorkspaceQueued, now.Add(r.Wait)
	return event, nil
}

// CancelWait ends a request for locks that an attempt made during the work.
func CancelWait(w p.Workspace, ticket string, fence uint64, now time.Time) (WorkspaceStep, error) {
	if wait := w.WaitOf(ticket); wait == nil || wait.Fence != fence || fence == 0 {
		return StepWorkspace(w, now)
	}
	return StepWorkspace(w, now, p.WorkspaceEvent{Type: p.WorkspaceExpired, At: now, By: By, Ticket: ticket})
}

// LapseFences removes the locks and requests of a handoff under fences other than its current one;
// 0 is none.
func LapseFences(w p.Workspace, ticket string, fence uint64, now time.Time) (WorkspaceStep, error) {
	var events []p.WorkspaceEvent
	lapse := func(of uint64) {
		same := func(e p.WorkspaceEvent) bool { return e.Fence == of }
		if of != 0 && of != fence && !slices.ContainsFunc(events, same) {
			events = append(events, p.WorkspaceEvent{Type: p.WorkspaceUnlocked, At: now, By: By, Ticket: ticket, Fence: of})
		}
	}
	for _, l := range w.LocksOf(ticket) {
		lapse(l.Fence)
	}
	if wait := w.WaitOf(ticket); wait != nil {
		lapse(wait.Fence)
	}
	return StepWorkspace(w, now, events...)
}

func pathWords(locks []p.LockPath) string {
	words := make([]string, len(locks))
	for i, l := range locks {
		words[i] = l.Path
	}
	return strings.Join(words, ", ")
}

// UnlockPaths releases locks that an attempt requested during the work. Without paths it releases
// all of them, and ends the pending request. A lock that the attempt does not have changes nothing.
func UnlockPaths(w p.Workspace, ticket string, fence uint64, locks []p.LockPath, now time.Time) (WorkspaceStep, error) {
	had := w.LocksOf(ticket)
	for _, l := range locks {
		if i := slices.IndexFunc(had, func(h p.Lock) bool { return h.Path == l.Path }); i >= 0 && had[i].Fence == 0 {
			return WorkspaceStep{State: w}, p.Errorf(p.CodeIllegal, "locks", "%s is declared by the package of %s, which has it until its end", l.Path, ticket)
		}
	}
	event := p.WorkspaceEvent{Type: p.WorkspaceUnlocked, At: now, By: By, Ticket: ticket, Fence: fence, Locks: locks}
	if _, err := ApplyWorkspace(w, event); err != nil {
		return StepWorkspace(w, now)
	}
	return StepWorkspace(w, now, event)
}

// Setting is a group of variables that are set together.
type Setting struct {
	Ticket, By string // no ticket: set from outside of the work
	Values     map[string]json.RawMessage
	// IfVersion is the required version of each variable; 0 means absent, nil any version.
	IfVersion *int
}

// SetVariables sets variables of a workspace. If one of them has another version, the error has
// CodeConflict and contains the current value.
func SetVariables(w p.Workspace, s Setting, now time.Time) (WorkspaceStep, error) {
	same := WorkspaceStep{State: w}
	event := p.WorkspaceEvent{Type: p.WorkspaceSet, At: now, By: s.By, Ticket: s.Ticket, Values: s.Values}
	if s.Ticket == "" {
		event.Type = p.WorkspaceResolved
	} else if _, drawn := w.Draw(s.Ticket); !drawn {
		return same, p.Errorf(p.CodeForbidden, "workspace", "%s has no place in the workflow %s", s.Ticket, w.Name)
	}
	added := 0
	event.Values = maps.Clone(s.Values)
	for name, value := range s.Values {
		stands, there := w.Variables[name]
		if !there {
			added++
		}
		if s.IfVersion == nil || stands.Version == *s.IfVersion {
			if there && bytes.Equal(stands.Value, value) { // an unchanged value is no change
				delete(event.Values, name)
			}
			continue
		}
		if !there {
			return same, p.Errorf(p.CodeConflict, "variables."+name, "is not set, and has no version %d", *s.IfVersion)
		}
		return same, p.Errorf(p.CodeConflict, "variables."+name, "has version %d, not %d: %s set it to %s", stands.Version, *s.IfVersion, stands.By, stands.Value)
	}
	if n := len(w.Variables) + added; n > p.VariablesMax {
		return same, p.Errorf(p.CodeTooLarge, "variables", "%d are set, at most %d are allowed", n, p.VariablesMax)
	}
	if len(event.Values) == 0 {
		return same, nil
	}
	return askWorkspace(w, now, event)
}

// askWorkspace is StepWorkspace, and refuses events that would make the workspace too large.
func askWorkspace(w p.Workspace, now time.Time, events ...p.WorkspaceEvent) (WorkspaceStep, error) {
	step, err := StepWorkspace(w, now, events...)
	if err != nil {
		return WorkspaceStep{State: w}, err
	}
	if size := workspaceSize(step.State); size > p.WorkspaceBytesMax {
		return WorkspaceStep{State: w}, p.Errorf(p.CodeTooLarge, "workspace", "%s", p.OverSize(size, p.WorkspaceBytesMax))
	}
	return step, nil
}
