package api

import (
	"context"
	"errors"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Fleet is the settings that hold for all agents, and which revision of them.
type Fleet struct {
	protocol.Fleet
	Revision uint64 `json:"revision"` // 0: none were ever put
}

// Fleet implements Directory.
func (c *Session) Fleet(ctx context.Context) (Fleet, error) {
	if err := c.may("Fleet"); err != nil {
		return Fleet{}, err
	}
	fleet, rev, err := c.s.b.Fleet(ctx)
	return Fleet{fleet, rev}, err
}

// PutFleet implements Directory.
func (c *Session) PutFleet(ctx context.Context, fleet Fleet) (Fleet, error) {
	if err := c.may("PutFleet"); err != nil {
		return fleet, err
	}
	fleet.UpdatedAt = time.Now().UTC().Truncate(time.Millisecond)
	rev, err := c.s.b.PutFleet(ctx, fleet.Fleet, fleet.Revision)
	if errors.Is(err, broker.ErrConflict) {
		return fleet, protocol.Errorf(protocol.CodeConflict, "revision", "is %d, and another change came first; read the settings again", fleet.Revision)
	}
	fleet.Revision = rev
	return fleet, err
}
