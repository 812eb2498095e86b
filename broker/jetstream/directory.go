package jetstream

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Headers with which the engine and its clients say that a key is gone.
const (
	operationHeader = "KV-Operation"
	operationPurge  = "PURGE"
)

// PutProfile implements broker.Engine. A time-out is tried again for 12 s.
func (j *Engine) PutProfile(ctx context.Context, p protocol.Profile) error {
	if err := j.putEntry(ctx, agentSubject(p.ID), p, 0); err != nil {
		return fmt.Errorf("put agent %s: %w", p.ID, err)
	}
	return nil
}

// Profile implements broker.Engine. An entry that is no profile of the agent is ErrNotFound, as
// it is left out of the directory.
func (j *Engine) Profile(ctx context.Context, agent string) (protocol.Profile, error) {
	p, err := readEntry(ctx, j, agentStream, agentSubject(agent), agent, profileIn)
	if err != nil {
		return protocol.Profile{}, fmt.Errorf("agent %s: %w", agent, err)
	}
	return p, nil
}

// profileIn reads the profile of an agent out of its entry.
func profileIn(agent string, body []byte) (protocol.Profile, error) {
	var p protocol.Profile
	err := json.Unmarshal(body, &p)
	if err == nil {
		err = p.Validate()
	}
	if err == nil && p.ID != agent {
		err = fmt.Errorf("it is of another agent, %q", p.ID)
	}
	return p, err
}

// holderIn reads a holder out of its entry.
func holderIn(id string, body []byte) (protocol.Holder, error) {
	var h protocol.Holder
	err := json.Unmarshal(body, &h)
	if err == nil {
		err = protocol.CheckID("agent", h.Agent)
	}
	switch {
	case err != nil:
	case h.ID != id:
		err = fmt.Errorf("it is of another holder, %q", h.ID)
	case h.LeaseMS < 0 || h.LeaseMS > protocol.LeaseMaxMS:
		err = fmt.Errorf("its lease is %d ms, at most %d are allowed", h.LeaseMS, protocol.LeaseMaxMS)
	case min(h.Slots, h.Busy) < 0 || max(h.Slots, h.Busy) > protocol.ConcurrencyMax:
		err = fmt.Errorf("it has %d slots, %d of them busy; 0 to %d are allowed", h.Slots, h.Busy, protocol.ConcurrencyMax)
	}
	return h, err
}

// RemoveProfile implements broker.Engine.
func (j *Engine) RemoveProfile(ctx context.Context, agent string) error {
	if err := j.removeEntry(ctx, agentSubject(agent)); err != nil {
		return fmt.Errorf("remove agent %s: %w", agent, err)
	}
	return nil
}

// Beat implements broker.Engine. Presence lasts whole seconds, rounded up. A time-out
// is tried again for 12 s.
func (j *Engine) Beat(ctx context.Context, h protocol.Holder) error {
	if err := j.putEntry(ctx, holderSubject(h.ID), h, broker.PresenceTTL(h)); err != nil {
		return fmt.Errorf("beat of %s: %w", h.ID, err)
	}
	j.lastBeat.Store(time.Now().UnixNano())
	return nil
}

// Holder implements broker.Engine. An entry that is no holder's is ErrNotFound, as it is left
// out of the directory.
func (j *Engine) Holder(ctx context.Context, id string) (protocol.Holder, error) {
	h, err := readEntry(ctx, j, holderStream, holderSubject(id), id, holderIn)
	if err != nil {
		return protocol.Holder{}, fmt.Errorf("holder %s: %w", id, err)
	}
	return h, nil
}

// RemoveHolder implements broker.Engine.
func (j *Engine) RemoveHolder(ctx context.Context, id string) error {
	if err := j.removeEntry(ctx, holderSubject(id)); err != nil {
		return fmt.Errorf("remove holder %s: %w", id, err)
	}
	return nil
}

// putEntry writes a directory entry by publishing to its bucket's subject: the
// library's own Put has no way to say how long it lives.
func (j *Engine) putEntry(ctx context.Context, subject string, value any, ttl time.Duration) error {
	body, err := json.Marshal(value)
	if err != nil {
		return err
	}
	msg := nats.NewMsg(subject)
	msg.Data = body
	if ttl > 0 {
		msg.Header[jetstream.MsgTTLHeader] = []string{strconv.FormatInt(int64(ttl/time.Second), 10) + "s"}
	}
	return j.retryWithTimeout(ctx, func(ctx context.Context) error {
		_, err := j.publish(ctx, msg)
		return err
	})
}

// removeEntry puts a marker in the place of an entry that watchers see, and
// that goes by itself.
func (j *Engine) removeEntry(ctx context.Context, subject string) error {
	msg := nats.NewMsg(subject)
	msg.Header[operationHeader] = []string{operationPurge}
	msg.Header[jetstream.MsgRollup] = []string{jetstream.MsgRollupSubject}
	msg.Header[jetstream.MsgTTLHeader] = []string{strconv.FormatInt(int64(markerAge/time.Second), 10) + "s"}
	return j.retryWithTimeout(ctx, func(ctx context.Context) error {
		_, err := j.publish(ctx, msg)
		return err
	})
}

// readEntry reads a directory entry from the leader. What is not to be read is not there.
func readEntry[T any](ctx context.Context, j *Engine, stream, subject, name string, read func(string, []byte) (T, error)) (value T, err error) {
	if err := protocol.CheckID("name", name); err != nil { // nothing stands there, or under a wildcard too much
		return value, fmt.Errorf("%v: %w", err, broker.ErrNotFound)
	}
	msg, err := j.getMessage(ctx, stream, getRequest{LastFor: subject})
	if err != nil {
		return value, err
	}
	if msg.header(operationHeader) != "" || msg.header(jetstream.MarkerReasonHeader) != "" {
		return value, broker.ErrNotFound
	}
	if value, err = read(name, msg.Data); err != nil {
		return value, fmt.Errorf("its entry %d in the directory can't be read: %v: %w", msg.Seq, err, broker.ErrNotFound)
	}
	return value, nil
}

// Directory implements broker.Engine.
func (j *Engine) Directory(ctx context.Context) (*lifecycle.Directory, error) {
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
	case <-j.closing.Done():
		return nil, fmt.Errorf("directory: %w", broker.ErrClosed)
	}
}

// Departures implements broker.Engine. It holds up to 256 that the supervisor has not read yet,
// and is not closed when ctx ends.
func (j *Engine) Departures(ctx context.Context) (<-chan protocol.Holder, error) {
	if _, err := j.Directory(ctx); err != nil { // what has not been seen cannot go
		return nil, err
	}
	w, err := j.watchDirectory()
	if err != nil {
		return nil, fmt.Errorf("departures: %w", err)
	}
	return w.departures(ctx), nil
}

// watchDirectory returns the watch, and starts it the first time.
func (j *Engine) watchDirectory() (*directoryWatch, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil, broker.ErrClosed
	}
	if j.dir == nil {
		j.dir = newDirectoryWatch(j)
		j.wg.Go(j.dir.run)
	}
	return j.dir, nil
}

// holderOf is the id in a key of the holders' bucket.
func holderOf(key string) string { return strings.TrimPrefix(key, "holder.") }
