package jetstream

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
)

// hintPause is how long hints gather before they are published together: each flush of the
// connection wakes the server.
const hintPause = time.Millisecond

// hints tell those who wait for a handoff that it has a new head. The engine of the process
// that appends publishes them, on the subject of the ticket, once the append is stored. They
// are best effort: waiters also read again by themselves.
type hints struct {
	nc *nats.Conn

	mu     sync.Mutex
	wait   []hint
	timer  *time.Timer // calls publish
	closed bool
}

// hint says that an append is stored.
type hint struct {
	ticket string
	seq    uint64
}

func newHints(nc *nats.Conn) *hints {
	h := &hints{nc: nc}
	h.timer = time.AfterFunc(time.Hour, h.publish)
	h.timer.Stop()
	return h
}

// add has a hint published within hintPause.
func (h *hints) add(ticket string, seq uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	if len(h.wait) == 0 {
		h.timer.Reset(hintPause)
	}
	h.wait = append(h.wait, hint{ticket, seq})
}

// publish publishes the hints that wait.
func (h *hints) publish() {
	h.mu.Lock()
	defer h.mu.Unlock()
	body := make([]byte, 0, 20) // the library copies it
	for _, each := range h.wait {
		_ = h.nc.Publish(feedSubject(each.ticket), strconv.AppendUint(body, each.seq, 10))
	}
	clear(h.wait)
	h.wait = h.wait[:0]
}

// close publishes the last hints.
func (h *hints) close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.timer.Stop()
	h.publish()
}

// Feed implements broker.Engine.
func (j *Engine) Feed(ctx context.Context, ticket string) (<-chan uint64, func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if j.isClosed() {
		return nil, nil, broker.ErrClosed
	}
	latest := make(chan uint64, 1)
	// The library calls the handler of a subscription from one goroutine,
	// which makes it the only sender.
	sub, err := j.nc.Subscribe(feedSubject(ticket), func(m *nats.Msg) {
		seq, err := strconv.ParseUint(string(m.Data), 10, 64)
		if err != nil {
			return
		}
		select {
		case <-latest: // the newest replaces one not yet read
		default:
		}
		latest <- seq
	})
	if err != nil {
		return nil, nil, fmt.Errorf("feed of %s: %w: %w", ticket, broker.ErrUnreachable, err)
	}
	cancel := context.AfterFunc(ctx, func() { _ = sub.Unsubscribe() })
	return latest, func() { cancel(); _ = sub.Unsubscribe() }, nil
}
