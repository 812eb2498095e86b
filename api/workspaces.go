package api

import (
	"context"
	"encoding/json"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Workspaces has what the handoffs of a workflow share: how many there may be, locks on paths, and
// variables.
type Workspaces interface {
	// OpenWorkspace makes a workspace, or gives one that is open other limits.
	OpenWorkspace(ctx context.Context, name string, limits protocol.WorkspaceLimits) (protocol.Workspace, error)
	// CloseWorkspace lets no handoff join a workspace any more. Those that are open go on.
	CloseWorkspace(ctx context.Context, name string) (protocol.Workspace, error)
	// Workspace returns one workspace, and Workspaces all of them, by their names.
	Workspace(ctx context.Context, name string) (protocol.Workspace, error)
	Workspaces(ctx context.Context) ([]protocol.Workspace, error)
	// ResolveVariables settles variables from outside of the work, such as values that
	// contradict each other.
	ResolveVariables(ctx context.Context, name string, set SetVariables) (protocol.Workspace, error)
}

// Sharer shares a workspace with the other handoffs of its workflow, under the lease of one of
// them. Without a part in a workflow that was opened the error has CodeForbidden.
type Sharer interface {
	// Lock asks for locks on paths, and waits for them. They go with the attempt, or by Unlock.
	// It returns a number that rises with each grant of the workspace.
	Lock(ctx context.Context, request Lock) (seq uint64, err error)
	// Unlock gives locks back that Lock has granted; no path is all of them.
	Unlock(ctx context.Context, lease string, paths []protocol.LockPath) (protocol.State, error)
	// SetVariables sets variables, and returns the workspace.
	SetVariables(ctx context.Context, lease string, set SetVariables) (protocol.Workspace, error)
	// HeldWorkspace returns the workspace of a handoff that the caller holds.
	HeldWorkspace(ctx context.Context, lease string) (protocol.Workspace, error)
}

// Lock says what is locked, and how long to wait for it.
type Lock struct {
	Lease string
	Paths []protocol.LockPath
	Wait  time.Duration // 0 is not at all
}

// Validate checks the request, as Lock does first.
func (r Lock) Validate() error {
	if r.Wait < 0 || r.Wait.Milliseconds() > protocol.LockWaitMaxMS {
		return protocol.Errorf(protocol.CodeInvalid, "wait", "is %v; it is from 0 to %v", r.Wait, explain.Millis(protocol.LockWaitMaxMS))
	}
	_, err := protocol.CleanLocks("locks", r.Paths)
	return err
}

// SetVariables says which variables are set. All of them are, or none.
type SetVariables struct {
	Values map[string]json.RawMessage
	// IfVersion, if not nil, is the version that each of them has; 0 is not there.
	IfVersion *int
}

// OpenWorkspace implements Workspaces.
func (c *Session) OpenWorkspace(ctx context.Context, name string, limits protocol.WorkspaceLimits) (protocol.Workspace, error) {
	if err := c.may("OpenWorkspace"); err != nil {
		return protocol.Workspace{}, err
	}
	return c.s.b.OpenWorkspace(ctx, name, limits, c.caller.Name)
}

// CloseWorkspace implements Workspaces.
func (c *Session) CloseWorkspace(ctx context.Context, name string) (protocol.Workspace, error) {
	if err := c.may("CloseWorkspace"); err != nil {
		return protocol.Workspace{}, err
	}
	return c.s.b.CloseWorkspace(ctx, name, c.caller.Name)
}

// Workspace implements Workspaces.
func (c *Session) Workspace(ctx context.Context, name string) (protocol.Workspace, error) {
	if err := c.may("Workspace"); err != nil {
		return protocol.Workspace{}, err
	}
	return c.s.b.Workspace(ctx, name)
}

// Workspaces implements Workspaces.
func (c *Session) Workspaces(ctx context.Context) ([]protocol.Workspace, error) {
	if err := c.may("Workspaces"); err != nil {
		return nil, err
	}
	return c.s.b.Workspaces(ctx)
}

// ResolveVariables implements Workspaces.
func (c *Session) ResolveVariables(ctx context.Context, name string, set SetVariables) (protocol.Workspace, error) {
	if err := c.may("ResolveVariables"); err != nil {
		return protocol.Workspace{}, err
	}
	return c.s.b.ResolveVariables(ctx, name, lifecycle.Setting{By: c.caller.Name, Values: set.Values, IfVersion: set.IfVersion})
}

// Lock implements Sharer.
func (c *Session) Lock(ctx context.Context, request Lock) (seq uint64, err error) {
	if err := request.Validate(); err != nil {
		return 0, err
	}
	_, err = c.report(ctx, "Lock", request.Lease, func(claim *broker.Claim) (err error) {
		seq, err = claim.Lock(ctx, request.Wait, request.Paths...)
		return err
	})
	return seq, err
}

// Unlock implements Sharer.
func (c *Session) Unlock(ctx context.Context, lease string, paths []protocol.LockPath) (protocol.State, error) {
	return c.report(ctx, "Unlock", lease, func(claim *broker.Claim) error { return claim.Unlock(ctx, paths...) })
}

// SetVariables implements Sharer.
func (c *Session) SetVariables(ctx context.Context, lease string, set SetVariables) (w protocol.Workspace, err error) {
	_, err = c.report(ctx, "SetVariables", lease, func(claim *broker.Claim) (err error) {
		w, err = claim.SetVariables(ctx, lifecycle.Setting{Values: set.Values, IfVersion: set.IfVersion})
		return err
	})
	return w, err
}

// HeldWorkspace implements Sharer.
func (c *Session) HeldWorkspace(ctx context.Context, lease string) (w protocol.Workspace, err error) {
	_, err = c.report(ctx, "HeldWorkspace", lease, func(claim *broker.Claim) (err error) {
		w, err = claim.Workspace(ctx)
		return err
	})
	return w, err
}
