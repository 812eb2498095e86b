package broker

import "sync"

// buffer is memory that a body is written to. It is used again: a handoff writes three appends
// and an offer, and the engine keeps none of them.
type buffer struct{ bytes []byte }

// bufferBytesMax is the largest buffer that is used again.
const bufferBytesMax = 1 << 20

var buffers = sync.Pool{New: func() any { return new(buffer) }}

// newBuffer returns an empty buffer.
func newBuffer() *buffer { return buffers.Get().(*buffer) }

// free ends the use of the buffer and of what was written to it.
func (b *buffer) free() {
	if b.bytes = b.bytes[:0]; cap(b.bytes) <= bufferBytesMax {
		buffers.Put(b)
	}
}
