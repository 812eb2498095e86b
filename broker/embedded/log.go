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
	fatal string
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
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fatal = fmt.Sprintf(format, args...)
}

// because adds the server's last word to an error.
func (l *logger) because(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fatal == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, l.fatal)
}
