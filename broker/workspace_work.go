package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// lockPoll is how often a holder that waits for locks reads its workspace.
const lockPoll = 100 * time.Millisecond

// workspaceOf names the workspace of a claim's handoff.
func (c *Claim) workspaceOf() (string, error) {
	name := c.lastHead().State.Workspace
	if name == "" {
		return "", protocol.Errorf(protocol.CodeForbidden, "workspace", "%s has no part in a workflow that was opened", c.Ticket)
	}
	return name, nil
}

// updateShared appends to the workspace of the claim's handoff, under its fence: that is read
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

// currentFence reads the fence that the claim has now; ErrLeaseLost.
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

// Workspace reads what the handoffs of the claim's workflow share.
func (c *Claim) Workspace(ctx context.Context) (protocol.Workspace, error) {
	name, err := c.workspaceOf()
	if err != nil {
		return protocol.Workspace{}, err
	}
	return c.b.Workspace(ctx, name)
}

// SetVariables sets variables of the workspace. A *protocol.Error says why not: a name is outside of the
// scopes of the agent (CodeScope), or a variable has another version (CodeConflict, with what stands).
func (c *Claim) SetVariables(ctx context.Context, set lifecycle.Setting) (protocol.Workspace, error) {
	var err error
	if set.Values, err = c.b.variables(ctx, set.Values); err != nil {
		return protocol.Workspace{}, err
	}
	profile, err := c.b.Profile(ctx, c.Agent)
	if err != nil && !errors.Is(err, ErrNotFound) { // a person has none
		return protocol.Workspace{}, err
	}
	for name := range set.Values {
		if !protocol.InScope(profile.Scopes, name) {
			return protocol.Workspace{}, protocol.Errorf(protocol.CodeScope, "variables."+name, "%s may set %v alone", c.Agent, profile.Scopes)
		}
	}
	set.Ticket, set.By = c.Ticket, c.Agent
	step, err := c.updateShared(ctx, func(w protocol.Workspace, _ uint64, now time.Time) (lifecycle.WorkspaceStep, error) {
		return lifecycle.SetVariables(w, set, now)
	})
	return step.State, err
}

// shareResult sets the variables of a result in the workspace of its handoff, where that is in one. It
// goes before the result, and does nothing a second time. A value over VariableBytesMax goes on with
// the handoff alone. The errors are those of SetVariables, and refuse the result.
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
	if errors.Is(err, &protocol.Error{Code: protocol.CodeForbidden}) { // a return and an escalation have no place there
		return nil
	}
	return err
}

// Lock asks for locks in the work, and waits for them as long as wait. They go with the attempt,
// or by Unlock. It returns a number that rises with each grant in the workspace, for tools that
// tell an old lock from a new one. CodeLockBusy: another handoff has them; CodeDeadlock: that one
// waits for this.
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

// TryLock is one step of Lock: it tells whether the request waits. The same request again goes on
// waiting in its place.
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

// keepLocks gives locks back that were granted to an attempt which was lost meanwhile.
func (c *Claim) keepLocks(ctx context.Context, name string, fence uint64) error {
	now, err := c.currentFence(ctx)
	if err == nil && now == fence || err != nil && !errors.Is(err, ErrLeaseLost) {
		return err
	}
	c.b.releaseFences(ctx, name, c.Ticket, 0)
	return fmt.Errorf("%w: what was locked is given back", ErrLeaseLost)
}

// grantedSeq is the number of the last grant among the locks of a handoff that include all of
// these; 0 where it has not all of them.
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

// Unlock gives locks back that were asked for in the work; without a path all of them.
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
