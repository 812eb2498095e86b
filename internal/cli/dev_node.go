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
	"github.com/agenthandoff/handoff/supervisor"
)

// notStarted adds what to do to the reason for which dev could not start.
func notStarted(err error) error {
	todo := "what is there was left as it is; see the log above, and handoff doctor"
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, embedded.ErrInUse):
		todo = "is another handoff dev running? Stop it, or choose another directory with --data"
	case errors.Is(err, embedded.ErrPort):
		todo = "choose another port with --port; 0 picks a free one"
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS):
		todo = "let this user write there, or choose another directory with --data"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		todo = "make room on that disk, or choose another directory with --data"
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.EISDIR):
		todo = "no directory can be made there; choose another one with --data"
	}
	return fmt.Errorf("%w; %s", err, todo)
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
