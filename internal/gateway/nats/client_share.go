package natsgateway

import (
	"context"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// lockPoll is how often a client asks for a lock that it waits for.
const lockPoll = 250 * time.Millisecond

// Lock implements worker.Claim.
func (c *claim) Lock(ctx context.Context, wait time.Duration, paths ...protocol.LockPath) (uint64, error) {
	for until := time.Now().Add(wait); ; {
		answer, err := c.ask(ctx, verbLock, &lockRequest{Paths: paths, WaitMS: max(0, time.Until(until)).Milliseconds()})
		if err != nil || !answer.Waiting {
			if err != nil {
				return 0, err
			}
			return answer.Seq, nil
		}
		again := time.NewTimer(lockPoll)
		select {
		case <-ctx.Done():
			again.Stop()
			return 0, ctx.Err() // the request lapses with its time
		case <-again.C:
		}
	}
}

// Unlock implements worker.Claim.
func (c *claim) Unlock(ctx context.Context, paths ...protocol.LockPath) error {
	return c.send(ctx, verbUnlock, &lockRequest{Paths: paths})
}

// Workspace implements worker.Claim.
func (c *claim) Workspace(ctx context.Context) (protocol.Workspace, error) {
	return c.vars(ctx, &varsRequest{})
}

// SetVariables implements worker.Claim.
func (c *claim) SetVariables(ctx context.Context, set lifecycle.Setting) (protocol.Workspace, error) {
	if err := protocol.CheckVariables(set.Values); err != nil {
		return protocol.Workspace{}, err
	}
	return c.vars(ctx, &varsRequest{Values: set.Values, IfVersion: set.IfVersion})
}

func (c *claim) vars(ctx context.Context, request *varsRequest) (protocol.Workspace, error) {
	answer, err := c.ask(ctx, verbVars, request)
	if err != nil || answer.Workspace == nil {
		return protocol.Workspace{}, err
	}
	return *answer.Workspace, nil
}

var _ api.Sharer = (*Client)(nil)

// Lock implements api.Sharer.
func (c *Client) Lock(ctx context.Context, r api.Lock) (seq uint64, err error) {
	if err := r.Validate(); err != nil {
		return 0, err
	}
	_, err = c.report(ctx, r.Lease, func(claim *claim) (err error) {
		seq, err = claim.Lock(ctx, r.Wait, r.Paths...)
		return err
	})
	return seq, err
}

// Unlock implements api.Sharer.
func (c *Client) Unlock(ctx context.Context, lease string, paths []protocol.LockPath) (protocol.State, error) {
	return c.report(ctx, lease, func(claim *claim) error { return claim.Unlock(ctx, paths...) })
}

// SetVariables implements api.Sharer.
func (c *Client) SetVariables(ctx context.Context, lease string, set api.SetVariables) (w protocol.Workspace, err error) {
	_, err = c.report(ctx, lease, func(claim *claim) (err error) {
		w, err = claim.SetVariables(ctx, lifecycle.Setting{Values: set.Values, IfVersion: set.IfVersion})
		return err
	})
	return w, err
}

// HeldWorkspace implements api.Sharer.
func (c *Client) HeldWorkspace(ctx context.Context, lease string) (w protocol.Workspace, err error) {
	_, err = c.report(ctx, lease, func(claim *claim) (err error) {
		w, err = claim.Workspace(ctx)
		return err
	})
	return w, err
}
