package brokertest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// CountingEngine counts the requests to an engine. With it a test notices when an operation costs
// more.
type CountingEngine struct {
	broker.Engine
	mu    sync.Mutex
	calls map[string]int
}

// NewCountingEngine counts the requests to an engine.
func NewCountingEngine(e broker.Engine) *CountingEngine {
	return &CountingEngine{Engine: e, calls: map[string]int{}}
}

// TakeCounts returns the requests since its last call in the order of their names, such as
// "append 2, last 1".
func (c *CountingEngine) TakeCounts() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(c.calls)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, c.calls[name]))
	}
	clear(c.calls)
	return strings.Join(parts, ", ")
}

func (c *CountingEngine) count(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[name]++
}

// Append implements broker.Engine.
func (c *CountingEngine) Append(ctx context.Context, ticket string, after uint64, id string, says lifecycle.Attention, body []byte) (uint64, error) {
	c.count("append")
	return c.Engine.Append(ctx, ticket, after, id, says, body)
}

// Last implements broker.Engine.
func (c *CountingEngine) Last(ctx context.Context, ticket string, min uint64) (broker.Entry, error) {
	c.count("last")
	return c.Engine.Last(ctx, ticket, min)
}

// Next implements broker.Engine.
func (c *CountingEngine) Next(ctx context.Context, ticket string, after uint64) (broker.Entry, error) {
	c.count("next")
	return c.Engine.Next(ctx, ticket, after)
}

// PutOffer implements broker.Engine.
func (c *CountingEngine) PutOffer(ctx context.Context, key broker.OfferKey, body []byte) error {
	c.count("offer")
	return c.Engine.PutOffer(ctx, key, body)
}

// Arm implements broker.Engine.
func (c *CountingEngine) Arm(ctx context.Context, ticket string, seq uint64, at time.Time) error {
	c.count("arm")
	return c.Engine.Arm(ctx, ticket, seq, at)
}

// PublishOutbox implements broker.Engine. Each entry counts.
func (c *CountingEngine) PublishOutbox(ctx context.Context, entries []broker.OutboxEntry) []error {
	announce := func(ctx context.Context, w broker.WakeUp) error {
		return c.Engine.PublishOutbox(ctx, []broker.OutboxEntry{{WakeUp: w}})[0]
	}
	return PublishOneByOne(ctx, c, announce, entries)
}

// Profile implements broker.Engine.
func (c *CountingEngine) Profile(ctx context.Context, agent string) (protocol.Profile, error) {
	c.count("profile")
	return c.Engine.Profile(ctx, agent)
}

// Holder implements broker.Engine.
func (c *CountingEngine) Holder(ctx context.Context, id string) (protocol.Holder, error) {
	c.count("holder")
	return c.Engine.Holder(ctx, id)
}

// Slots implements broker.Engine.
func (c *CountingEngine) Slots(ctx context.Context, agent string) (protocol.Slots, uint64, error) {
	c.count("slots")
	return c.Engine.Slots(ctx, agent)
}

// PutSlots implements broker.Engine.
func (c *CountingEngine) PutSlots(ctx context.Context, agent string, slots protocol.Slots, rev uint64) (uint64, error) {
	c.count("put slots")
	return c.Engine.PutSlots(ctx, agent, slots, rev)
}

// Health implements broker.Engine.
func (c *CountingEngine) Health(ctx context.Context, agent string) (protocol.Health, uint64, error) {
	c.count("health")
	return c.Engine.Health(ctx, agent)
}

// PutHealth implements broker.Engine.
func (c *CountingEngine) PutHealth(ctx context.Context, agent string, h protocol.Health, rev uint64) (uint64, error) {
	c.count("put health")
	return c.Engine.PutHealth(ctx, agent, h, rev)
}

// Fleet implements broker.Engine.
func (c *CountingEngine) Fleet(ctx context.Context) (protocol.Fleet, uint64, error) {
	c.count("fleet")
	return c.Engine.Fleet(ctx)
}

// Directory implements broker.Engine. Only its first call in a process is a request: it starts a
// watch.
func (c *CountingEngine) Directory(ctx context.Context) (*lifecycle.Directory, error) {
	c.count("directory")
	return c.Engine.Directory(ctx)
}

// PutBlob implements broker.Engine.
func (c *CountingEngine) PutBlob(ctx context.Context, body []byte) (protocol.BlobRef, error) {
	c.count("put blob")
	return c.Engine.PutBlob(ctx, body)
}

// Blob implements broker.Engine.
func (c *CountingEngine) Blob(ctx context.Context, ref protocol.BlobRef) ([]byte, error) {
	c.count("blob")
	return c.Engine.Blob(ctx, ref)
}

// HasBlob implements broker.Engine.
func (c *CountingEngine) HasBlob(ctx context.Context, ref protocol.BlobRef) error {
	c.count("has blob")
	return c.Engine.HasBlob(ctx, ref)
}

// WorkspaceHead implements broker.Engine.
func (c *CountingEngine) WorkspaceHead(ctx context.Context, id string) (broker.WorkspaceEntry, error) {
	c.count("workspace")
	return c.Engine.WorkspaceHead(ctx, id)
}

// AppendWorkspace implements broker.Engine.
func (c *CountingEngine) AppendWorkspace(ctx context.Context, id string, after uint64, record string, body []byte) (uint64, error) {
	c.count("append workspace")
	return c.Engine.AppendWorkspace(ctx, id, after, record, body)
}
