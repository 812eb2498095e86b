package broker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// fleetFresh is how long the settings of the fleet that were read serve the submissions of this
// process. A change by another process holds for what this one submits after that.
const fleetFresh = 10 * time.Second

// fleetCache remembers the settings of the fleet, and that there are none.
type fleetCache struct {
	mu    sync.Mutex
	fleet *protocol.Fleet // nil: none
	asked time.Time       // zero: not read yet
	reads uint64          // a change by this process makes those under way void
}

// lookup returns what is remembered. Where nothing is, the caller reads, and remembers that under
// the count that is returned.
func (c *fleetCache) lookup(now time.Time) (fleet *protocol.Fleet, known bool, count uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	age := now.Sub(c.asked)
	return c.fleet, !c.asked.IsZero() && age >= 0 && age < fleetFresh, c.reads
}

func (c *fleetCache) remember(fleet *protocol.Fleet, asked time.Time, count uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reads == count {
		c.fleet, c.asked = fleet, asked
	}
}

func (c *fleetCache) invalidate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads++
	c.asked = time.Time{}
}

// Fleet reads the settings of the fleet from the leader, and their revision: see Settings.
func (b *Broker) Fleet(ctx context.Context) (protocol.Fleet, uint64, error) {
	return b.settings.Fleet(ctx)
}

// PutFleet replaces the settings of the fleet if rev is still their revision, and returns the next
// one; ErrConflict. What this process submits behind it goes by the new settings.
func (b *Broker) PutFleet(ctx context.Context, fleet protocol.Fleet, rev uint64) (uint64, error) {
	if err := fleet.Validate(); err != nil {
		return 0, err
	}
	b.fleet.invalidate()
	defer b.fleet.invalidate()
	return b.settings.PutFleet(ctx, fleet, rev)
}

// recentFleet is the settings of the fleet as they were at most fleetFresh ago; nil is none.
// Settings that cannot be read count as none.
func (b *Broker) recentFleet(ctx context.Context) (*protocol.Fleet, error) {
	now := b.clock()
	fleet, known, count := b.fleet.lookup(now)
	if known {
		return fleet, nil
	}
	read, rev, err := b.settings.Fleet(ctx)
	var unreadable *protocol.Error
	switch {
	case errors.As(err, &unreadable):
		b.log.Warn("settings of the fleet not readable; the defaults hold", "rev", rev, "err", err)
		rev = 0
	case err != nil:
		return nil, err
	}
	if fleet = nil; rev != 0 {
		fleet = &read
	}
	b.fleet.remember(fleet, now, count)
	return fleet, nil
}

// noAgents is a directory without an agent.
var noAgents = &lifecycle.Directory{}

// withFleet is a part of the directory with the settings of the fleet.
func (b *Broker) withFleet(ctx context.Context, d *lifecycle.Directory) (*lifecycle.Directory, error) {
	fleet, err := b.recentFleet(ctx)
	if err != nil {
		return nil, err
	}
	return d.WithFleet(fleet), nil
}
