package jetstream

import (
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/protocol"
)

// message is a message with headers of one value each. Messages are reused; release ends the use.
type message struct {
	nats.Msg
	values [8]string // Header has slices of it
	n      int
}

var messages = sync.Pool{New: func() any { return &message{Msg: nats.Msg{Header: nats.Header{}}} }}

// newMessage returns an empty message to a subject.
func newMessage(subject string, data []byte) *message {
	m := messages.Get().(*message)
	m.Subject, m.Data = subject, data
	return m
}

// set sets a header that is not set yet, at most 8 per message.
func (m *message) set(key, value string) {
	m.values[m.n] = value
	m.Header[key] = m.values[m.n : m.n+1 : m.n+1]
	m.n++
}

// setTrace sets the headers of a trace, by the names of W3C Trace Context. No trace is no header.
func (m *message) setTrace(t protocol.TraceContext) {
	if t.IsZero() {
		return
	}
	m.set("traceparent", t.Parent)
	if t.State != "" {
		m.set("tracestate", t.State)
	}
}

// release allows the message to be reused. No goroutine may still publish it.
func (m *message) release() {
	clear(m.Header)
	*m = message{Msg: nats.Msg{Header: m.Header}}
	messages.Put(m)
}
