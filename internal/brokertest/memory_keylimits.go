package brokertest

import (
	"context"
	"maps"
	"slices"

	"github.com/agenthandoff/handoff/protocol"
)

// copyOf returns a copy that shares nothing with the use.
func copyOf(use protocol.KeyUse) protocol.KeyUse {
	use.Places, use.Starts, use.Waiting = maps.Clone(use.Places), slices.Clone(use.Starts), slices.Clone(use.Waiting)
	return use
}

// KeyUse implements broker.Engine.
func (m *Memory) KeyUse(ctx context.Context, key string) (use protocol.KeyUse, rev uint64, err error) {
	err = m.with(ctx, "limit "+key, func(d *directory) error {
		use, rev = copyOf(d.keys[key].value), d.keys[key].rev
		return nil
	})
	return use, rev, err
}

// PutKeyUse implements broker.Engine.
func (m *Memory) PutKeyUse(ctx context.Context, key string, use protocol.KeyUse, rev uint64) (next uint64, err error) {
	err = m.with(ctx, "put limit "+key, func(d *directory) (err error) {
		use.Key = key
		next, err = replace(d.keys, key, copyOf(use), rev)
		return err
	})
	return next, err
}

// KeyUses implements broker.Engine.
func (m *Memory) KeyUses(ctx context.Context) (uses []protocol.KeyUse, err error) {
	err = m.with(ctx, "limits by key", func(d *directory) error {
		for _, key := range slices.Sorted(maps.Keys(d.keys)) {
			uses = append(uses, copyOf(d.keys[key].value))
		}
		return nil
	})
	return uses, err
}
