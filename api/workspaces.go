package api

import (
	"context"
	"encoding/json"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Sharer shares a workspace with the other handoffs of its workflow, under the lease of one of
// them. If the handoff is not part of an opened workflow, the error has CodeForbidden.
type Sharer interface {
	// Lock requests locks on paths, and waits for them. They are released by Unlock or with the end
	// of the attempt. It returns a number that increases with each grant of the workspace.
	Lock(ctx context.Context, request Lock) (seq uint64, err error)
	// Unlock releases locks; without paths it releases all of them.
	Unlock(ctx context.Context, lease string, paths []protocol.LockPath) (protocol.State, error)
	// SetVariables sets variables, and returns the workspace.
	SetVariables(ctx context.Context, lease string, set SetVariables) (protocol.Workspace, error)
	// HeldWorkspace returns the workspace of a handoff that the caller holds.
	HeldWorkspace(ctx context.Context, lease string) (protocol.Workspace, error)
}

// Lock is the request to lock paths.
type Lock struct {
	Lease string
	Paths []protocol.LockPath
	Wait  time.Duration // 0 does not wait
}

// Validate checks the request. Lock calls it first.
func (r Lock) Validate() error {
	if r.Wait < 0 || r.Wait.Milliseconds() > protocol.LockWaitMaxMS {
		return protocol.Errorf(protocol.CodeInvalid, "wait", "is %v; it is from 0 to %v", r.Wait, explain.Millis(protocol.LockWaitMaxMS))
	}
	_, err := protocol.CleanLocks("locks", r.Paths)
	return err
}

// SetVariables is the request to set variables: all of them or none.
type SetVariables struct {
	Values map[string]json.RawMessage `json:"values"`
	// IfVersion, if not nil, is the expected version of each of them; 0 means that it does not
	// exist.
	IfVersion *int `json:"if_version,omitempty"`
}

// A workspace has the data that the handoffs of a workflow share: variables, locks on paths, and
// the limit of their number.

// OpenWorkspace creates a workspace, or changes the limits of an open one.
func (c *Session) OpenWorkspace(ctx context.Context, name string, limits protocol.WorkspaceLimits) (protocol.Workspace, error) {
	return unless(c.may("OpenWorkspace"), func() (protocol.Workspace, error) { return c.s.b.OpenWorkspace(ctx, name, limits, c.caller.Name) })
}

// CloseWorkspace prevents further handoffs from joining a workspace. Open ones continue.
func (c *Session) CloseWorkspace(ctx context.Context, name string) (protocol.Workspace, error) {
	return unless(c.may("CloseWorkspace"), func() (protocol.Workspace, error) { return c.s.b.CloseWorkspace(ctx, name, c.caller.Name) })
}

// Workspace returns one workspace.
func (c *Session) Workspace(ctx context.Context, name string) (protocol.Workspace, error) {
	return unless(c.may("Workspace"), func() (protocol.Workspace, error) { return c.s.b.Workspace(ctx, name) })
}

// Workspaces returns all workspaces, sorted by name.
func (c *Session) Workspaces(ctx context.Context) ([]protocol.Workspace, error) {
	return allowed(ctx, c, "Workspaces", c.s.b.Workspaces)
}

// ResolveVariables sets variables from outside of the work, for example to settle contradictory
// values.
func (c *Session) ResolveVariables(ctx context.Context, name string, set SetVariables) (protocol.Workspace, error) {
	return unless(c.may("ResolveVariables"), func() (protocol.Workspace, error) {
		return c.s.b.ResolveVariables(ctx, name, lifecycle.Setting{By: c.caller.Name, Values: set.Values, IfVersion: set.IfVersion})
	})
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
