package worker

import (
	"context"
	"log/slog"
)

// logOf is log.With(key, value), made when there is a line to write: most
// handoffs write one, or none.
func logOf(log *slog.Logger, key string, value any) *slog.Logger {
	return slog.New(&withLater{log.Handler(), key, value})
}

// withLater is a slog.Handler that adds an attribute to each line.
type withLater struct {
	slog.Handler
	key   string
	value any
}

func (l *withLater) with() slog.Handler {
	return l.Handler.WithAttrs([]slog.Attr{slog.Any(l.key, l.value)})
}

func (l *withLater) Handle(ctx context.Context, line slog.Record) error {
	return l.with().Handle(ctx, line)
}
func (l *withLater) WithAttrs(attrs []slog.Attr) slog.Handler { return l.with().WithAttrs(attrs) }
func (l *withLater) WithGroup(name string) slog.Handler       { return l.with().WithGroup(name) }
