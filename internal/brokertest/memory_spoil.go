package brokertest

// ReplaceBlob puts other bytes in the place of a body; nil is none.
func (m *Memory) ReplaceBlob(digest string, bytes []byte) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	if m.s.blobs[digest] = bytes; bytes == nil {
		delete(m.s.blobs, digest)
	}
}
