package brokertest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
)

// workspaceAppend is one append of a workspace.
type workspaceAppend struct {
	broker.WorkspaceEntry
	record string
}

// WithoutWorkspaces makes the engine one that keeps no workspaces.
func (m *Memory) WithoutWorkspaces() {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	m.s.noWorkspaces = true
}

// WorkspaceHead implements broker.Engine.
func (m *Memory) WorkspaceHead(ctx context.Context, id string) (broker.WorkspaceEntry, error) {
	if err := m.checkUsable(ctx); err != nil {
		return broker.WorkspaceEntry{}, fmt.Errorf("workspace %s: %w", id, err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	all := m.s.workspaces[id]
	switch {
	case m.s.noWorkspaces:
		return broker.WorkspaceEntry{}, broker.ErrNoWorkspaces
	case len(all) == 0:
		return broker.WorkspaceEntry{}, fmt.Errorf("workspace %s: %w", id, broker.ErrNotFound)
	}
	return all[len(all)-1].WorkspaceEntry, nil
}

// AppendWorkspace implements broker.Engine.
func (m *Memory) AppendWorkspace(ctx context.Context, id string, after uint64, record string, body []byte) (uint64, error) {
	if err := m.checkUsable(ctx); err != nil {
		return 0, fmt.Errorf("append to workspace %s after %d: %w", id, after, err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	if m.s.noWorkspaces {
		return 0, broker.ErrNoWorkspaces
	}
	last := uint64(0)
	for _, a := range m.s.workspaces[id] {
		if a.Seq > after && last <= after && a.record == record { // it was stored before
			return a.Seq, nil
		}
		last = a.Seq
	}
	if last != after {
		return 0, fmt.Errorf("append to workspace %s after %d: %w", id, after, broker.ErrConflict)
	}
	m.s.workspaceSeq++
	entry := broker.WorkspaceEntry{Seq: m.s.workspaceSeq, At: time.Now().UTC(), Body: bytes.Clone(body)}
	m.s.workspaces[id] = append(m.s.workspaces[id], workspaceAppend{entry, record})
	return entry.Seq, nil
}

// EachWorkspace implements broker.Engine.
func (m *Memory) EachWorkspace(ctx context.Context, fn func(id string) error) error {
	if err := m.checkUsable(ctx); err != nil {
		return fmt.Errorf("list workspaces: %w", err)
	}
	m.s.mu.Lock()
	ids, none := slices.Sorted(maps.Keys(m.s.workspaces)), m.s.noWorkspaces
	m.s.mu.Unlock()
	if none {
		return broker.ErrNoWorkspaces
	}
	for _, id := range ids {
		if err := fn(id); err != nil {
			return err
		}
	}
	return nil
}

// WorkspaceAppends returns all appends of a workspace, oldest first.
func (m *Memory) WorkspaceAppends(id string) (bodies [][]byte) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	for _, a := range m.s.workspaces[id] {
		bodies = append(bodies, a.Body)
	}
	return bodies
}
