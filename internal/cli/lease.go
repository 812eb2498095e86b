package cli

import (
	"context"
	"maps"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	handoffjs "github.com/agenthandoff/handoff/broker/jetstream"
	"github.com/agenthandoff/handoff/worker"
)

// metaLease is where the ledger's stream keeps the default lease of workers, in
// milliseconds: it belongs to the engine, not to the process that set it.
const metaLease = "handoff_lease_ms"

// setLease makes lease the default of workers on this engine; 0 leaves it.
func setLease(ctx context.Context, nc *nats.Conn, lease time.Duration) error {
	if lease == 0 {
		return nil
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	stream, err := js.Stream(ctx, handoffjs.LedgerStream)
	if err != nil {
		return err
	}
	cfg, value := stream.CachedInfo().Config, strconv.FormatInt(lease.Milliseconds(), 10)
	if cfg.Metadata[metaLease] == value {
		return nil
	}
	cfg.Metadata = maps.Clone(cfg.Metadata)
	cfg.Metadata[metaLease] = value
	_, err = js.UpdateStream(ctx, cfg)
	return err
}

// defaultLease reads what setLease wrote. No harm is done by an engine that
// does not say: the worker has a default too.
func defaultLease(ctx context.Context, engine *handoffjs.Engine) time.Duration {
	js, err := jetstream.New(engine.Conn())
	if err != nil {
		return 0
	}
	stream, err := js.Stream(ctx, handoffjs.LedgerStream)
	if err != nil {
		return 0
	}
	ms, err := strconv.ParseInt(stream.CachedInfo().Config.Metadata[metaLease], 10, 64)
	lease := time.Duration(ms) * time.Millisecond
	if err != nil || lease < worker.LeaseMin || lease > worker.LeaseMax {
		return 0
	}
	return lease
}
