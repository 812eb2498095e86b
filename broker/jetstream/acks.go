package jetstream

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// acks receives the engine's acknowledgements of stored messages, through one subscription. The
// library's request allocates a context, a channel and a timer each time; a handoff publishes four
// messages, and waits for each of them.
type acks struct {
	nc     *nats.Conn
	prefix string // of the reply subjects; ends with a dot

	mu      sync.Mutex
	sub     *nats.Subscription // nil until the first message is published
	last    uint64
	waiting map[uint64]*ackWait
	ending  bool // the last wait ends the subscription
}

// ackWait waits for one acknowledgement. It is reused.
type ackWait struct {
	token uint64         // the last token of the reply subject
	came  chan *nats.Msg // room for the one reply that is forwarded
	timer *time.Timer
}

var ackWaits = sync.Pool{New: func() any {
	w := &ackWait{came: make(chan *nats.Msg, 1), timer: time.NewTimer(time.Hour)}
	w.timer.Stop()
	return w
}}

func newAcks(nc *nats.Conn) *acks {
	return &acks{nc: nc, prefix: nc.NewInbox() + ".", waiting: map[uint64]*ackWait{}}
}

// publish publishes a message and returns the reply. It waits until ctx ends, or for timeout,
// and then returns context.DeadlineExceeded. It sets msg.Reply.
func (a *acks) publish(ctx context.Context, msg *nats.Msg, timeout time.Duration) (*nats.Msg, error) {
	w, err := a.send(msg)
	if err != nil {
		return nil, err
	}
	defer a.forget(w)
	return a.wait(ctx, w, timeout)
}

// send publishes a message and sets msg.Reply. The caller ends the wait with forget, whether or
// not it has waited.
func (a *acks) send(msg *nats.Msg) (*ackWait, error) {
	w := ackWaits.Get().(*ackWait)
	if err := a.expect(w); err != nil {
		ackWaits.Put(w)
		return nil, err
	}
	subject := append(make([]byte, 0, 64), a.prefix...)
	msg.Reply = string(strconv.AppendUint(subject, w.token, 36))
	if err := a.nc.PublishMsg(msg); err != nil {
		a.forget(w)
		return nil, err
	}
	return w, nil
}

// wait returns the reply to a sent message, like publish.
func (a *acks) wait(ctx context.Context, w *ackWait, timeout time.Duration) (*nats.Msg, error) {
	w.timer.Reset(timeout)
	select {
	case reply := <-w.came:
		switch {
		case reply == nil && a.nc.IsClosed():
			return nil, nats.ErrConnectionClosed
		case reply == nil:
			return nil, nats.ErrDisconnected
		}
		if len(reply.Data) == 0 && reply.Header.Get("Status") == "503" {
			return nil, nats.ErrNoResponders
		}
		return reply, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-w.timer.C:
		return nil, context.DeadlineExceeded
	}
}

// expect registers a wait, and subscribes to the replies with the first one.
func (a *acks) expect(w *ackWait) (err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sub == nil {
		if a.sub, err = a.nc.Subscribe(a.prefix+"*", a.forward); err != nil {
			return fmt.Errorf("subscribe to acknowledgements: %w", err)
		}
	}
	a.last++
	w.token = a.last
	a.waiting[w.token] = w
	return nil
}

// forget ends a wait. No reply is forwarded to it afterwards.
func (a *acks) forget(w *ackWait) {
	w.timer.Stop()
	a.mu.Lock()
	delete(a.waiting, w.token)
	a.endSubscription()
	a.mu.Unlock()
	select {
	case <-w.came:
	default:
	}
	ackWaits.Put(w)
}

// forward passes a reply to its wait. A second reply to one message is dropped.
func (a *acks) forward(reply *nats.Msg) {
	token, err := strconv.ParseUint(strings.TrimPrefix(reply.Subject, a.prefix), 36, 64)
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.waiting[token]; w != nil {
		delete(a.waiting, token)
		w.came <- reply
	}
}

// close ends the subscription, after the last awaited reply.
func (a *acks) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ending = true
	a.endSubscription()
}

// endSubscription requires a.mu.
func (a *acks) endSubscription() {
	if a.ending && a.sub != nil && len(a.waiting) == 0 {
		_ = a.sub.Unsubscribe()
	}
}

// disconnected ends all waits, with nats.ErrDisconnected or nats.ErrConnectionClosed. It is for a
// connection that is given up: after any other loss a reply may still arrive on the next one.
func (a *acks) disconnected() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for token, w := range a.waiting {
		delete(a.waiting, token)
		w.came <- nil
	}
}
