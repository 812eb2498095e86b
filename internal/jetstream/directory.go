package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Headers with which the engine and its clients mark a removed key.
const (
	operationHeader = "KV-Operation"
	operationPurge  = "PURGE"
)

// PutProfile implements broker.Engine. It retries a timeout for 12 s.
func (j *Engine) PutProfile(ctx context.Context, p protocol.Profile) error {
	_, err := j.putEntry(ctx, agentPrefix+p.ID, p, nil, 0)
	return inContext(err, "put agent %s", p.ID)
}

// Profile implements broker.Engine. An entry that is not a profile of the agent is ErrNotFound, and
// left out of the directory.
func (j *Engine) Profile(ctx context.Context, agent string) (protocol.Profile, error) {
	p, err := readEntry(ctx, j, agentStream, agentPrefix, agent, profileIn)
	return p, inContext(err, "agent %s", agent)
}

// profileIn decodes the profile of an agent from its entry.
func profileIn(agent string, body []byte) (protocol.Profile, error) {
	return broker.EntryIn("agent", agent, body, math.MaxInt, func(p *protocol.Profile) string { return p.ID })
}

// holderIn decodes a holder from its entry.
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
	return inContext(j.removeEntry(ctx, agentPrefix+agent), "remove agent %s", agent)
}

// Beat implements broker.Engine. Presence lasts whole seconds, rounded up. It retries a timeout for
// 12 s.
func (j *Engine) Beat(ctx context.Context, h protocol.Holder) error {
	seq, err := j.putEntry(ctx, holderPrefix+h.ID, h, nil, broker.PresenceTTL(h))
	if err != nil {
		return fmt.Errorf("beat of %s: %w", h.ID, err)
	}
	j.holderEpoch.Store(holderEpochOf(seq))
	j.lastBeat.Store(time.Now().UnixNano())
	return nil
}

// Holder implements broker.Engine. An entry that is not the holder's is ErrNotFound, and left out
// of the directory.
func (j *Engine) Holder(ctx context.Context, id string) (protocol.Holder, error) {
	h, err := readEntry(ctx, j, holderStream, holderPrefix, id, holderIn)
	return h, inContext(err, "holder %s", id)
}

// RemoveHolder implements broker.Engine.
func (j *Engine) RemoveHolder(ctx context.Context, id string) error {
	return inContext(j.removeEntry(ctx, holderPrefix+id), "remove holder %s", id)
}

// inContext adds the operation that failed to an error; nil stays nil.
func inContext(err error, format string, args ...any) error {
	if err != nil {
		err = fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
	}
	return err
}

// putEntry writes an entry as JSON, if after is nil or still the sequence of the last one at its
// subject; broker.ErrConflict. It expires after ttl; 0 is never.
func (j *Engine) putEntry(ctx context.Context, subject string, value any, after *uint64, ttl time.Duration) (seq uint64, err error) {
	body, err := json.Marshal(value)
	if err != nil {
		return 0, err
	}
	return j.putBody(ctx, subject, body, after, ttl)
}

// putBody is putEntry for an encoded entry. It publishes to the subject of a bucket, because the
// library's Put does not support a TTL.
func (j *Engine) putBody(ctx context.Context, subject string, body []byte, after *uint64, ttl time.Duration) (seq uint64, err error) {
	msg := nats.NewMsg(subject)
	msg.Data = body
	if ttl > 0 {
		msg.Header[jetstream.MsgTTLHeader] = []string{ttlText(ttl)}
	}
	if after != nil {
		msg.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(*after, 10)}
	}
	return j.publishRetried(ctx, msg)
}

func ttlText(ttl time.Duration) string { return strconv.FormatInt(int64(ttl/time.Second), 10) + "s" }

// publishRetried stores a message, and retries temporary errors; broker.ErrConflict.
func (j *Engine) publishRetried(ctx context.Context, msg *nats.Msg) (seq uint64, err error) {
	err = j.retryWithTimeout(ctx, func(ctx context.Context) (err error) {
		seq, err = j.publish(ctx, msg)
		return err
	})
	if hasCode(err, codeConflict) {
		err = broker.ErrConflict
	}
	return seq, err
}

// removeEntry replaces an entry with a marker that watchers see, and that expires.
func (j *Engine) removeEntry(ctx context.Context, subject string) error {
	msg := nats.NewMsg(subject)
	msg.Header[operationHeader] = []string{operationPurge}
	msg.Header[jetstream.MsgRollup] = []string{jetstream.MsgRollupSubject}
	msg.Header[jetstream.MsgTTLHeader] = []string{ttlText(markerAge)}
	_, err := j.publishRetried(ctx, msg)
	return err
}

// lastEntry reads the last entry at a subject, and its sequence, from the leader. The body is nil
// if it was removed, and the sequence 0 if there never was one.
func (j *Engine) lastEntry(ctx context.Context, stream, subject string) (body []byte, seq uint64, err error) {
	msg, err := j.getMessage(ctx, stream, getRequest{LastFor: subject})
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return nil, 0, nil
	case err != nil:
		return nil, 0, err
	case msg.header(operationHeader) != "" || msg.header(jetstream.MarkerReasonHeader) != "":
		return nil, msg.Seq, nil
	}
	return append([]byte{}, msg.Data...), msg.Seq, nil // an empty body is not nil
}

// readEntry reads a directory entry from the leader. An unreadable entry is ErrNotFound.
func readEntry[T any](ctx context.Context, j *Engine, stream, prefix, name string, read func(string, []byte) (T, error)) (value T, err error) {
	if err := protocol.CheckID("name", name); err != nil { // an invalid name has no entry, and a wildcard would match too many
		return value, fmt.Errorf("%v: %w", err, broker.ErrNotFound)
	}
	body, seq, err := j.lastEntry(ctx, stream, prefix+name)
	switch {
	case err != nil:
		return value, err
	case body == nil:
		return value, broker.ErrNotFound
	}
	if value, err = read(name, body); err != nil {
		var none T
		return none, fmt.Errorf("its entry %d in the directory can't be read: %v: %w", seq, err, broker.ErrNotFound)
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

// Departures implements broker.Engine. It buffers up to 256 departures, and its channel is not
// closed when ctx ends.
func (j *Engine) Departures(ctx context.Context) (<-chan protocol.Holder, error) {
	if _, err := j.Directory(ctx); err != nil { // a departure can only be noticed after the snapshot
		return nil, err
	}
	w, err := j.watchDirectory()
	if err != nil {
		return nil, fmt.Errorf("departures: %w", err)
	}
	return w.departed.add(ctx, updatesMax), nil
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

// fleetSubject is the subject of the settings of the fleet, in the bucket of the agents' profiles.
const fleetSubject = agentPrefix + protocol.FleetKey

// fleetIn decodes the settings of the fleet from their entry. It is strict: a program that does not
// know a field must not write the settings back without it.
func fleetIn(body []byte) (protocol.Fleet, error) {
	fleet, err := protocol.DecodeFleet(body)
	if err == nil {
		err = fleet.Validate()
	}
	return fleet, err
}

// Fleet implements broker.Engine.
func (j *Engine) Fleet(ctx context.Context) (protocol.Fleet, uint64, error) {
	body, rev, err := j.lastEntry(ctx, agentStream, fleetSubject)
	if err != nil || body == nil {
		return protocol.Fleet{}, rev, inContext(err, "settings of the fleet")
	}
	fleet, err := fleetIn(body)
	return fleet, rev, inContext(err, "settings of the fleet, entry %d", rev)
}

// PutFleet implements broker.Engine. It retries a timeout for 12 s; if the earlier try was stored,
// it returns ErrConflict.
func (j *Engine) PutFleet(ctx context.Context, fleet protocol.Fleet, rev uint64) (uint64, error) {
	seq, err := j.putEntry(ctx, fleetSubject, fleet, &rev, 0)
	return seq, inContext(err, "put settings of the fleet after %d", rev)
}

// healthIn decodes the health of an agent from its entry.
func healthIn(agent string, body []byte) (protocol.Health, error) {
	return broker.EntryIn("agent", agent, body, protocol.HealthBytesMax, func(h *protocol.Health) string { return h.Agent })
}

// Health implements broker.Engine. An unreadable entry counts as none: the breaker is closed.
func (j *Engine) Health(ctx context.Context, agent string) (protocol.Health, uint64, error) {
	if err := protocol.CheckID("agent", agent); err != nil {
		return protocol.Health{}, 0, err
	}
	body, rev, err := j.lastEntry(ctx, holderStream, healthPrefix+agent)
	if err != nil || body == nil {
		return protocol.Health{}, rev, inContext(err, "health of %s", agent)
	}
	h, err := healthIn(agent, body)
	if err != nil {
		j.cfg.Log.Warn("health of an agent not readable; its breaker is closed", "agent", agent, "seq", rev, "err", err)
		h = protocol.Health{}
	}
	return h, rev, nil
}

// PutHealth implements broker.Engine. It retries a timeout for 12 s; if the earlier try was stored,
// it returns ErrConflict.
func (j *Engine) PutHealth(ctx context.Context, agent string, h protocol.Health, rev uint64) (uint64, error) {
	h.Agent = agent
	seq, err := j.putEntry(ctx, healthPrefix+agent, h, &rev, broker.HealthTTL(h, j.Now()))
	return seq, inContext(err, "put health of %s after %d", agent, rev)
}

// Slots implements broker.Engine.
func (j *Engine) Slots(ctx context.Context, agent string) (protocol.Slots, uint64, error) {
	body, rev, err := j.lastEntry(ctx, holderStream, slotsPrefix+agent)
	if err != nil || body == nil {
		return nil, rev, inContext(err, "slots of %s", agent)
	}
	var slots protocol.Slots
	if err := json.Unmarshal(body, &slots); err != nil { // written by another program: start over
		j.cfg.Log.Warn("slots not readable; they are counted again", "agent", agent, "seq", rev, "err", err)
		slots = nil
	}
	maps.DeleteFunc(slots, func(ticket string, _ protocol.Slot) bool { // an invalid ticket takes no slot
		_, err := protocol.ParseTicket(ticket)
		return err != nil
	})
	return slots, rev, nil
}

// PutSlots implements broker.Engine. It retries a timeout for 12 s; if the earlier try was stored,
// it returns ErrConflict.
func (j *Engine) PutSlots(ctx context.Context, agent string, slots protocol.Slots, rev uint64) (uint64, error) {
	seq, err := j.putEntry(ctx, slotsPrefix+agent, slots, &rev, 0)
	return seq, inContext(err, "put slots of %s after %d", agent, rev)
}

// KeyUse implements broker.Engine. An unreadable entry counts as none: the next beats of the holders
// restore their places.
func (j *Engine) KeyUse(ctx context.Context, key string) (protocol.KeyUse, uint64, error) {
	body, rev, err := j.lastEntry(ctx, holderStream, limitSubject(key))
	if err != nil || body == nil {
		return protocol.KeyUse{}, rev, inContext(err, "limit %s", key)
	}
	use, err := protocol.DecodeKeyUse(body)
	if err == nil && use.Key != key {
		err = fmt.Errorf("it is of another key, %q", use.Key)
	}
	if err != nil {
		j.cfg.Log.Warn("use of a limit not readable; it is counted again", "key", key, "seq", rev, "err", err)
		use = protocol.KeyUse{}
	}
	return use, rev, nil
}

// PutKeyUse implements broker.Engine. It retries a timeout for 12 s; if the earlier try was stored, it
// returns ErrConflict.
func (j *Engine) PutKeyUse(ctx context.Context, key string, use protocol.KeyUse, rev uint64) (uint64, error) {
	use.Key = key
	seq, err := j.putEntry(ctx, limitSubject(key), use, &rev, broker.KeyUseTTL(use, j.Now()))
	return seq, inContext(err, "put limit %s after %d", key, rev)
}

// KeyUses implements broker.Engine.
func (j *Engine) KeyUses(ctx context.Context) ([]protocol.KeyUse, error) {
	var uses []protocol.KeyUse
	err := j.eachSubject(ctx, holderStream, limitPrefix+"*", func(subject string) error {
		body, _, err := j.lastEntry(ctx, holderStream, subject)
		if use, unreadable := protocol.DecodeKeyUse(body); err == nil && unreadable == nil && limitSubject(use.Key) == subject {
			uses = append(uses, use)
		}
		return err
	})
	return uses, inContext(err, "limits by key")
}
