package cli

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// log is the log of a process that runs on: for people, on stderr.
func (a *app) log(verbose bool) *slog.Logger {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(newRateLimitHandler(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: level}), time.Now))
}

const (
	// sameMost bounds the warnings or errors of the same words, with whatever attributes, in sameSpan:
	// a client that sends malformed messages must not fill the disk.
	sameMost = 20
	sameSpan = time.Minute
)

// rateLimitHandler leaves out warnings and errors that come too often. The first after a while
// carries the number left out.
type rateLimitHandler struct {
	slog.Handler
	now      func() time.Time
	counters *counters
}

// counters count messages by their words: as many as there are in the program.
type counters struct {
	mu      sync.Mutex
	byWords map[string]counter
}

type counter struct {
	since         time.Time
	n, suppressed int
}

func newRateLimitHandler(h slog.Handler, now func() time.Time) rateLimitHandler {
	return rateLimitHandler{h, now, &counters{byWords: map[string]counter{}}}
}

// Handle implements slog.Handler.
func (h rateLimitHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		suppressed, ok := h.counters.count(r.Message, h.now())
		if !ok {
			return nil
		}
		if suppressed > 0 {
			r = r.Clone()
			r.AddAttrs(slog.Int("left_out", suppressed))
		}
	}
	return h.Handler.Handle(ctx, r)
}

// count reports whether a message may be logged again, and how often it was not.
func (c *counters) count(words string, now time.Time) (suppressed int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.byWords[words]
	if now.Sub(of.since) >= sameSpan {
		suppressed, of = of.suppressed, counter{since: now}
	}
	if of.n++; of.n > sameMost {
		of.suppressed++
	}
	c.byWords[words] = of
	return suppressed, of.n <= sameMost
}

// WithAttrs implements slog.Handler.
func (h rateLimitHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.Handler = h.Handler.WithAttrs(attrs)
	return h
}

// WithGroup implements slog.Handler.
func (h rateLimitHandler) WithGroup(name string) slog.Handler {
	h.Handler = h.Handler.WithGroup(name)
	return h
}
