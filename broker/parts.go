package broker

import (
	"context"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// What a Broker lets its callers have of the engine as it is: reads of the ledger and of the
// queues, and the presence of agents. Nothing here appends.

var _ LedgerReader = (*Broker)(nil)

// Last reads the newest entry of a handoff: see LedgerReader.
func (b *Broker) Last(ctx context.Context, ticket string, min uint64) (Entry, error) {
	return b.ledger.Last(ctx, ticket, min)
}

// Next reads the first entry of a handoff behind a sequence: see LedgerReader.
func (b *Broker) Next(ctx context.Context, ticket string, after uint64) (Entry, error) {
	return b.ledger.Next(ctx, ticket, after)
}

// Since reads the first entry of the ledger from an instant on: see LedgerReader.
func (b *Broker) Since(ctx context.Context, at time.Time) (Entry, error) {
	return b.ledger.Since(ctx, at)
}

// Heads calls fn with the last entry of every handoff: see LedgerReader.
func (b *Broker) Heads(ctx context.Context, fn func(Entry) error) error {
	return b.ledger.Heads(ctx, fn)
}

// Entries calls fn with every entry from a sequence on: see LedgerReader.
func (b *Broker) Entries(ctx context.Context, from uint64, fn func(Entry) error) error {
	return b.ledger.Entries(ctx, from, fn)
}

// LedgerInfo reads which ledger it is and how far it goes: see LedgerReader.
func (b *Broker) LedgerInfo(ctx context.Context) (LedgerInfo, error) { return b.ledger.LedgerInfo(ctx) }

// Tail calls fn with every entry from a sequence on, and with new ones: see LedgerReader.
func (b *Broker) Tail(ctx context.Context, from uint64, fn func(Entry) error) error {
	return b.ledger.Tail(ctx, from, fn)
}

// Feed hints that a handoff has a new head: see Ledger.
func (b *Broker) Feed(ctx context.Context, ticket string) (hints <-chan uint64, stop func(), err error) {
	return b.ledger.Feed(ctx, ticket)
}

// Blob reads a body that lies apart: see Blobs.
func (b *Broker) Blob(ctx context.Context, ref protocol.BlobRef) ([]byte, error) {
	return b.blobs.Blob(ctx, ref)
}

// EnsureQueue makes sure that the agent's queue can be pulled from: see Queue.
func (b *Broker) EnsureQueue(ctx context.Context, agent string) error {
	return b.queue.EnsureQueue(ctx, agent)
}

// QueueDepth counts the offers in an agent's queue: see Queue.
func (b *Broker) QueueDepth(ctx context.Context, agent string) (int, error) {
	return b.queue.QueueDepth(ctx, agent)
}

// Queues tells how the lanes of all queues stand: see Queue.
func (b *Broker) Queues(ctx context.Context) ([]QueueStatus, error) { return b.queue.Queues(ctx) }

// Holder reads a holder that is present: see Directory.
func (b *Broker) Holder(ctx context.Context, id string) (protocol.Holder, error) {
	return b.directory.Holder(ctx, id)
}

// RemoveHolder ends a holder's presence at once: see Directory.
func (b *Broker) RemoveHolder(ctx context.Context, id string) error {
	return b.directory.RemoveHolder(ctx, id)
}

// Reconnected receives after the connection to the engine came back: see Bus.
func (b *Broker) Reconnected(ctx context.Context) <-chan struct{} { return b.bus.Reconnected(ctx) }

// Ask asks the process that serves a verb: see Bus.
func (b *Broker) Ask(ctx context.Context, verb string, question []byte) ([]byte, error) {
	return b.bus.Ask(ctx, verb, question)
}
