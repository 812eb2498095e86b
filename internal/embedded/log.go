package embedded

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
)

// logger logs the server's warnings and errors with slog. It also keeps the error for which the
// server could not start, and the first write that the disk refused: the server reports both only
// in its log.
type logger struct {
	log *slog.Logger
	// refused has the first write that the disk refused since reset; its capacity is one.
	refused chan error

	mu       sync.Mutex
	fatal    error
	reported bool // an error was sent to refused
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
	if l.reportRefusal(text, args) {
		return // the node logs it once a minute
	}
	l.log.Error(text, "from", "nats-server")
}

// refusalTexts are in the server's messages for a write that the disk refused (nats-server
// 2.15.2).
var refusalTexts = []string{"critical write error", "failed to store a msg", "will be disabled", "no space left"}

// reportRefusal reports whether the server's message is about a refused write, and sends the first
// of them to refused.
func (l *logger) reportRefusal(text string, args []any) bool {
	lower := strings.ToLower(text)
	refused := false
	for _, words := range refusalTexts {
		refused = refused || strings.Contains(lower, words)
	}
	if !refused {
		return false
	}
	err := cmp.Or(errorIn(args), errors.New(text))
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.reported {
		l.reported = true
		l.refused <- err // never blocks: reset has emptied it
	}
	return true
}

// errorIn returns the last error of a message's arguments; nil if there is none.
func errorIn(args []any) (err error) {
	for _, arg := range args {
		if cause, ok := arg.(error); ok {
			err = cause
		}
	}
	return err
}

// reset prepares the logger for another server.
func (l *logger) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fatal, l.reported = nil, false
	select {
	case <-l.refused:
	default:
	}
}

// Fatalf keeps the error for Start to return. It does not end the process.
func (l *logger) Fatalf(format string, args ...any) {
	fatal := &fatalError{text: fmt.Sprintf(format, args...), cause: errorIn(args)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fatal = fatal
}

// withCause adds the server's fatal error to an error.
func (l *logger) withCause(err error) error {
	if fatal := l.fatalErr(); fatal != nil {
		return fmt.Errorf("%w: %w", err, fatal)
	}
	return err
}

// fatalErr is the error for which the server cannot start; nil while it may.
func (l *logger) fatalErr() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fatal
}

// fatalError is why the server cannot start, in its words. It unwraps to the error among them, so
// that a caller can branch on a port in use.
type fatalError struct {
	text  string
	cause error
}

func (e *fatalError) Error() string { return e.text }
func (e *fatalError) Unwrap() error { return e.cause }
