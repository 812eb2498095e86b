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
	return slog.New(newCalm(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: level}), time.Now))
}

const (
	// sameMost is how often a warning or an error is logged in sameSpan, in other
	// words: with whatever attributes. A client that sends malformed messages could
	// fill a disk else.
	sameMost = 20
	sameSpan = time.Minute
)

// calm is a handler that leaves out warnings and errors that come too often. The first
// after a while tells how many were left out.
type calm struct {
	slog.Handler
	now     func() time.Time
	sayings *sayings
}

type sayings struct {
	mu    sync.Mutex
	words map[string]*saying
}

type saying struct {
	since     time.Time
	n, unsaid int
}

func newCalm(h slog.Handler, now func() time.Time) calm {
	return calm{h, now, &sayings{words: map[string]*saying{}}}
}

// Handle implements slog.Handler.
func (c calm) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		unsaid, ok := c.sayings.may(r.Message, c.now())
		if !ok {
			return nil
		}
		if unsaid > 0 {
			r = r.Clone()
			r.AddAttrs(slog.Int("left_out", unsaid))
		}
	}
	return c.Handler.Handle(ctx, r)
}

// may tells whether these words may be said again, and how often they were not.
func (s *sayings) may(words string, now time.Time) (unsaid int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.words[words]
	if w == nil { // as many as there are words in the program
		w = &saying{since: now}
		s.words[words] = w
	}
	if now.Sub(w.since) >= sameSpan {
		unsaid, *w = w.unsaid, saying{since: now}
	}
	if w.n++; w.n > sameMost {
		w.unsaid++
		return 0, false
	}
	return unsaid, true
}

// WithAttrs implements slog.Handler.
func (c calm) WithAttrs(attrs []slog.Attr) slog.Handler {
	return calm{c.Handler.WithAttrs(attrs), c.now, c.sayings}
}

// WithGroup implements slog.Handler.
func (c calm) WithGroup(name string) slog.Handler {
	return calm{c.Handler.WithGroup(name), c.now, c.sayings}
}
