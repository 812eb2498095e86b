package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/jsm.go"
	"github.com/nats-io/jsm.go/api"
	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// Restore puts a backup into an engine that has no handoffs, with the replicas of t.
// No other process may use the engine meanwhile: stop its supervisors, indexes and workers.
// The backup is checked before anything is changed. The ledger comes last: an engine
// on which Restore failed has none, and Restore may be called again. It blocks until
// the engine has everything or ctx ends.
//
// What a queue, a timer or a holder was is not restored. The streams of these are
// made anew, and the next supervisor fills them from the ledger.
func Restore(ctx context.Context, nc *nats.Conn, dir string, t jetstream.Topology, tell Progress) (Manifest, error) {
	m, err := Check(dir)
	if err != nil {
		return m, err
	}
	engine, err := jsm.New(nc, jsm.WithTimeout(requestWithin))
	if err != nil {
		return m, err
	}
	if err := clear(engine); err != nil {
		return m, err
	}
	for _, s := range slices.Backward(m.Streams) {
		if err := restorePatiently(ctx, engine, filepath.Join(dir, s.Name), s, t, tell); err != nil {
			return m, fmt.Errorf("restore stream %s: %w", s.Name, err)
		}
	}
	return m, jetstream.EnsureTopology(ctx, nc, t)
}

// clear removes the streams of an engine that has no handoffs. The ledger goes last,
// so that one that has any is never left with it alone.
func clear(engine *jsm.Manager) error {
	var there []*jsm.Stream
	for _, name := range jetstream.Streams {
		s, err := engine.LoadStream(name)
		switch {
		case jsm.IsNatsError(err, uint16(nats.JSErrCodeStreamNotFound)):
			continue
		case err != nil:
			return fmt.Errorf("read stream %s: %w", name, err)
		}
		if name == jetstream.LedgerStream {
			state, err := s.State()
			if err != nil {
				return fmt.Errorf("read stream %s: %w", name, err)
			}
			if state.LastSeq > 0 {
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

// restoreWithin is how long a cluster may take to begin with a stream.
const restoreWithin = 30 * time.Second

// restorePatiently restores a stream. In a cluster the server that takes it is another
// than ours as a rule, and ours may not have heard yet where the parts go: then no process
// is there for the first of them, and the server gives that try up after some seconds,
// or, under load, much later: until then the stream's name is taken.
func restorePatiently(ctx context.Context, engine *jsm.Manager, dir string, s Stream, t jetstream.Topology, tell Progress) error {
	unheard := false
	patience := backoff.NewExponentialBackOff(backoff.WithInitialInterval(time.Second),
		backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(restoreWithin))
	return backoff.Retry(func() error {
		if unheard { // there was no such stream before: what there is of it is that try's
			_ = engine.DeleteStream(s.Name)
		}
		err := restoreStream(ctx, engine, dir, s, t, tell)
		unheard = unheard || errors.Is(err, nats.ErrNoResponders)
		if err != nil && !unheard {
			return backoff.Permanent(err)
		}
		return err
	}, backoff.WithContext(patience, ctx))
}

func restoreStream(ctx context.Context, engine *jsm.Manager, dir string, s Stream, t jetstream.Topology, tell Progress) error {
	var meta struct {
		Config api.StreamConfig `json:"config"`
	}
	raw, err := os.ReadFile(filepath.Join(dir, jsm.SnapshotMetaFile))
	if err == nil {
		err = json.Unmarshal(raw, &meta)
	}
	if err != nil {
		return err
	}
	cfg := meta.Config
	cfg.Replicas = max(t.Replicas, 1)
	cfg.Placement = nil // of the servers that were
	if s.Name == jetstream.LedgerStream {
		cfg.Metadata = t.RestoredMetadata(cfg.Metadata, s.Created, time.Now())
	}
	_, state, err := engine.RestoreSnapshotFromDirectory(ctx, s.Name, dir, jsm.RestoreConfiguration(cfg),
		jsm.RestoreNotify(func(p jsm.RestoreProgress) { tell(s.Name, p.BytesSent(), uint64(s.Bytes)) }))
	if err != nil {
		return err
	}
	if state.Msgs != s.Messages || state.LastSeq != s.LastSeq {
		return errors.Join(
			fmt.Errorf("the engine made %d messages up to %d of %d up to %d", state.Msgs, state.LastSeq, s.Messages, s.LastSeq),
			engine.DeleteStream(s.Name))
	}
	return nil
}
