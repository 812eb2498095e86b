package broker

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// A handoff that was submitted behind the gate of its workspace takes three appends to its offer:
// its own, one of the workspace (its place and its locks), and the one that opens the gate. Each
// is made by the submitter as a rule, and by any supervisor that finds it missing.

// ancestorsMax bounds the handoffs that are read to find one above that has a place.
const ancestorsMax = 250

// knownWorkspaces remembers for a moment which workflows have a workspace, and that they have none.
type knownWorkspaces struct {
	mu    sync.Mutex
	names map[string]knownWorkspace
}

type knownWorkspace struct {
	open bool
	at   time.Time
}

func (k *knownWorkspaces) lookup(name string, now time.Time) (open, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	w, known := k.names[name]
	age := now.Sub(w.at)
	return w.open, known && age >= 0 && age < profileFresh
}

func (k *knownWorkspaces) remember(name string, open bool, at time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.names == nil || len(k.names) >= profilesMax {
		k.names = map[string]knownWorkspace{}
	}
	k.names[name] = knownWorkspace{open, at}
}

// resolveWorkspace gives a submission the workspace of its workflow, where that was opened, and
// refuses one that has no place. Nothing is written: another submission may take the place first.
func (b *Broker) resolveWorkspace(ctx context.Context, s *protocol.Summary) error {
	named := s.Workspace != ""
	if !named {
		if s.WorkflowID == "" {
			return nil
		}
		open, err := b.workspaceOpen(ctx, s.WorkflowID)
		if err != nil || !open {
			return err
		}
		s.Workspace = s.WorkflowID
	}
	if err := b.enterWorkspace(ctx, s.Workspace, s.Source, s.Parent); err != nil {
		return err
	}
	if s.Type == protocol.Escalation { // the way up is free
		return nil
	}
	head, err := b.workspaceHead(ctx, s.Workspace)
	if err != nil {
		return err
	}
	join := joining("", *s, "", s.Locks.Wait())
	if s.Aggregate != nil { // its members have places
		join.Members = s.Aggregate.Size
	}
	_, err = lifecycle.JoinWorkspace(head.State, s.Workspace, join, b.workspaceNow(head))
	return err
}

type boundKey struct{}

// Bound marks a context as that of an agent that a gateway has authenticated and does not trust.
// What such an agent hands off joins no workflow of others.
func Bound(ctx context.Context) context.Context { return context.WithValue(ctx, boundKey{}, true) }

// enterWorkspace checks whether an agent may name a workspace for a handoff below parent, where the
// agent is bound. Any other caller is trusted.
func (b *Broker) enterWorkspace(ctx context.Context, name, agent, parent string) error {
	if ctx.Value(boundKey{}) == nil || name == "" {
		return nil
	}
	_, err := b.updateWorkspace(ctx, name, func(w protocol.Workspace, now time.Time) (lifecycle.WorkspaceStep, error) {
		within := false
		if w.Name != "" && parent != "" && !w.Lists(agent) {
			head, err := b.Head(ctx, parent, 0)
			if err != nil && !isAbsent(err) {
				return lifecycle.WorkspaceStep{}, err
			}
			if s := head.State; err == nil && (s.Source == agent || s.Agent == agent) {
				_, within = w.Draw(parent)
				if !within {
					above, err := b.placeAbove(ctx, w, s)
					if err != nil {
						return lifecycle.WorkspaceStep{}, err
					}
					within = above != ""
				}
			}
		}
		return lifecycle.EnterWorkspace(w, name, agent, within, now)
	})
	return err
}

// workspaceOpen tells whether a workflow has a workspace, as it was a moment ago.
func (b *Broker) workspaceOpen(ctx context.Context, name string) (bool, error) {
	now := b.clock()
	if open, known := b.workflows.lookup(name, now); known {
		return open, nil
	}
	head, err := b.workspaceHead(ctx, name)
	if errors.Is(err, &protocol.Error{Code: protocol.CodeUnsupported}) {
		head, err = WorkspaceHead{}, nil
	}
	if err == nil {
		b.workflows.remember(name, head.Seq != 0, now)
	}
	return head.Seq != 0, err
}

func joining(ticket string, s protocol.Summary, above string, wait time.Duration) lifecycle.Joining {
	j := lifecycle.Joining{Ticket: ticket, From: s.Source, To: s.TargetWords(), Above: above, Wait: wait}
	if s.Locks != nil {
		j.Locks = s.Locks.Paths
	}
	return j
}

// EnsureWorkspace makes what is missing between a handoff and its workspace: its place and its
// locks, and the offer after them; the end of what an attempt asked for that was lost; and the end
// of its place once it has closed. It returns the head after that. Doing it twice is harmless.
func (b *Broker) EnsureWorkspace(ctx context.Context, head Head) (Head, error) {
	next, err := b.ensureWorkspace(ctx, head)
	if errors.Is(err, &protocol.Error{Code: protocol.CodeUnsupported}) { // the stream was removed: nothing is to be made up for
		return head, nil
	}
	return next, err
}

func (b *Broker) ensureWorkspace(ctx context.Context, head Head) (Head, error) {
	s := &head.State
	switch {
	case s.Workspace == "":
		return head, nil
	case lifecycle.LeavesWorkspace(*s):
		w, err := b.settle(ctx, s.Workspace, s.Ticket, lifecycle.NeverBegan(*s))
		if err == nil && lifecycle.Reserves(w, s.Ticket) {
			err = b.returnOrphans(ctx, s.Workspace, s.Ticket)
		}
		return head, err
	case lifecycle.AwaitsWorkspace(*s):
		return b.join(ctx, head)
	case s.AttemptsTotal > 0 && s.Fence == 0:
		if s.Joined && !s.Closed {
			b.releaseFences(ctx, s.Workspace, s.Ticket, s.Fence)
		}
		return head, b.returnOrphans(ctx, s.Workspace, s.Ticket)
	case !s.Closed && s.Joined && s.AttemptsTotal > 0:
		b.releaseFences(ctx, s.Workspace, s.Ticket, s.Fence)
	}
	return head, nil
}

// settle ends the place of a handoff that has closed; one that never began did not count. It returns
// the workspace after that.
func (b *Broker) settle(ctx context.Context, name, ticket string, neverBegan bool) (protocol.Workspace, error) {
	step, err := b.updateWorkspace(ctx, name, func(w protocol.Workspace, now time.Time) (lifecycle.WorkspaceStep, error) {
		if neverBegan {
			return lifecycle.ReturnPlace(w, ticket, now)
		}
		return lifecycle.SettleHandoffs(w, []string{ticket}, now)
	})
	b.followWorkspace(ctx, step, ticket)
	return step.State, err
}

// reserve keeps the places of a child in its workspace before its hand-off is recorded. The refusal
// is that of a limit: the hand-off is barred. What is kept and not used goes back by returnOrphans.
func (c *Claim) reserve(ctx context.Context, in Prepared, next lifecycle.Next) (refused *protocol.Error, err error) {
	head := c.lastHead()
	s := &head.State
	name := cmp.Or(in.summary.Workspace, s.Workspace)
	if name == "" || s.Fence == 0 || !lifecycle.NeedsPlaces(in.summary) {
		return nil, nil
	}
	if _, unfit := lifecycle.HandOff(*s, next, c.b.decisionTime(head)); unfit != nil { // it is refused all the same
		return nil, nil
	}
	r := lifecycle.Reservation{Tickets: []string{in.Ticket}, For: c.Ticket, Child: in.Ticket, Fence: s.Fence, By: c.Agent}
	if size := in.Package.GroupSize(); size > 0 {
		r.Tickets = nil
		for member := range size {
			r.Tickets = append(r.Tickets, protocol.ChildTicketN(in.Ticket, member))
		}
	}
	_, err = c.b.updateWorkspace(ctx, name, func(w protocol.Workspace, now time.Time) (lifecycle.WorkspaceStep, error) {
		return lifecycle.ReservePlaces(w, name, r, now)
	})
	switch {
	case !errors.As(err, &refused):
		return nil, err
	case refused.Code == protocol.CodeUnsupported:
		return nil, nil
	case refused.Code == protocol.CodeClosed:
		refused = protocol.Errorf(protocol.CodeLimitExceeded, refused.Field, "%s", refused.Message)
	}
	return refused, nil
}

// returnOrphans gives back the places that attempts of a handoff kept for what they never handed
// off. The head is read behind that of the workspace: an attempt that is over by then hands off no
// more.
func (b *Broker) returnOrphans(ctx context.Context, name, ticket string) error {
	step, err := b.updateWorkspace(ctx, name, func(w protocol.Workspace, now time.Time) (lifecycle.WorkspaceStep, error) {
		if !lifecycle.Reserves(w, ticket) {
			return lifecycle.WorkspaceStep{State: w}, nil
		}
		head, err := b.Head(ctx, ticket, 0)
		if errors.Is(err, ErrNotFound) { // aged out
			head.State, err = protocol.State{Ticket: ticket, Closed: true}, nil
		}
		if err != nil {
			return lifecycle.WorkspaceStep{}, err
		}
		return lifecycle.ReturnOrphans(w, head.State, now)
	})
	b.followWorkspace(ctx, step, ticket)
	return err
}

// releaseFences ends the locks that a handoff was given under other fences than the one it has.
func (b *Broker) releaseFences(ctx context.Context, name, ticket string, fence uint64) {
	step, err := b.updateWorkspace(ctx, name, func(w protocol.Workspace, now time.Time) (lifecycle.WorkspaceStep, error) {
		return lifecycle.LapseFences(w, ticket, fence, now)
	})
	b.followWorkspace(ctx, step, ticket)
	if err != nil {
		b.log.Warn("locks of a lost attempt not given back; a supervisor will", "ticket", ticket, "err", err)
	}
}

// join gives a handoff its place in its workspace, and opens its gate once it has its locks as
// well. One that has lost the race for the last place closes. The head is read anew behind that of
// the workspace: a handoff that is gated still has never had a place which ended, so that none is
// counted twice.
func (b *Broker) join(ctx context.Context, head Head) (Head, error) {
	name, ticket, gated := head.State.Workspace, head.Ticket, true
	step, err := b.updateWorkspace(ctx, name, func(w protocol.Workspace, now time.Time) (lifecycle.WorkspaceStep, error) {
		var err error
		if head, err = b.Head(ctx, ticket, head.Seq); err != nil {
			return lifecycle.WorkspaceStep{}, err
		}
		if gated = lifecycle.AwaitsWorkspace(head.State); !gated {
			return lifecycle.WorkspaceStep{State: w}, nil
		}
		if d, drawn := w.Draw(ticket); drawn && d.Fence == 0 {
			return lifecycle.RejoinWorkspace(w, head.State, now)
		}
		above, err := b.placeAbove(ctx, w, head.State)
		if err != nil {
			return lifecycle.WorkspaceStep{}, err
		}
		return lifecycle.JoinWorkspace(w, name, joining(ticket, head.State.Summary, above, lifecycle.LockWaitLeft(head.State, now)), now)
	})
	b.followWorkspace(ctx, step, ticket)
	var refused *protocol.Error
	switch {
	case errors.As(err, &refused) && refused.Code != protocol.CodeUnreadable && refused.Code != protocol.CodeUnsupported:
		return b.turnAway(ctx, head, refused)
	case err != nil || !gated:
		return head, err
	}
	return b.admitJoined(ctx, head, step.State)
}

// admitJoined opens the gate of a handoff that has its place and its locks.
func (b *Broker) admitJoined(ctx context.Context, head Head, w protocol.Workspace) (Head, error) {
	locks := w.LocksOf(head.Ticket)
	switch s := head.State; {
	case w.WaitOf(head.Ticket) != nil:
		return head, nil
	case s.Locks != nil && len(locks) == 0:
		return b.turnAway(ctx, head, lifecycle.LocksNotFree(s))
	}
	fact := lifecycle.Fact{Gate: protocol.GateWorkspace}
	for _, l := range locks {
		fact.Seq = max(fact.Seq, l.Seq)
	}
	next, _, err := b.update(ctx, head, b.freshAgent(head.State.Gate.Agent), func(h Head, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		return lifecycle.OpenGate(h.State, d, fact, now)
	})
	return next, err
}

// turnAway closes a handoff that has no place in its workspace, or no locks.
func (b *Broker) turnAway(ctx context.Context, head Head, why *protocol.Error) (Head, error) {
	next, _, err := b.update(ctx, head, b.noDirectory, func(h Head, _ *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		return lifecycle.RefuseGate(h.State, protocol.GateWorkspace, why, now)
	})
	return next, err
}

// placeAbove finds the nearest handoff above that has a place in the workspace.
func (b *Broker) placeAbove(ctx context.Context, w protocol.Workspace, s protocol.State) (string, error) {
	for range ancestorsMax {
		if s.Parent == "" {
			return "", nil
		}
		if d, drawn := w.Draw(s.Parent); drawn && d.Fence == 0 {
			return s.Parent, nil
		}
		head, err := b.Head(ctx, s.Parent, 0)
		if errors.Is(err, ErrNotFound) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		s = head.State
	}
	return "", nil
}

// followWorkspace opens the gates of the handoffs that an append has granted their locks to. But
// is the one that the caller sees to.
func (b *Broker) followWorkspace(ctx context.Context, step lifecycle.WorkspaceStep, but string) {
	for _, e := range step.Events {
		if e.Type != protocol.WorkspaceGranted && e.Type != protocol.WorkspaceExpired || e.Ticket == but {
			continue
		}
		head, err := b.Head(ctx, e.Ticket, 0)
		if err == nil && lifecycle.AwaitsWorkspace(head.State) {
			_, err = b.EnsureWorkspace(ctx, head)
		}
		if err != nil {
			b.log.Warn("gate of a workspace not opened; a supervisor will", "ticket", e.Ticket, "err", err)
		}
	}
}

// SweepWorkspaces compares every workspace with the handoffs that have a place in it, and makes
// what is missing.
func (b *Broker) SweepWorkspaces(ctx context.Context) error {
	all, err := b.Workspaces(ctx)
	if errors.Is(err, &protocol.Error{Code: protocol.CodeUnsupported}) {
		return nil
	}
	for _, w := range all {
		err = errors.Join(err, b.sweepWorkspace(ctx, w))
	}
	return err
}

func (b *Broker) sweepWorkspace(ctx context.Context, w protocol.Workspace) error {
	var errs error
	for _, d := range w.Draws {
		head, err := b.Head(ctx, d.Ticket, 0)
		switch {
		case errors.Is(err, ErrNotFound) && d.Fence != 0: // kept, and not handed off yet
			err = b.returnOrphans(ctx, w.Name, d.For)
		case errors.Is(err, ErrNotFound): // aged out
			_, err = b.settle(ctx, w.Name, d.Ticket, false)
		case err == nil && workspaceCallsFor(w, head.State):
			_, err = b.EnsureWorkspace(ctx, head)
		}
		errs = errors.Join(errs, err)
	}
	if len(w.Waiting) > 0 {
		step, err := b.updateWorkspace(ctx, w.Name, func(w protocol.Workspace, now time.Time) (lifecycle.WorkspaceStep, error) {
			return lifecycle.StepWorkspace(w, now)
		})
		b.followWorkspace(ctx, step, "")
		errs = errors.Join(errs, err)
	}
	return errs
}

// workspaceCallsFor tells whether anything is missing between a handoff and its workspace.
func workspaceCallsFor(w protocol.Workspace, s protocol.State) bool {
	if s.Closed || lifecycle.AwaitsWorkspace(s) {
		return true
	}
	for _, l := range w.LocksOf(s.Ticket) {
		if l.Fence != 0 && l.Fence != s.Fence {
			return true
		}
	}
	wait := w.WaitOf(s.Ticket)
	return wait != nil && wait.Fence != 0 && wait.Fence != s.Fence
}
