package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// workspaceHead is the last append of a workspace in the form that a writer needs. Its sequence is
// 0 if the workspace does not exist.
type workspaceHead struct {
	Seq   uint64
	At    time.Time
	State protocol.Workspace
}

// Workspace reads from the leader the data that the handoffs of a workflow share. If the workspace
// does not exist, the error is a *protocol.Error with CodeNotFound.
func (b *Broker) Workspace(ctx context.Context, name string) (protocol.Workspace, error) {
	head, err := b.workspaceHead(ctx, name)
	if err == nil && head.Seq == 0 {
		err = protocol.Errorf(protocol.CodeNotFound, "workspace", "no workflow is called %s; open it first", protocol.CutText(name, 64))
	}
	return head.State, err
}

// workspaceHead reads the head of a workspace; its sequence is 0 if there is none.
func (b *Broker) workspaceHead(ctx context.Context, name string) (workspaceHead, error) {
	if err := protocol.CheckWorkspaceName("workspace", name); err != nil {
		return workspaceHead{}, err
	}
	return b.readWorkspace(ctx, protocol.WorkspaceID(name))
}

func (b *Broker) readWorkspace(ctx context.Context, id string) (workspaceHead, error) {
	entry, err := b.engine.WorkspaceHead(ctx, id)
	if errors.Is(err, ErrNotFound) {
		return workspaceHead{}, nil
	}
	if err != nil {
		return workspaceHead{}, err
	}
	var record protocol.WorkspaceRecord
	if err := json.Unmarshal(entry.Body, &record); err != nil || protocol.WorkspaceID(record.State.Name) != id {
		return workspaceHead{}, protocol.Errorf(protocol.CodeUnreadable, "workspace", "entry %d of %s is not a workspace", entry.Seq, id)
	}
	return workspaceHead{Seq: entry.Seq, At: entry.At, State: record.State}, nil
}

// Workspaces returns all workspaces in the order of their names. Unreadable ones are left out.
func (b *Broker) Workspaces(ctx context.Context) ([]protocol.Workspace, error) {
	var all []protocol.Workspace
	err := b.engine.EachWorkspace(ctx, func(id string) error {
		head, err := b.readWorkspace(ctx, id)
		switch {
		case errors.Is(err, &protocol.Error{Code: protocol.CodeUnreadable}):
			b.log.Warn("workspace not readable", "workspace", id, "err", err)
			return nil
		case err != nil || head.Seq == 0:
			return err
		}
		all = append(all, head.State)
		return nil
	})
	slices.SortFunc(all, func(a, b protocol.Workspace) int { return strings.Compare(a.Name, b.Name) })
	return all, err
}

// workspaceDecider returns the events to append to a workspace. A step without events means nothing
// to do.
type workspaceDecider func(w protocol.Workspace, now time.Time) (lifecycle.WorkspaceStep, error)

// updateWorkspace reads the head of a workspace, appends the events that decide returns, and starts
// over if another append came first. decide is called again with each head, and makes its other
// reads afterwards, so its view of a handoff is never older than the workspace.
func (b *Broker) updateWorkspace(ctx context.Context, name string, decide workspaceDecider) (lifecycle.WorkspaceStep, error) {
	for try := 0; ; try++ {
		head, err := b.workspaceHead(ctx, name)
		if err != nil {
			return lifecycle.WorkspaceStep{}, err
		}
		step, err := decide(head.State, b.workspaceNow(head))
		if err != nil || len(step.Events) == 0 {
			return step, err
		}
		if err = b.appendWorkspace(ctx, head, step); !errors.Is(err, ErrConflict) {
			return step, err
		}
		if err := pauseAfterConflict(ctx, try, step.Events[0].Ticket); err != nil {
			return step, err
		}
	}
}

// workspaceNow returns the later of the clock and the times in the head.
func (b *Broker) workspaceNow(head workspaceHead) time.Time {
	now := b.clock().UTC().Truncate(time.Millisecond)
	for _, at := range []time.Time{head.At, head.State.UpdatedAt} {
		if at.After(now) {
			now = at.UTC().Truncate(time.Millisecond)
		}
	}
	return now
}

// pauseAfterConflict lets other writers of the same workspace go first. Writers for different
// tickets pause for different times, derived from the ticket so that a simulation is repeatable.
func pauseAfterConflict(ctx context.Context, try int, ticket string) error {
	hash := fnv.New32a()
	_, _ = fmt.Fprint(hash, ticket, try)
	most := time.Duration(min(try+1, 20)) * time.Millisecond
	return pauseFor(ctx, most*time.Duration(hash.Sum32()>>16)>>16)
}

// appendWorkspace stores one append of a workspace. ErrConflict means that another one came first.
func (b *Broker) appendWorkspace(ctx context.Context, head workspaceHead, step lifecycle.WorkspaceStep) error {
	record := protocol.WorkspaceRecord{ID: newRecordID(), Events: step.Events, State: step.State}
	body, err := json.Marshal(record)
	if err != nil {
		return err
	}
	seq, err := b.engine.AppendWorkspace(ctx, protocol.WorkspaceID(step.State.Name), head.Seq, record.ID, body)
	if err == nil {
		b.log.Debug("append of a workspace", "workspace", step.State.Name, "events", len(step.Events), "seq", seq)
	}
	return err
}

// OpenWorkspace opens a workspace, or replaces the limits of an open one.
func (b *Broker) OpenWorkspace(ctx context.Context, name string, limits protocol.WorkspaceLimits, by string) (protocol.Workspace, error) {
	if err := limits.Validate(); err != nil {
		return protocol.Workspace{}, err
	}
	step, err := b.updateWorkspace(ctx, name, func(w protocol.Workspace, now time.Time) (lifecycle.WorkspaceStep, error) {
		return lifecycle.OpenWorkspace(w, name, limits, by, now)
	})
	return step.State, err
}

// CloseWorkspace prevents further handoffs from joining a workspace. Open ones continue.
func (b *Broker) CloseWorkspace(ctx context.Context, name, by string) (protocol.Workspace, error) {
	if _, err := b.Workspace(ctx, name); err != nil {
		return protocol.Workspace{}, err
	}
	step, err := b.updateWorkspace(ctx, name, func(w protocol.Workspace, now time.Time) (lifecycle.WorkspaceStep, error) {
		return lifecycle.CloseWorkspace(w, by, now)
	})
	return step.State, err
}

// ResolveVariables sets variables of a workspace from outside the work.
func (b *Broker) ResolveVariables(ctx context.Context, name string, set lifecycle.Setting) (protocol.Workspace, error) {
	if _, err := b.Workspace(ctx, name); err != nil {
		return protocol.Workspace{}, err
	}
	set.Ticket = ""
	var err error
	if set.Values, err = b.variables(ctx, set.Values); err != nil {
		return protocol.Workspace{}, err
	}
	step, err := b.updateWorkspace(ctx, name, func(w protocol.Workspace, now time.Time) (lifecycle.WorkspaceStep, error) {
		return lifecycle.SetVariables(w, set, now)
	})
	return step.State, err
}

// variables checks values and redacts secrets in them.
func (b *Broker) variables(ctx context.Context, values map[string]json.RawMessage) (map[string]json.RawMessage, error) {
	if err := protocol.CheckVariables(values); err != nil {
		return nil, err
	}
	body, err := json.Marshal(values)
	if err != nil {
		return nil, err
	}
	redactor, err := b.redaction()
	if err != nil {
		return nil, err
	}
	if body, err = redactor.Variables(ctx, body); err != nil {
		return nil, fmt.Errorf("redact variables: %w", err)
	}
	var stored map[string]json.RawMessage
	err = json.Unmarshal(body, &stored)
	return stored, err
}

// A handoff that waits at the gate of its workspace takes three appends until its offer: its
// submission, one of the workspace (its place and its locks), and the one that opens the gate. The
// submitter usually makes each; any supervisor makes a missing one.

// ancestorsMax bounds the ancestors read to find one that has a place.
const ancestorsMax = 250

// resolveWorkspace gives a submission the workspace of its workflow, if that was opened, and
// refuses it if no place is free. Nothing is written: another submission may take the place first.
func (b *Broker) resolveWorkspace(ctx context.Context, s *protocol.Summary) error {
	if s.Workspace == "" {
		var err error
		if s.Workspace, err = b.workspaceOf(ctx, s.WorkflowID); err != nil || s.Workspace == "" {
			return err
		}
	}
	if err := b.enterWorkspace(ctx, s.Workspace, s.Source, s.Parent); err != nil {
		return err
	}
	if s.Type == protocol.Escalation { // escalations are not limited
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
// The hand-offs of such an agent cannot join another's workflow.
func Bound(ctx context.Context) context.Context { return context.WithValue(ctx, boundKey{}, true) }

// enterWorkspace checks whether a bound agent may name a workspace for a handoff below parent. Any
// other caller is trusted.
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

// workspaceOf returns the workspace of a workflow, from a short-lived cache; empty if it has none.
func (b *Broker) workspaceOf(ctx context.Context, workflow string) (string, error) {
	if workflow == "" {
		return "", nil
	}
	now := b.clock()
	if name, known, _ := b.workflows.lookup(workflow, now, profileFresh); known {
		return name, nil
	}
	head, err := b.workspaceHead(ctx, workflow)
	if err != nil && !errors.Is(err, &protocol.Error{Code: protocol.CodeUnsupported}) {
		return "", err
	}
	name := ""
	if head.Seq != 0 {
		name = workflow
	}
	b.workflows.remember(workflow, name, now, 0)
	return name, nil
}

func joining(ticket string, s protocol.Summary, above string, wait time.Duration) lifecycle.Joining {
	j := lifecycle.Joining{Ticket: ticket, From: s.Source, To: s.TargetWords(), Above: above, Wait: wait}
	if s.Locks != nil {
		j.Locks = s.Locks.Paths
	}
	return j
}

// EnsureWorkspace completes the steps between a handoff and its workspace: its place and its locks,
// and then the offer; the end of the requests of a lost attempt; and the end of its place once it
// has closed. It returns the resulting head, and is idempotent.
func (b *Broker) EnsureWorkspace(ctx context.Context, head Head) (Head, error) {
	next, err := b.ensureWorkspace(ctx, head)
	if errors.Is(err, &protocol.Error{Code: protocol.CodeUnsupported}) { // the stream was removed, so nothing is missing
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

// settle ends the place of a handoff that has closed; a handoff that never began does not count. It
// returns the resulting workspace.
func (b *Broker) settle(ctx context.Context, name, ticket string, neverBegan bool) (protocol.Workspace, error) {
	step, err := b.updateWorkspace(ctx, name, func(w protocol.Workspace, now time.Time) (lifecycle.WorkspaceStep, error) {
		return lifecycle.EndPlace(w, ticket, neverBegan, now)
	})
	b.followWorkspace(ctx, step, ticket)
	return step.State, err
}

// reserve reserves the places of a child in its workspace before its hand-off is recorded. If a
// limit refuses them, the hand-off is barred. returnOrphans returns unused reservations.
func (c *Claim) reserve(ctx context.Context, in Prepared, next lifecycle.Next) (refused *protocol.Error, err error) {
	head := c.lastHead()
	s := &head.State
	name := cmp.Or(in.summary.Workspace, s.Workspace)
	if name == "" || s.Fence == 0 || !lifecycle.NeedsPlaces(in.summary) {
		return nil, nil
	}
	if _, unfit := lifecycle.HandOff(*s, next, c.b.decisionTime(head)); unfit != nil { // the hand-off is refused anyway
		return nil, nil
	}
	r := lifecycle.Reservation{Tickets: []string{in.Ticket}, For: c.Ticket, Child: in.Ticket, Fence: s.Fence, By: c.Agent}
	if size := in.Package.GroupSize(); size > 0 {
		r.Tickets = nil
		for member := range size {
			r.Tickets = append(r.Tickets, protocol.ChildTicketN(in.Ticket, member))
		}
	}
	_, err = c.b.updateWorkspace(ctx, name, func(w protocol.Workspace, at time.Time) (lifecycle.WorkspaceStep, error) {
		now, err := c.b.Head(ctx, c.Ticket, head.Seq)
		if err != nil {
			return lifecycle.WorkspaceStep{}, err
		}
		return lifecycle.ReservePlaces(w, name, r, now.State, at)
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

// returnOrphans returns the places that attempts of a handoff reserved for children that they never
// handed off. The head is read after that of the workspace: an attempt that has ended by then hands
// off nothing more.
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

// releaseFences ends the locks that a handoff got under other fences than its current one.
func (b *Broker) releaseFences(ctx context.Context, name, ticket string, fence uint64) {
	step, err := b.updateWorkspace(ctx, name, func(w protocol.Workspace, now time.Time) (lifecycle.WorkspaceStep, error) {
		return lifecycle.LapseFences(w, ticket, fence, now)
	})
	b.followWorkspace(ctx, step, ticket)
	if err != nil {
		b.log.Warn("locks of a lost attempt not released; a supervisor will release them", "ticket", ticket, "err", err)
	}
}

// join gives a handoff its place in its workspace, and opens its gate once it also has its locks. A
// handoff that has lost the race for the last place closes. The head is reread after that of the
// workspace: a handoff still at its gate never had a place that ended, so none is counted twice.
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
	next, _, err := b.update(ctx, head, wantAgent(head.State.Gate.Agent), func(h Head, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.OpenGate(h.State, q, fact)
	})
	return next, err
}

// turnAway closes a handoff that got no place in its workspace, or no locks.
func (b *Broker) turnAway(ctx context.Context, head Head, why *protocol.Error) (Head, error) {
	next, _, err := b.update(ctx, head, wantNothing, func(h Head, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.RefuseGate(h.State, protocol.GateWorkspace, why, q.Now)
	})
	return next, err
}

// placeAbove finds the nearest ancestor that has a place in the workspace.
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

// followWorkspace opens the gates of the handoffs that an append has granted their locks to. The
// caller handles the ticket but itself.
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
			b.log.Warn("gate of a workspace not opened; a supervisor will open it", "ticket", e.Ticket, "err", err)
		}
	}
}

// SweepWorkspaces compares every workspace with the handoffs that have a place in it, and completes
// missing steps.
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
		case errors.Is(err, ErrNotFound) && d.Fence != 0: // reserved, and not handed off yet
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

// workspaceCallsFor reports whether a step between a handoff and its workspace is missing.
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

// lockPoll is how often a holder that waits for locks reads its workspace.
const lockPoll = 100 * time.Millisecond

// workspaceOf returns the workspace of a claim's handoff.
func (c *Claim) workspaceOf() (string, error) {
	name := c.lastHead().State.Workspace
	if name == "" {
		return "", protocol.Errorf(protocol.CodeForbidden, "workspace", "%s has no part in a workflow that was opened", c.Ticket)
	}
	return name, nil
}

// updateShared appends to the workspace of the claim's handoff, under its fence. The fence is read
// after the head of the workspace, so that an attempt which was lost before changes nothing.
func (c *Claim) updateShared(ctx context.Context, decide func(w protocol.Workspace, fence uint64, now time.Time) (lifecycle.WorkspaceStep, error)) (lifecycle.WorkspaceStep, error) {
	name, err := c.workspaceOf()
	if err != nil {
		return lifecycle.WorkspaceStep{}, err
	}
	step, err := c.b.updateWorkspace(ctx, name, func(w protocol.Workspace, now time.Time) (lifecycle.WorkspaceStep, error) {
		fence, err := c.currentFence(ctx)
		if err != nil {
			return lifecycle.WorkspaceStep{}, err
		}
		return decide(w, fence, now)
	})
	c.b.followWorkspace(ctx, step, c.Ticket)
	return step, err
}

// currentFence reads the claim's current fence; ErrLeaseLost.
func (c *Claim) currentFence(ctx context.Context) (uint64, error) {
	head, err := c.b.Head(ctx, c.Ticket, 0)
	if err != nil {
		return 0, err
	}
	if err := c.checkFence(&head.State); err != nil {
		return 0, err
	}
	return head.State.Fence, c.checkAccepted(head.State)
}

// Workspace reads the data that the handoffs of the claim's workflow share.
func (c *Claim) Workspace(ctx context.Context) (protocol.Workspace, error) {
	name, err := c.workspaceOf()
	if err != nil {
		return protocol.Workspace{}, err
	}
	return c.b.Workspace(ctx, name)
}

// SetVariables sets variables of the workspace. A *protocol.Error has the reason of a refusal: a
// name is outside the scopes of the agent (CodeScope), or a variable has another version
// (CodeConflict, with the current value).
func (c *Claim) SetVariables(ctx context.Context, set lifecycle.Setting) (protocol.Workspace, error) {
	var err error
	if set.Values, err = c.b.variables(ctx, set.Values); err != nil {
		return protocol.Workspace{}, err
	}
	profile, err := c.b.Profile(ctx, c.Agent)
	if err != nil && !errors.Is(err, ErrNotFound) { // a person has no profile
		return protocol.Workspace{}, err
	}
	for name := range set.Values {
		if !protocol.InScope(profile.Scopes, name) {
			return protocol.Workspace{}, protocol.Errorf(protocol.CodeScope, "variables."+name, "%s may only set %v", c.Agent, profile.Scopes)
		}
	}
	set.Ticket, set.By = c.Ticket, c.Agent
	step, err := c.updateShared(ctx, func(w protocol.Workspace, _ uint64, now time.Time) (lifecycle.WorkspaceStep, error) {
		return lifecycle.SetVariables(w, set, now)
	})
	return step.State, err
}

// shareResult sets the variables of a result in the workspace of its handoff, if it has one. It
// comes before the result, and is idempotent. A value over VariableBytesMax is passed on only with
// the handoff. The errors are those of SetVariables, and refuse the result.
func (c *Claim) shareResult(ctx context.Context, variables map[string]json.RawMessage) error {
	if c.lastHead().State.Workspace == "" {
		return nil
	}
	values := maps.Clone(variables)
	maps.DeleteFunc(values, func(_ string, value json.RawMessage) bool { return len(value) > protocol.VariableBytesMax })
	if len(values) == 0 {
		return nil
	}
	_, err := c.SetVariables(ctx, lifecycle.Setting{Values: values})
	if errors.Is(err, &protocol.Error{Code: protocol.CodeForbidden}) { // returns and escalations have no place there
		return nil
	}
	return err
}

// Lock requests locks during the work, and waits up to wait for them. They end with the attempt, or
// by Unlock. It returns a number that rises with each grant in the workspace, for tools that must
// distinguish an old lock from a new one. CodeLockBusy: another handoff has them; CodeDeadlock:
// that one waits for this.
func (c *Claim) Lock(ctx context.Context, wait time.Duration, paths ...protocol.LockPath) (seq uint64, err error) {
	for until := c.b.clock().Add(wait); ; {
		seq, waiting, err := c.TryLock(ctx, until.Sub(c.b.clock()), paths...)
		if !waiting {
			return seq, err
		}
		if err := pauseFor(ctx, lockPoll); err != nil {
			c.cancelWait(ctx)
			return 0, err
		}
	}
}

// TryLock is one step of Lock: waiting reports whether the request waits. Repeating the request
// keeps its place in the queue.
func (c *Claim) TryLock(ctx context.Context, wait time.Duration, paths ...protocol.LockPath) (seq uint64, waiting bool, err error) {
	clean, err := protocol.CleanLocks("locks", paths)
	if err != nil {
		return 0, false, err
	}
	asked := uint64(0)
	step, err := c.updateShared(ctx, func(w protocol.Workspace, fence uint64, now time.Time) (lifecycle.WorkspaceStep, error) {
		asked = fence
		return lifecycle.LockPaths(w, lifecycle.LockRequest{Ticket: c.Ticket, By: c.Agent, Fence: fence, Locks: clean, Wait: wait}, now)
	})
	if err != nil {
		return 0, false, err
	}
	w := step.State
	switch seq := grantedSeq(w, c.Ticket, clean); {
	case seq > 0:
		return seq, false, c.keepLocks(ctx, w.Name, asked)
	case w.WaitOf(c.Ticket) != nil:
		return 0, true, nil
	}
	return 0, false, protocol.Errorf(protocol.CodeLockBusy, "locks", "%s was not free in time", clean[0].Path)
}

// keepLocks returns locks that were granted to an attempt which was lost meanwhile.
func (c *Claim) keepLocks(ctx context.Context, name string, fence uint64) error {
	now, err := c.currentFence(ctx)
	if err == nil && now == fence || err != nil && !errors.Is(err, ErrLeaseLost) {
		return err
	}
	c.b.releaseFences(ctx, name, c.Ticket, 0)
	return fmt.Errorf("%w: the locks are released", ErrLeaseLost)
}

// grantedSeq returns the number of the last grant among the locks of a handoff that cover all of
// these paths; 0 if one is not covered.
func grantedSeq(w protocol.Workspace, ticket string, paths []protocol.LockPath) (seq uint64) {
	had := w.LocksOf(ticket)
	for _, path := range paths {
		own := uint64(0)
		for _, l := range had {
			if l.Includes(path) {
				own = max(own, l.Seq)
			}
		}
		if own == 0 {
			return 0
		}
		seq = max(seq, own)
	}
	return seq
}

func pauseFor(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// cancelWait ends a request for locks, also after ctx has ended.
func (c *Claim) cancelWait(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), conflictReadTimeout)
	defer cancel()
	_, err := c.updateShared(ctx, func(w protocol.Workspace, fence uint64, now time.Time) (lifecycle.WorkspaceStep, error) {
		return lifecycle.CancelWait(w, c.Ticket, fence, now)
	})
	if err != nil {
		c.b.log.Warn("request for locks not ended; it lapses", "ticket", c.Ticket, "err", err)
	}
}

// Unlock returns locks that were requested during the work; without a path all of them.
func (c *Claim) Unlock(ctx context.Context, paths ...protocol.LockPath) error {
	var clean []protocol.LockPath
	if len(paths) > 0 {
		var err error
		if clean, err = protocol.CleanLocks("locks", paths); err != nil {
			return err
		}
	}
	_, err := c.updateShared(ctx, func(w protocol.Workspace, fence uint64, now time.Time) (lifecycle.WorkspaceStep, error) {
		return lifecycle.UnlockPaths(w, c.Ticket, fence, clean, now)
	})
	return err
}
