package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
)

// logger passes the server's warnings and errors on to slog, and remembers the
// last word on why it could not start: the server has no other way to tell. Nor has it
// another way to tell that its disk refuses writes.
type logger struct {
	log *slog.Logger
	// refused has the first write that the disk refused since forget. It has room for one.
	refused chan error

	mu     sync.Mutex
	fatal  error
	broken bool // refused was told
}

func newLogger(log *slog.Logger) *logger {
	return &logger{log: log, refused: make(chan error, 1)}
}

func (l *logger) Noticef(string, ...any) {}
func (l *logger) Debugf(string, ...any)  {}
func (l *logger) Tracef(string, ...any)  {}

func (l *logger) Warnf(format string, args ...any) {
	l.log.Warn(fmt.Sprintf(format, args...), "from", "nats-server")
}

func (l *logger) Errorf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if l.writeRefused(text, args) {
		return // the node says it, once a minute
	}
	l.log.Error(text, "from", "nats-server")
}

// refusals are what the server says when its disk refuses a write (nats-server 2.15.2).
var refusals = []string{"critical write error", "failed to store a msg", "will be disabled", "no space left"}

// writeRefused tells whether the server says that its disk refuses writes, and passes
// the first of these on.
func (l *logger) writeRefused(text string, args []any) bool {
	lower := strings.ToLower(text)
	refused := false
	for _, words := range refusals {
		refused = refused || strings.Contains(lower, words)
	}
	if !refused {
		return false
	}
	err := errors.New(text)
	for _, arg := range args {
		if cause, ok := arg.(error); ok {
			err = cause
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.broken {
		l.broken = true
		l.refused <- err // it has room: forget has emptied it
	}
	return true
}

// forget makes ready for another server.
func (l *logger) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fatal, l.broken = nil, false
	select {
	case <-l.refused:
	default:
	}
}

// Fatalf does not end the process: Start returns what it says.
func (l *logger) Fatalf(format string, args ...any) {
	word := &lastWord{text: fmt.Sprintf(format, args...)}
	for _, arg := range args {
		if err, ok := arg.(error); ok {
			word.cause = err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fatal = word
}

// because adds the server's last word to an error.
func (l *logger) because(err error) error {
	if fatal := l.said(); fatal != nil {
		return fmt.Errorf("%w: %w", err, fatal)
	}
	return err
}

// said is the server's last word; nil as long as it may still start.
func (l *logger) said() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fatal
}

// lastWord is why the server cannot start, in its words. It unwraps to the
// error among them, so that a caller can branch on a port in use.
type lastWord struct {
	text  string
	cause error
}

func (w *lastWord) Error() string { return w.text }
func (w *lastWord) Unwrap() error { return w.cause }
