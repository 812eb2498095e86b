package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Headers with which the engine and its clients say that a key is gone.
const (
	operationHeader = "KV-Operation"
	operationPurge  = "PURGE"
)

// PutProfile implements Engine. A time-out is tried again for 12 s.
func (j *JetStream) PutProfile(ctx context.Context, p protocol.Profile) error {
	if err := j.putEntry(ctx, agentSubject(p.ID), p, 0); err != nil {
		return fmt.Errorf("put agent %s: %w", p.ID, err)
	}
	return nil
}

// Profile implements Engine.
func (j *JetStream) Profile(ctx context.Context, agent string) (protocol.Profile, error) {
	var p protocol.Profile
	if err := j.entry(ctx, agentStream, agentSubject(agent), &p); err != nil {
		return protocol.Profile{}, fmt.Errorf("agent %s: %w", agent, err)
	}
	return p, nil
}

// RemoveProfile implements Engine.
func (j *JetStream) RemoveProfile(ctx context.Context, agent string) error {
	if err := j.removeEntry(ctx, agentSubject(agent)); err != nil {
		return fmt.Errorf("remove agent %s: %w", agent, err)
	}
	return nil
}

// Beat implements Engine. Presence lasts whole seconds, rounded up. A time-out
// is tried again for 12 s.
func (j *JetStream) Beat(ctx context.Context, h protocol.Holder) error {
	if err := j.putEntry(ctx, holderSubject(h.ID), h, PresenceTTL(h)); err != nil {
		return fmt.Errorf("beat of %s: %w", h.ID, err)
	}
	j.beat.Store(time.Now().UnixNano())
	return nil
}

// Holder implements Engine.
func (j *JetStream) Holder(ctx context.Context, id string) (protocol.Holder, error) {
	var h protocol.Holder
	if err := j.entry(ctx, holderStream, holderSubject(id), &h); err != nil {
		return protocol.Holder{}, fmt.Errorf("holder %s: %w", id, err)
	}
	return h, nil
}

// RemoveHolder implements Engine.
func (j *JetStream) RemoveHolder(ctx context.Context, id string) error {
	if err := j.removeEntry(ctx, holderSubject(id)); err != nil {
		return fmt.Errorf("remove holder %s: %w", id, err)
	}
	return nil
}

// putEntry writes a directory entry by publishing to its bucket's subject: the
// library's own Put has no way to say how long it lives.
func (j *JetStream) putEntry(ctx context.Context, subject string, value any, ttl time.Duration) error {
	body, err := json.Marshal(value)
	if err != nil {
		return err
	}
	msg := nats.NewMsg(subject)
	msg.Data = body
	if ttl > 0 {
		msg.Header[jetstream.MsgTTLHeader] = []string{strconv.FormatInt(int64(ttl/time.Second), 10) + "s"}
	}
	return j.patiently(ctx, func(ctx context.Context) error {
		_, err := j.publish(ctx, msg)
		return err
	})
}

// removeEntry puts a marker in the place of an entry that watchers see, and
// that goes by itself.
func (j *JetStream) removeEntry(ctx context.Context, subject string) error {
	msg := nats.NewMsg(subject)
	msg.Header[operationHeader] = []string{operationPurge}
	msg.Header[jetstream.MsgRollup] = []string{jetstream.MsgRollupSubject}
	msg.Header[jetstream.MsgTTLHeader] = []string{strconv.FormatInt(int64(markerAge/time.Second), 10) + "s"}
	return j.patiently(ctx, func(ctx context.Context) error {
		_, err := j.publish(ctx, msg)
		return err
	})
}

// entry reads a directory entry from the leader.
func (j *JetStream) entry(ctx context.Context, stream, subject string, value any) error {
	msg, err := j.get(ctx, stream, getRequest{LastFor: subject})
	if err != nil {
		return err
	}
	if msg.header(operationHeader) != "" || msg.header(jetstream.MarkerReasonHeader) != "" {
		return ErrNotFound
	}
	if err := json.Unmarshal(msg.Data, value); err != nil {
		return fmt.Errorf("directory entry %s at %d: %w", subject, msg.Seq, err)
	}
	return nil
}

// Directory implements Engine.
func (j *JetStream) Directory(ctx context.Context) (*lifecycle.Directory, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w, err := j.watchDirectory()
	if err != nil {
		return nil, fmt.Errorf("directory: %w", err)
	}
	if d := w.current.Load(); d != nil && !j.isClosed() {
		return d, nil
	}
	select {
	case <-w.ready:
		return w.current.Load(), nil
	case <-w.refused:
		return nil, fmt.Errorf("directory: %w", w.refusal)
	case <-ctx.Done():
		return nil, fmt.Errorf("directory: %w", ctx.Err())
	case <-j.life.Done():
		return nil, fmt.Errorf("directory: %w", ErrClosed)
	}
}

// Departures implements Engine. It holds up to 256 that nobody has read yet,
// and is not closed when ctx ends.
func (j *JetStream) Departures(ctx context.Context) (<-chan protocol.Holder, error) {
	if _, err := j.Directory(ctx); err != nil { // what has not been seen cannot go
		return nil, err
	}
	w, err := j.watchDirectory()
	if err != nil {
		return nil, fmt.Errorf("departures: %w", err)
	}
	return w.listen(ctx), nil
}

// watchDirectory returns the watch, and starts it the first time.
func (j *JetStream) watchDirectory() (*directoryWatch, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil, ErrClosed
	}
	if j.dir == nil {
		j.dir = newDirectoryWatch(j)
		j.wg.Go(j.dir.run)
	}
	return j.dir, nil
}

// decodeEntry reads one update of a watch into value; false is a key that went.
func decodeEntry(e jetstream.KeyValueEntry, value any) (present bool, err error) {
	if e.Operation() != jetstream.KeyValuePut {
		return false, nil
	}
	if err := json.Unmarshal(e.Value(), value); err != nil {
		return false, fmt.Errorf("directory entry %s at %d: %w", e.Key(), e.Revision(), err)
	}
	return true, nil
}

// holderOf is the id in a key of the holders' bucket.
func holderOf(key string) string { return strings.TrimPrefix(key, "holder.") }
