package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
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
	if _, err := j.putEntry(ctx, agentSubject(p.ID), p, 0); err != nil {
		return fmt.Errorf("put agent %s: %w", p.ID, err)
	}
	return nil
}

// Profile implements broker.Engine. An entry that is not a profile of the agent is ErrNotFound, and
// left out of the directory.
func (j *Engine) Profile(ctx context.Context, agent string) (protocol.Profile, error) {
	p, err := readEntry(ctx, j, agentStream, agentSubject(agent), agent, profileIn)
	if err != nil {
		return protocol.Profile{}, fmt.Errorf("agent %s: %w", agent, err)
	}
	return p, nil
}

// profileIn decodes the profile of an agent from its entry.
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
	if err := j.removeEntry(ctx, agentSubject(agent)); err != nil {
		return fmt.Errorf("remove agent %s: %w", agent, err)
	}
	return nil
}

// Beat implements broker.Engine. Presence lasts whole seconds, rounded up. It retries a timeout for
// 12 s.
func (j *Engine) Beat(ctx context.Context, h protocol.Holder) error {
	seq, err := j.putEntry(ctx, holderSubject(h.ID), h, broker.PresenceTTL(h))
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

// putEntry writes a directory entry by publishing to its bucket's subject, because the library's
// Put does not support a TTL.
func (j *Engine) putEntry(ctx context.Context, subject string, value any, ttl time.Duration) (seq uint64, err error) {
	body, err := json.Marshal(value)
	if err != nil {
		return 0, err
	}
	msg := nats.NewMsg(subject)
	msg.Data = body
	if ttl > 0 {
		msg.Header[jetstream.MsgTTLHeader] = []string{strconv.FormatInt(int64(ttl/time.Second), 10) + "s"}
	}
	err = j.retryWithTimeout(ctx, func(ctx context.Context) (err error) {
		seq, err = j.publish(ctx, msg)
		return err
	})
	return seq, err
}

// removeEntry replaces an entry with a marker that watchers see, and that expires.
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

// readEntry reads a directory entry from the leader. An unreadable entry is ErrNotFound.
func readEntry[T any](ctx context.Context, j *Engine, stream, subject, name string, read func(string, []byte) (T, error)) (value T, err error) {
	if err := protocol.CheckID("name", name); err != nil { // an invalid name has no entry, and a wildcard would match too many
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

// holderOf returns the id in a key of the holders' bucket.
func holderOf(key string) string { return strings.TrimPrefix(key, "holder.") }

// fleetSubject is the subject of the settings of the fleet, in the bucket of the agents' profiles.
var fleetSubject = agentSubject(protocol.FleetKey)

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
	msg, err := j.getMessage(ctx, agentStream, getRequest{LastFor: fleetSubject})
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return protocol.Fleet{}, 0, nil
	case err != nil:
		return protocol.Fleet{}, 0, fmt.Errorf("settings of the fleet: %w", err)
	case msg.header(operationHeader) != "" || msg.header(jetstream.MarkerReasonHeader) != "":
		return protocol.Fleet{}, msg.Seq, nil
	}
	fleet, err := fleetIn(msg.Data)
	if err != nil {
		return fleet, msg.Seq, fmt.Errorf("settings of the fleet, entry %d: %w", msg.Seq, err)
	}
	return fleet, msg.Seq, nil
}

// PutFleet implements broker.Engine. It retries a timeout for 12 s; if the earlier try was stored,
// it returns ErrConflict.
func (j *Engine) PutFleet(ctx context.Context, fleet protocol.Fleet, rev uint64) (uint64, error) {
	body, err := json.Marshal(fleet)
	if err != nil {
		return 0, err
	}
	seq, err := j.putAfter(ctx, fleetSubject, body, rev)
	if err != nil {
		return 0, fmt.Errorf("put settings of the fleet after %d: %w", rev, err)
	}
	return seq, nil
}

// putAfter writes an entry if rev is still the sequence of the last one at its subject;
// broker.ErrConflict.
func (j *Engine) putAfter(ctx context.Context, subject string, body []byte, rev uint64) (seq uint64, err error) {
	return j.putAfterFor(ctx, subject, body, rev, 0)
}

// putAfterFor is putAfter for an entry that expires; 0 is never.
func (j *Engine) putAfterFor(ctx context.Context, subject string, body []byte, rev uint64, ttl time.Duration) (seq uint64, err error) {
	msg := nats.NewMsg(subject)
	msg.Data = body
	if ttl > 0 {
		msg.Header[jetstream.MsgTTLHeader] = []string{strconv.FormatInt(int64(ttl/time.Second), 10) + "s"}
	}
	msg.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(rev, 10)}
	err = j.retryWithTimeout(ctx, func(ctx context.Context) (err error) {
		seq, err = j.publish(ctx, msg)
		return err
	})
	if hasCode(err, codeConflict) {
		err = broker.ErrConflict
	}
	return seq, err
}

// healthIn decodes the health of an agent from its entry.
func healthIn(agent string, body []byte) (protocol.Health, error) {
	var h protocol.Health
	if len(body) > protocol.HealthBytesMax {
		return h, fmt.Errorf("it has %s", protocol.OverSize(len(body), protocol.HealthBytesMax))
	}
	err := json.Unmarshal(body, &h)
	if err == nil {
		err = h.Validate()
	}
	if err == nil && h.Agent != agent {
		err = fmt.Errorf("it is of another agent, %q", h.Agent)
	}
	return h, err
}

// Health implements broker.Engine. An unreadable entry counts as none: the breaker is closed.
func (j *Engine) Health(ctx context.Context, agent string) (protocol.Health, uint64, error) {
	if err := protocol.CheckID("agent", agent); err != nil {
		return protocol.Health{}, 0, err
	}
	msg, err := j.getMessage(ctx, holderStream, getRequest{LastFor: healthSubject(agent)})
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return protocol.Health{}, 0, nil
	case err != nil:
		return protocol.Health{}, 0, fmt.Errorf("health of %s: %w", agent, err)
	case msg.header(operationHeader) != "" || msg.header(jetstream.MarkerReasonHeader) != "":
		return protocol.Health{}, msg.Seq, nil
	}
	h, err := healthIn(agent, msg.Data)
	if err != nil {
		j.cfg.Log.Warn("health of an agent not readable; its breaker is closed", "agent", agent, "seq", msg.Seq, "err", err)
		return protocol.Health{}, msg.Seq, nil
	}
	return h, msg.Seq, nil
}

// PutHealth implements broker.Engine. It retries a timeout for 12 s; if the earlier try was stored,
// it returns ErrConflict.
func (j *Engine) PutHealth(ctx context.Context, agent string, h protocol.Health, rev uint64) (uint64, error) {
	h.Agent = agent
	body, err := json.Marshal(h)
	if err != nil {
		return 0, err
	}
	seq, err := j.putAfterFor(ctx, healthSubject(agent), body, rev, broker.HealthTTL(h, j.Now()))
	if err != nil {
		return 0, fmt.Errorf("put health of %s after %d: %w", agent, rev, err)
	}
	return seq, nil
}

// healthOf returns the agent of a key of the holders' bucket, if it is the key of a health.
func healthOf(key string) (agent string, ok bool) { return strings.CutPrefix(key, "health.") }

// health updates the health of an agent.
func (s *session) health(agent string, e jetstream.KeyValueEntry) {
	delete(s.healths, agent)
	if e.Operation() != jetstream.KeyValuePut {
		return
	}
	h, err := healthIn(agent, e.Value())
	switch {
	case err != nil:
		s.w.j.cfg.Log.Warn("health left out of the directory", "key", e.Key(), "seq", e.Revision(), "err", err)
	case !h.IsZero():
		s.healths[agent] = lifecycle.AgentHealth{Health: h, Rev: e.Revision()}
	}
}

// healthSnapshot returns a copy; nil if all agents are healthy, the usual case.
func healthSnapshot(all map[string]lifecycle.AgentHealth) map[string]lifecycle.AgentHealth {
	if len(all) == 0 {
		return nil
	}
	return maps.Clone(all)
}

// Slots implements broker.Engine.
func (j *Engine) Slots(ctx context.Context, agent string) (protocol.Slots, uint64, error) {
	msg, err := j.getMessage(ctx, holderStream, getRequest{LastFor: slotsSubject(agent)})
	if errors.Is(err, broker.ErrNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("slots of %s: %w", agent, err)
	}
	var slots protocol.Slots
	if err := json.Unmarshal(msg.Data, &slots); err != nil { // written by another program: start over
		j.cfg.Log.Warn("slots not readable; they are counted again", "agent", agent, "seq", msg.Seq, "err", err)
		slots = nil
	}
	maps.DeleteFunc(slots, func(ticket string, _ protocol.Slot) bool { // an invalid ticket takes no slot
		_, err := protocol.ParseTicket(ticket)
		return err != nil
	})
	return slots, msg.Seq, nil
}

// PutSlots implements broker.Engine. It retries a timeout for 12 s; if the earlier try was stored,
// it returns ErrConflict.
func (j *Engine) PutSlots(ctx context.Context, agent string, slots protocol.Slots, rev uint64) (uint64, error) {
	body, err := json.Marshal(slots)
	if err != nil {
		return 0, err
	}
	seq, err := j.putAfter(ctx, slotsSubject(agent), body, rev)
	if err != nil {
		return 0, fmt.Errorf("put slots of %s after %d: %w", agent, rev, err)
	}
	return seq, nil
}
