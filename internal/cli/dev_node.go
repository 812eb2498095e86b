package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/embedded"
	"github.com/agenthandoff/handoff/broker/jetstream"
	"github.com/agenthandoff/handoff/internal/filelock"
	"github.com/agenthandoff/handoff/internal/supervisor"
)

// notStarted says in one sentence why dev could not start, and what to do.
func notStarted(err error, cfg devConfig) error {
	var held *filelock.HeldError
	var errno syscall.Errno
	todo := "what is there was left as it is; see the log above, and handoff doctor"
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, embedded.ErrPort):
		return portTaken(cfg.port)
	case errors.Is(err, embedded.ErrInUse):
		process := "another process"
		if errors.As(err, &held) {
			process = "process " + held.PID
		}
		return fmt.Errorf("%s has %s in use, as another handoff dev does: stop it, or choose another directory with --data", process, cfg.dir)
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS):
		todo = "let this user write there, or choose another directory with --data"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		todo = "make room on that disk, or choose another directory with --data"
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.EISDIR):
		todo = "no directory can be made there; choose another one with --data"
	default:
		return fmt.Errorf("%w; %s", err, todo)
	}
	if errors.As(err, &errno) { // the calls that failed say nothing more
		err = errno
	}
	return fmt.Errorf("%s: %w; %s", cfg.dir, err, todo)
}

// untilFailed returns a context that ends with ctx, or when the node has given up on its
// server. The process then ends, so that what started it (systemd, Docker) starts it anew.
func (a *app) untilFailed(ctx context.Context, failed <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() { // ends with the context
		select {
		case <-ctx.Done():
		case <-failed:
			if a.broken != nil {
				close(a.broken)
			}
			cancel()
		}
	}()
	return ctx, cancel
}

// prepare makes the streams of a node of our own, and fills the queue and the
// timers again after a stop that was not clean. No client is served yet.
func prepare(ctx context.Context, nc *nats.Conn, cfg devConfig, unclean bool, log *slog.Logger) error {
	// Where every write of the ledger is synced, what is derived from it need
	// not be: embedded makes it again after a crash.
	topology := jetstream.Topology{AsyncWork: cfg.fsync == string(embedded.FsyncAlways), Fsync: cfg.fsync}
	if err := jetstream.EnsureTopology(ctx, nc, topology); err != nil {
		return err
	}
	if err := setLease(ctx, nc, cfg.lease); err != nil || !unclean {
		return err
	}
	log.Info("the last stop was not clean; putting back what the ledger calls for")
	b, engine, done, err := openNode(ctx, nc, broker.Config{Log: log})
	if err != nil {
		return err
	}
	defer done()
	return supervisor.Refill(ctx, b, engine, log)
}

// openNode opens the engine on a node of our own.
func openNode(ctx context.Context, nc *nats.Conn, cfg broker.Config) (*broker.Broker, *jetstream.Engine, func(), error) {
	engine, err := jetstream.Open(ctx, nc, jetstream.Config{Log: cfg.Log})
	if err != nil {
		return nil, nil, nil, err
	}
	b, err := broker.New(engine, cfg)
	if err != nil {
		return nil, nil, nil, errors.Join(err, engine.Close())
	}
	return b, engine, func() { _ = engine.Close() }, nil
}
