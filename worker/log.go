package worker

import (
	"context"
	"log/slog"
)

// lazyLogger is the place of a logger that adds an attribute to each line. The logger is made
// when there is a line to write: most handoffs write one, or none.
type lazyLogger struct {
	logger slog.Logger
	attr   lazyAttr
}

// with is log.With(key, value), in place.
func (l *lazyLogger) with(log *slog.Logger, key string, value any) *slog.Logger {
	l.attr = lazyAttr{log.Handler(), key, value}
	l.logger = *slog.New(&l.attr)
	return &l.logger
}

// lazyAttr is a slog.Handler that adds an attribute to each line.
type lazyAttr struct {
	slog.Handler
	key   string
	value any
}

func (l *lazyAttr) with() slog.Handler {
	return l.Handler.WithAttrs([]slog.Attr{slog.Any(l.key, l.value)})
}

func (l *lazyAttr) Handle(ctx context.Context, line slog.Record) error {
	return l.with().Handle(ctx, line)
}
func (l *lazyAttr) WithAttrs(attrs []slog.Attr) slog.Handler { return l.with().WithAttrs(attrs) }
func (l *lazyAttr) WithGroup(name string) slog.Handler       { return l.with().WithGroup(name) }
