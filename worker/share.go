package worker

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Lock keeps other handoffs of the workflow from paths, and waits for them as long as wait. A path
// with a slash at its end covers what is below. The locks go with this attempt, or by Unlock. It
// returns a number that rises with each grant of the workspace. A *protocol.Error says why not:
// lock_busy, or deadlock.
func (h Handoff) Lock(ctx context.Context, wait time.Duration, paths ...string) (seq uint64, err error) {
	err = h.share("locks", func(c Claim) (err error) {
		seq, err = c.Lock(ctx, wait, lockPaths(paths)...)
		return err
	})
	return seq, err
}

// Unlock gives back what Lock has locked; no path is all of it.
func (h Handoff) Unlock(ctx context.Context, paths ...string) error {
	return h.share("locks", func(c Claim) error { return c.Unlock(ctx, lockPaths(paths)...) })
}

// Workspace reads what the handoffs of the workflow share.
func (h Handoff) Workspace(ctx context.Context) (w protocol.Workspace, err error) {
	err = h.share("workspace", func(c Claim) (err error) {
		w, err = c.Workspace(ctx)
		return err
	})
	return w, err
}

// SetVariables sets variables of the workflow, all of them or none. Where ifVersion is not nil each
// has to have that version; else the error has CodeConflict and names the value that stands.
func (h Handoff) SetVariables(ctx context.Context, values map[string]json.RawMessage, ifVersion *int) error {
	return h.share("variables", func(c Claim) error {
		_, err := c.SetVariables(ctx, lifecycle.Setting{Values: values, IfVersion: ifVersion})
		return err
	})
}

// share does something with the claim in its workspace.
func (h Handoff) share(field string, do func(Claim) error) error {
	if h.r == nil {
		return protocol.Errorf(protocol.CodeForbidden, field, "%s has no part in a workflow that was opened", h.Ticket)
	}
	claim := h.r.currentClaim()
	if claim == nil {
		return protocol.Errorf(protocol.CodeIllegal, field, "the handoff is not accepted yet")
	}
	err := do(claim)
	if errors.Is(err, broker.ErrLeaseLost) {
		h.r.cancel(err)
	}
	return err
}

func lockPaths(paths []string) (locks []protocol.LockPath) {
	for _, path := range paths {
		locks = append(locks, protocol.LockPath{Path: path})
	}
	return locks
}
