package natsgateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// nearest is a Client that prefers the gateway that answered last: it has the claim cached.
type nearest struct {
	*Client
	mu      sync.Mutex
	gateway string
}

// Do implements api.Gateway.
func (n *nearest) Do(ctx context.Context, operation string, wait time.Duration, request []byte) (answer []byte, err error) {
	n.mu.Lock()
	gateway := n.gateway
	n.mu.Unlock()
	var raw json.RawMessage
	by, err := n.call(ctx, gateway, operation, false, wait, json.RawMessage(request), &raw)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gateway = by
	return raw, nil
}

// claim is a handoff that this client holds: worker.Claim by the operations and its lease.
type claim struct {
	ops     api.AgentOperations
	lease   string
	returns []protocol.Return // that came with it

	mu    sync.Mutex      // guards state; never held across a request
	state *protocol.State // never changed
}

func newClaim(c *Client, gateway string, answer *claimAnswer) *claim {
	return &claim{ops: api.Over(&nearest{Client: c, gateway: gateway}), lease: answer.Lease, returns: answer.Returns, state: answer.State}
}

// LastState implements worker.Claim.
func (c *claim) LastState() *protocol.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// reported keeps the state that a report is answered with.
func (c *claim) reported(state protocol.State, err error) error {
	if err != nil {
		return lost(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = &state
	return nil
}

// lost is the error of a report: a lease that is not valid is lost for a worker.
func lost(err error) error {
	if errors.Is(err, &protocol.Error{Code: protocol.CodeLeaseInvalid}) {
		return fmt.Errorf("%w: %w", broker.ErrLeaseLost, err)
	}
	return err
}

func (c *claim) Beat(ctx context.Context) (broker.Signal, error) {
	beat, err := c.ops.Heartbeat(ctx, api.Heartbeat{Lease: c.lease})
	return beat.Signal, c.reported(beat.State, err)
}

func (c *claim) Acknowledge(ctx context.Context, ack protocol.Ack, _ bool) error {
	return c.reported(c.ops.Acknowledge(ctx, c.lease, ack))
}

func (c *claim) Progress(ctx context.Context, progress protocol.Progress) error {
	return c.reported(c.ops.Progress(ctx, c.lease, progress))
}

func (c *claim) Spend(ctx context.Context, usage protocol.Usage) error {
	return c.reported(c.ops.Spend(ctx, c.lease, usage))
}

func (c *claim) Decide(ctx context.Context, decision protocol.WorkDecision) error {
	return c.reported(c.ops.Decide(ctx, c.lease, decision))
}

func (c *claim) Extend(ctx context.Context, by time.Duration, reason string) error {
	beat, err := c.ops.Heartbeat(ctx, api.Heartbeat{Lease: c.lease, Extend: by, Reason: reason})
	return c.reported(beat.State, err)
}

func (c *claim) Complete(ctx context.Context, result protocol.Result, _ ...broker.Child) error {
	return c.reported(c.ops.Complete(ctx, c.lease, result))
}

func (c *claim) Fail(ctx context.Context, f broker.Failure) error {
	return c.reported(c.ops.Fail(ctx, c.lease, f))
}

func cutReason(s string) string { return protocol.CutText(s, protocol.ReasonBytesMax) }

func (c *claim) Release(ctx context.Context, reason string, partial *protocol.Result) error {
	return c.reported(c.ops.Release(ctx, c.lease, cutReason(reason), partial))
}

func (c *claim) HandOff(ctx context.Context, child broker.Child) (ticket string, err error) {
	made, err := c.ops.HandOff(ctx, api.HandOff{Lease: c.lease, Package: child.Package, Nth: child.Nth})
	return made.Ticket, c.reported(made.Parent, err)
}

func (c *claim) Suspend(ctx context.Context, children ...int) (suspended bool, err error) {
	state, tickets := c.LastState(), make([]string, len(children))
	for i, n := range children {
		tickets[i] = state.ChildTicket(n)
	}
	err = c.reported(c.ops.Await(ctx, c.lease, tickets))
	if errors.Is(err, api.ErrAwaited) {
		return false, nil
	}
	return err == nil, err
}

func (c *claim) Escalate(ctx context.Context, rationale, assessment string) error {
	return c.reported(c.ops.Escalate(ctx, c.lease, cutReason(rationale), cutReason(assessment)))
}

func (c *claim) Answer(ctx context.Context, answer protocol.Answer) error {
	return c.reported(c.ops.AnswerHeld(ctx, c.lease, answer))
}

func (c *claim) RollBack(ctx context.Context, reason string, partial *protocol.Result) error {
	return c.reported(c.ops.RollBackHeld(ctx, c.lease, cutReason(reason), partial))
}

// WorkerLease implements worker.Claim. The key of a worker's holder stays with it.
func (c *claim) WorkerLease() string { return "" }

// Returns implements worker.Claim. An end that did not come with the claim is read.
func (c *claim) Returns(ctx context.Context) ([]protocol.Return, error) {
	state := c.LastState()
	if len(c.returns) > 0 || state.Children == nil {
		return c.returns, nil
	}
	var all []protocol.Return
	for _, n := range state.Children.Received.Numbers() {
		ret, err := c.ops.Return(ctx, state.ChildTicket(n))
		if err != nil {
			return nil, err
		}
		all = append(all, ret)
	}
	return all, nil
}

func (c *claim) Lock(ctx context.Context, wait time.Duration, paths ...protocol.LockPath) (uint64, error) {
	seq, err := c.ops.Lock(ctx, api.Lock{Lease: c.lease, Paths: paths, Wait: wait})
	return seq, lost(err)
}

func (c *claim) Unlock(ctx context.Context, paths ...protocol.LockPath) error {
	return c.reported(c.ops.Unlock(ctx, c.lease, paths))
}

func (c *claim) Workspace(ctx context.Context) (protocol.Workspace, error) {
	w, err := c.ops.HeldWorkspace(ctx, c.lease)
	return w, lost(err)
}

func (c *claim) SetVariables(ctx context.Context, set lifecycle.Setting) (protocol.Workspace, error) {
	w, err := c.ops.SetVariables(ctx, c.lease, api.SetVariables{Values: set.Values, IfVersion: set.IfVersion})
	return w, lost(err)
}
