package cli

import (
	"cmp"
	"context"
	"errors"

	"github.com/google/uuid"

	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/protocol"
)

// submitThroughGateway submits as the source of the package.
func (a *app) submitThroughGateway(ctx context.Context, pkg protocol.Package, o *submitOptions) error {
	if pkg.Source == "" {
		return usagef("--gateway needs to know which agent asks: set HANDOFF_AGENT, or give --from")
	}
	given := pkg.CreatedAt
	pkg.Key = cmp.Or(pkg.Key, uuid.NewString()) // so that it may be sent again
	prepared, err := a.prepare(ctx, pkg)
	if err != nil {
		return err
	}
	if prepared.Redacted > 0 {
		a.notef("handoff: secrets taken out of the package before it is sent: %d\n", prepared.Redacted)
	}
	sent, err := protocol.DecodePackage(prepared.Whole)
	if err != nil {
		return err
	}
	// The same package sent again later is the same: its time is the gateway's to set, and
	// so is a priority that it takes over from its parent.
	sent.Priority = pkg.Priority
	sent.CreatedAt, sent.TraceParent, sent.TraceState = given, pkg.TraceParent, pkg.TraceState
	s, done, err := a.source(ctx, true, pkg.Source)
	if err != nil {
		return err
	}
	defer done()
	var state protocol.State
	err = a.ask(ctx, func(ctx context.Context) (err error) {
		state, err = s.Submit(ctx, sent)
		return err
	})
	if err != nil && !is[*protocol.Error](err) && !errors.Is(err, natsgateway.ErrNobody) {
		err = &unknownError{err}
	}
	if err != nil {
		return err
	}
	o.orRun.placed = true
	return a.submitted(ctx, s, state, o.limit)
}
