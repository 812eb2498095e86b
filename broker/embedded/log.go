package embedded

import (
	"fmt"
	"log/slog"
	"sync"
)

// logger passes the server's warnings and errors on to slog, and remembers the
// last word on why it could not start: the server has no other way to tell.
type logger struct {
	log   *slog.Logger
	mu    sync.Mutex
	fatal error
}

func (l *logger) Noticef(string, ...any) {}
func (l *logger) Debugf(string, ...any)  {}
func (l *logger) Tracef(string, ...any)  {}

func (l *logger) Warnf(format string, args ...any) {
	l.log.Warn(fmt.Sprintf(format, args...), "from", "nats-server")
}

func (l *logger) Errorf(format string, args ...any) {
	l.log.Error(fmt.Sprintf(format, args...), "from", "nats-server")
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
