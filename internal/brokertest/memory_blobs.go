package brokertest

import (
	"context"
	"fmt"
	"slices"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// PutBlob implements broker.Engine.
func (m *Memory) PutBlob(ctx context.Context, body []byte) (protocol.BlobRef, error) {
	if err := m.checkUsable(ctx); err != nil {
		return protocol.BlobRef{}, fmt.Errorf("put a body of %d bytes: %w", len(body), err)
	}
	ref := broker.RefOf(body)
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	m.s.blobs[ref.Digest] = slices.Clone(body)
	return ref, nil
}

// Blob implements broker.Engine.
func (m *Memory) Blob(ctx context.Context, ref protocol.BlobRef) ([]byte, error) {
	if err := m.checkUsable(ctx); err != nil {
		return nil, fmt.Errorf("body %s: %w", ref.Digest, err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	body, ok := m.s.blobs[ref.Digest]
	if !ok {
		return nil, fmt.Errorf("body %s: %w", ref.Digest, broker.ErrNotFound)
	}
	if got := broker.RefOf(body); got != ref {
		return nil, fmt.Errorf("body %s: %w", ref.Digest, &jetstream.DamagedBody{Ref: ref, What: fmt.Sprintf("what is stored has digest %s and %d bytes, not %d", got.Digest, got.Size, ref.Size)})
	}
	return slices.Clone(body), nil
}

// HasBlob implements broker.Engine.
func (m *Memory) HasBlob(ctx context.Context, ref protocol.BlobRef) error {
	if err := m.checkUsable(ctx); err != nil {
		return fmt.Errorf("body %s: %w", ref.Digest, err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	if _, ok := m.s.blobs[ref.Digest]; !ok {
		return fmt.Errorf("body %s: %w", ref.Digest, broker.ErrNotFound)
	}
	return nil
}

// ReplaceBlob replaces the bytes of a body; nil removes it.
func (m *Memory) ReplaceBlob(digest string, bytes []byte) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	if m.s.blobs[digest] = bytes; bytes == nil {
		delete(m.s.blobs, digest)
	}
}
