package backup

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/jsm.go"
	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// Restore restores a backup to an engine without handoffs, with the replicas of t. No other
// process may use the engine: stop its supervisors, indexes and workers first. The backup is
// checked before anything is changed. The ledger is restored last, so that an engine on which
// Restore failed has none, and Restore may be called again. Restore blocks until the engine has
// everything or ctx ends.
//
// Queues, timers and holders are not restored. Their streams are created, and the next supervisor
// fills them from the ledger.
func Restore(ctx context.Context, nc *nats.Conn, dir string, t jetstream.Topology, progress Progress) (Manifest, error) {
	m, err := check(dir)
	if err != nil {
		return m, err
	}
	engine, err := jsm.New(nc, jsm.WithTimeout(requestTimeout))
	if err != nil {
		return m, err
	}
	if err := removeEmptyStreams(engine); err != nil {
		return m, err
	}
	for _, s := range slices.Backward(m.Streams) {
		if err := restoreWithRetries(ctx, engine, filepath.Join(dir, s.Name), s, t, progress); err != nil {
			return m, fmt.Errorf("restore stream %s: %w", s.Name, err)
		}
	}
	return m, jetstream.EnsureTopology(ctx, nc, t)
}

// removeEmptyStreams removes the streams of an engine without handoffs. It refuses an engine with
// a ledger before it removes any.
func removeEmptyStreams(engine *jsm.Manager) error {
	var there []*jsm.Stream
	names := slices.Concat(jetstream.Streams, jetstream.LedgerStreams(broker.PartitionsMax)[1:], jetstream.WorkStreams(broker.PartitionsMax)[1:], jetstream.TimerStreams(broker.PartitionsMax)[1:])
	for _, name := range names {
		s, err := engine.LoadStream(name)
		switch {
		case jsm.IsNatsError(err, uint16(nats.JSErrCodeStreamNotFound)):
			continue
		case err != nil:
			return fmt.Errorf("read stream %s: %w", name, err)
		}
		if jetstream.BaseOf(name) == jetstream.LedgerStream {
			state, err := s.State()
			if err != nil {
				return fmt.Errorf("read stream %s: %w", name, err)
			}
			if state.LastSeq > broker.PartitionBase(broker.PartitionOf(state.LastSeq)) {
				return protocol.Errorf(protocol.CodeConflict, "engine", "has a ledger already, of %d entries, and nothing was changed: restore into a new engine, or remove the old ledger first: nats stream rm %s", state.Msgs, name)
			}
		}
		there = append(there, s)
	}
	for _, s := range there {
		if err := s.Delete(); err != nil {
			return fmt.Errorf("remove the empty stream %s: %w", s.Name(), err)
		}
	}
	return nil
}

// retryTimeout is how long the restore of a stream is retried in a cluster.
const retryTimeout = 30 * time.Second

// restoreWithRetries restores a stream. In a cluster usually another server receives the stream
// than the one of the connection, which may not know that server's subscription yet: then the
// first chunk has no responders. The server gives up this attempt after some seconds, or later
// under load, and until then the name of the stream is taken.
func restoreWithRetries(ctx context.Context, engine *jsm.Manager, dir string, s Stream, t jetstream.Topology, progress Progress) error {
	noResponders := false
	policy := backoff.NewExponentialBackOff(backoff.WithInitialInterval(time.Second),
		backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(retryTimeout))
	return backoff.Retry(func() error {
		if noResponders { // the stream, if there is one, is the rest of the failed attempt
			_ = engine.DeleteStream(s.Name)
		}
		err := restoreStream(ctx, engine, dir, s, t, progress)
		noResponders = noResponders || errors.Is(err, nats.ErrNoResponders)
		if err != nil && !noResponders {
			return backoff.Permanent(err)
		}
		return err
	}, backoff.WithContext(policy, ctx))
}

func restoreStream(ctx context.Context, engine *jsm.Manager, dir string, s Stream, t jetstream.Topology, progress Progress) error {
	meta, err := snapshotMeta(dir)
	if err != nil {
		return err
	}
	cfg := meta.Config
	cfg.Replicas = max(t.Replicas, 1)
	cfg.Placement = nil // of the old servers
	if jetstream.BaseOf(s.Name) == jetstream.LedgerStream {
		cfg.Metadata = t.RestoredMetadata(s.Name, cfg.Metadata, s.Created, time.Now())
	}
	_, state, err := engine.RestoreSnapshotFromDirectory(ctx, s.Name, dir, jsm.RestoreConfiguration(cfg),
		jsm.RestoreNotify(func(p jsm.RestoreProgress) { progress(s.Name, p.BytesSent(), uint64(s.Bytes)) }))
	if err != nil {
		return err
	}
	if state.Msgs != s.Messages || state.LastSeq != s.LastSeq {
		return errors.Join(
			fmt.Errorf("the engine restored %d messages up to sequence %d, the backup has %d up to sequence %d", state.Msgs, state.LastSeq, s.Messages, s.LastSeq),
			engine.DeleteStream(s.Name))
	}
	return nil
}
