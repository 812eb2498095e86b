package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Session has the operations that a worker calls: those of an *api.Session in this process, or of
// the client of a gateway. It is safe for concurrent use.
type Session interface {
	api.AgentOperations
	// Reconnected receives a value after each reconnection; several unread ones are one.
	Reconnected(ctx context.Context) <-chan struct{}
}

var _ Session = (*api.Session)(nil)

// seen keeps the state that a report is answered with.
func (r *run) seen(state protocol.State, err error) error {
	if err == nil {
		r.seenState.Store(&state)
	}
	return lost(err)
}

// lost is the error of a report: a lease that is not valid is lost for a worker.
func lost(err error) error {
	if err != nil && errors.Is(err, &protocol.Error{Code: protocol.CodeLeaseInvalid}) {
		return fmt.Errorf("%w: %w", broker.ErrLeaseLost, err)
	}
	return err
}

// last is the error of a report that ends the attempt. Its state is of no use.
func last(_ protocol.State, err error) error { return lost(err) }

// beatClaim keeps the lease, and reads the requests of the ledger.
func (r *run) beatClaim(ctx context.Context) (broker.Signal, error) {
	beat, err := r.w.session.Heartbeat(ctx, api.Heartbeat{Lease: r.held.Lease})
	return beat.Signal, r.seen(beat.State, err)
}
