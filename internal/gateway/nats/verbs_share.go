package natsgateway

import (
	"context"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// lock asks for locks once. A request that waits is answered so, and asked again by its client: no
// answer of the gateway is held back for it.
func (g *Gateway) lock(ctx context.Context, agent string, r *lockRequest) (any, error) {
	wait, err := protocol.CheckLockWait("wait_ms", r.WaitMS)
	if err != nil {
		return nil, err
	}
	return g.withClaim(ctx, agent, r.ref(), func(claim *broker.Claim, answer *claimAnswer) (err error) {
		answer.Seq, answer.Waiting, err = claim.TryLock(ctx, wait, r.Paths...)
		return err
	})
}

func (g *Gateway) unlock(ctx context.Context, agent string, r *lockRequest) (any, error) {
	return g.withClaim(ctx, agent, r.ref(), func(claim *broker.Claim, _ *claimAnswer) error { return claim.Unlock(ctx, r.Paths...) })
}

// vars sets variables and answers with the workspace.
func (g *Gateway) vars(ctx context.Context, agent string, r *varsRequest) (any, error) {
	return g.withClaim(ctx, agent, r.ref(), func(claim *broker.Claim, answer *claimAnswer) error {
		w, err := claim.Workspace(ctx)
		if err == nil && len(r.Values) > 0 {
			w, err = claim.SetVariables(ctx, lifecycle.Setting{Values: r.Values, IfVersion: r.IfVersion})
		}
		answer.Workspace = &w
		return err
	})
}
