package brokertest

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// keyUse is the use of a key and its revision.
type keyUse struct {
	use protocol.KeyUse
	rev uint64
}

// copyOf returns a copy that shares nothing with the use.
func copyOf(use protocol.KeyUse) protocol.KeyUse {
	use.Places, use.Starts, use.Waiting = maps.Clone(use.Places), slices.Clone(use.Starts), slices.Clone(use.Waiting)
	return use
}

// KeyUse implements broker.Engine.
func (m *Memory) KeyUse(ctx context.Context, key string) (protocol.KeyUse, uint64, error) {
	if err := m.checkUsable(ctx); err != nil {
		return protocol.KeyUse{}, 0, fmt.Errorf("limit %s: %w", key, err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	k := m.s.directory.keys[key]
	return copyOf(k.use), k.rev, nil
}

// PutKeyUse implements broker.Engine.
func (m *Memory) PutKeyUse(ctx context.Context, key string, use protocol.KeyUse, rev uint64) (uint64, error) {
	if err := m.checkUsable(ctx); err != nil {
		return 0, fmt.Errorf("put limit %s: %w", key, err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	if k := m.s.directory.keys[key]; k.rev != rev {
		return 0, fmt.Errorf("limit %s after %d: %w", key, rev, broker.ErrConflict)
	}
	use.Key = key
	m.s.directory.keys[key] = keyUse{copyOf(use), rev + 1}
	return rev + 1, nil
}

// KeyUses implements broker.Engine.
func (m *Memory) KeyUses(ctx context.Context) ([]protocol.KeyUse, error) {
	if err := m.checkUsable(ctx); err != nil {
		return nil, fmt.Errorf("limits by key: %w", err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	var uses []protocol.KeyUse
	for _, key := range slices.Sorted(maps.Keys(m.s.directory.keys)) {
		uses = append(uses, copyOf(m.s.directory.keys[key].use))
	}
	return uses, nil
}
