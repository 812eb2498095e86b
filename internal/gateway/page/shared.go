package page

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// sharedMax bounds the answers of each kind that are known at a time.
const sharedMax = 256

// moments are answers that all viewers share: one asks, and the others get the same.
type moments[T any] struct {
	fresh    time.Duration // the age of an answer that is still given
	every    time.Duration // from one question to the next
	patience time.Duration // of a viewer, who then gets the answer before, or errLater

	mu    sync.Mutex
	known map[string]*moment[T]
}

type moment[T any] struct {
	at     time.Time // of the question; in the future until then
	done   chan struct{}
	value  T
	err    error
	before *moment[T] // until it is done
}

var errLater = errors.New("the answer takes longer")

// get returns an answer that is fresh, or asks, in a goroutine that outlives its viewer by viewTimeout at most.
func (m *moments[T]) get(ctx context.Context, key string, ask func(context.Context) (T, error)) (value T, err error) {
	m.mu.Lock()
	now := m.known[key]
	if now == nil || time.Since(now.at) > m.fresh {
		if m.known == nil || len(m.known) >= sharedMax {
			m.known = map[string]*moment[T]{}
		}
		next := &moment[T]{at: time.Now(), done: make(chan struct{}), before: now}
		if now != nil && now.at.Add(m.every).After(next.at) {
			next.at = now.at.Add(m.every)
		}
		go func() {
			time.Sleep(time.Until(next.at))
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), viewTimeout)
			defer cancel()
			next.value, next.err = ask(ctx)
			close(next.done)
			m.mu.Lock()
			defer m.mu.Unlock()
			next.before = nil
		}()
		m.known[key], now = next, next
	}
	before := now.before
	m.mu.Unlock()
	select {
	case <-now.done:
		return now.value, now.err
	case <-ctx.Done():
		return value, ctx.Err()
	case <-time.After(m.patience):
	}
	if before.answered() {
		return before.value, before.err
	}
	return value, errLater
}

func (m *moment[T]) answered() bool {
	if m == nil {
		return false
	}
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// last returns the last answer, however old; the zero value if there is none yet.
func (m *moments[T]) last(key string) (value T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := m.known[key]; now.answered() {
		return now.value
	}
	return value
}

// forget lets the next viewer ask.
func (m *moments[T]) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known = nil
}

// forget lets the next view see the effect of an act.
func (p *Page) forget() {
	p.counts.forget()
	p.fleets.forget()
	p.lanes.forget()
	p.begins.forget()
}

// rendering is a view for all scripts that read it again.
type rendering struct {
	bytes.Buffer
	status int
}

// Header and WriteHeader make it an http.ResponseWriter.
func (r *rendering) Header() http.Header    { return http.Header{} }
func (r *rendering) WriteHeader(status int) { r.status = status }

// sight names the rights of a caller: callers with the same one see the same in every view but the inbox.
func (x *request) sight() string {
	return fmt.Sprint(x.caller.Roles, x.caller.Agents, x.caller.Sources, x.inboxName())
}
