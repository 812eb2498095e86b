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

const (
	renderEvery = 2 * time.Second // the renderings of one view for all who look at it
	sharedMax   = 256             // answers or views that are known at a time
)

// moments are answers that all viewers share for a moment: one asks, and the others get the same.
type moments[T any] struct {
	mu    sync.Mutex
	known map[string]*moment[T]
}

type moment[T any] struct {
	at     time.Time
	done   chan struct{}
	value  T
	err    error
	before *moment[T] // until it is done
}

var errLater = errors.New("the answer takes longer")

// get returns an answer that is at most fresh old, or asks, in a goroutine that outlives its viewer by
// viewTimeout at most. A viewer whose patience ends gets the answer before, or errLater.
func (m *moments[T]) get(ctx context.Context, key string, fresh, patience time.Duration, ask func(context.Context) (T, error)) (value T, err error) {
	m.mu.Lock()
	now := m.known[key]
	if now == nil || time.Since(now.at) > fresh {
		if m.known == nil || len(m.known) >= sharedMax {
			m.known = map[string]*moment[T]{}
		}
		next := &moment[T]{at: time.Now(), done: make(chan struct{}), before: now}
		go func() {
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
	case <-time.After(patience):
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

// views are the renderings for scripts that read a view again.
type views struct {
	mu    sync.Mutex
	known map[string]*rendering
}

// rendering is the next rendering of a view, or the last one.
type rendering struct {
	begun  time.Time // zero until then: who comes before it gets it
	done   chan struct{}
	status int
	text   bytes.Buffer
}

// get returns a rendering that begins from now on, and at least renderEvery after the one before. The first
// who asks for it renders for all who come until it begins.
func (v *views) get(ctx context.Context, key string, render func(http.ResponseWriter)) (*rendering, error) {
	v.mu.Lock()
	last := v.known[key]
	if last != nil && last.begun.IsZero() {
		v.mu.Unlock()
		select {
		case <-last.done:
			return last, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if v.known == nil || len(v.known) >= sharedMax {
		v.known = map[string]*rendering{}
	}
	next := &rendering{done: make(chan struct{}), status: http.StatusOK}
	v.known[key] = next
	v.mu.Unlock()
	if last != nil {
		time.Sleep(time.Until(last.begun.Add(renderEvery)))
	}
	v.mu.Lock()
	next.begun = time.Now()
	v.mu.Unlock()
	defer close(next.done)
	render(next)
	return next, nil
}

// Header, Write and WriteHeader implement http.ResponseWriter.
func (r *rendering) Header() http.Header            { return http.Header{} }
func (r *rendering) Write(text []byte) (int, error) { return r.text.Write(text) }
func (r *rendering) WriteHeader(status int)         { r.status = status }

// sight names the rights of a caller: callers with the same one see the same in every view but the inbox.
func (x *request) sight() string {
	return fmt.Sprint(x.caller.Roles, x.caller.Agents, x.caller.Sources, x.inboxName())
}
