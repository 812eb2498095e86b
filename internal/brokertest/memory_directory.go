package brokertest

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// directory is the shared part: agents, holders and their expiry. The store's
// lock guards it.
type directory struct {
	revision    uint64
	agents      map[string]*protocol.Profile
	holders     map[string]protocol.Holder
	expiry      map[string]*time.Timer
	beats       map[string]uint64 // which beat of a holder is its last
	beatSeq     uint64
	lastPresent map[string]time.Time
	departures  map[int]chan protocol.Holder
	slots       map[string]revised[protocol.Slots]
	keys        map[string]revised[protocol.KeyUse]
	healths     map[string]revised[agentHealth]
	fleet       *protocol.Fleet // never changed once it is here
	fleetRev    uint64
	records     map[broker.RecordKey]fleetRecord
	schedules   map[string]protocol.Schedule // of the records; never changed once it is here
	rules       map[string]protocol.Rule     // likewise
}

// revised is a value and its revision.
type revised[V any] struct {
	value V
	rev   uint64
}

// replace replaces a value if rev is still its revision, and returns the next one.
func replace[V any](all map[string]revised[V], key string, value V, rev uint64) (uint64, error) {
	if all[key].rev != rev {
		return 0, fmt.Errorf("after %d: %w", rev, broker.ErrConflict)
	}
	all[key] = revised[V]{value, rev + 1}
	return rev + 1, nil
}

// with runs fn with the directory, if the connection is usable. what is for the error.
func (m *Memory) with(ctx context.Context, what string, fn func(d *directory) error) error {
	err := m.checkUsable(ctx)
	if err == nil {
		m.s.mu.Lock()
		defer m.s.mu.Unlock()
		err = fn(&m.s.directory)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return err
}

// snapshot is one connection's last view. The connection's lock guards it.
type snapshot struct{ last *lifecycle.Directory }

func (s *snapshot) forget() { s.last = nil }

func (d *directory) init() {
	d.agents = map[string]*protocol.Profile{}
	d.holders = map[string]protocol.Holder{}
	d.expiry = map[string]*time.Timer{}
	d.beats = map[string]uint64{}
	d.lastPresent = map[string]time.Time{}
	d.departures = map[int]chan protocol.Holder{}
	d.slots = map[string]revised[protocol.Slots]{}
	d.keys = map[string]revised[protocol.KeyUse]{}
	d.healths = map[string]revised[agentHealth]{}
	d.records = map[broker.RecordKey]fleetRecord{}
}

func (d *directory) stop() {
	for _, t := range d.expiry {
		t.Stop()
	}
}

// PutProfile implements broker.Engine.
func (m *Memory) PutProfile(ctx context.Context, p protocol.Profile) error {
	return m.with(ctx, "put agent "+p.ID, func(d *directory) error {
		d.agents[p.ID] = &p
		d.revision++
		return nil
	})
}

// Profile implements broker.Engine.
func (m *Memory) Profile(ctx context.Context, agent string) (p protocol.Profile, err error) {
	err = m.with(ctx, "agent "+agent, func(d *directory) error {
		known, ok := d.agents[agent]
		if !ok {
			return broker.ErrNotFound
		}
		p = *known
		return nil
	})
	return p, err
}

// RemoveProfile implements broker.Engine.
func (m *Memory) RemoveProfile(ctx context.Context, agent string) error {
	return m.with(ctx, "remove agent "+agent, func(d *directory) error {
		delete(d.agents, agent)
		d.revision++
		return nil
	})
}

// Beat implements broker.Engine. Presence lasts whole seconds, rounded up.
func (m *Memory) Beat(ctx context.Context, h protocol.Holder) error {
	if err := m.checkUsable(ctx); err != nil {
		return fmt.Errorf("beat of %s: %w", h.ID, err)
	}
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	d := &s.directory
	before, was := d.holders[h.ID]
	if !was || before != h {
		d.holders[h.ID] = h
		d.revision++
		if was {
			d.updatePresence(before.Agent)
		}
		d.updatePresence(h.Agent)
	}
	if t := d.expiry[h.ID]; t != nil {
		t.Stop()
	}
	d.beatSeq++
	beat := d.beatSeq
	d.beats[h.ID] = beat
	d.expiry[h.ID] = time.AfterFunc(broker.PresenceTTL(h), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if d.beats[h.ID] == beat { // no later beat has come
			d.removeHolder(h.ID)
		}
	})
	return nil
}

// removeHolder wants the store's lock held.
func (d *directory) removeHolder(id string) {
	h, ok := d.holders[id]
	if !ok {
		return
	}
	d.expiry[id].Stop()
	delete(d.expiry, id)
	delete(d.beats, id)
	delete(d.holders, id)
	d.revision++
	if h.Attends() {
		d.updatePresence(h.Agent)
	}
	for _, ch := range d.departures {
		select {
		case ch <- h:
		default: // best effort
		}
	}
}

// updatePresence updates LastPresent after a change to an agent's holders.
func (d *directory) updatePresence(agent string) {
	attended := false
	for _, h := range d.holders {
		attended = attended || h.Agent == agent && h.Attends()
	}
	_, gone := d.lastPresent[agent]
	switch {
	case attended:
		// The zero time marks a present agent; snapshots leave it out.
		d.lastPresent[agent] = time.Time{}
	case gone && d.lastPresent[agent].IsZero():
		d.lastPresent[agent] = time.Now().UTC()
	}
}

// Holder implements broker.Engine.
func (m *Memory) Holder(ctx context.Context, id string) (h protocol.Holder, err error) {
	err = m.with(ctx, "holder "+id, func(d *directory) error {
		known, ok := d.holders[id]
		if !ok {
			return broker.ErrNotFound
		}
		h = known
		return nil
	})
	return h, err
}

// RemoveHolder implements broker.Engine.
func (m *Memory) RemoveHolder(ctx context.Context, id string) error {
	return m.with(ctx, "remove holder "+id, func(d *directory) error {
		d.removeHolder(id)
		return nil
	})
}

// Slots implements broker.Engine.
func (m *Memory) Slots(ctx context.Context, agent string) (slots protocol.Slots, rev uint64, err error) {
	err = m.with(ctx, "slots of "+agent, func(d *directory) error {
		slots, rev = maps.Clone(d.slots[agent].value), d.slots[agent].rev
		return nil
	})
	return slots, rev, err
}

// PutSlots implements broker.Engine.
func (m *Memory) PutSlots(ctx context.Context, agent string, slots protocol.Slots, rev uint64) (next uint64, err error) {
	err = m.with(ctx, "put slots of "+agent, func(d *directory) (err error) {
		next, err = replace(d.slots, agent, maps.Clone(slots), rev)
		return err
	})
	return next, err
}

// Fleet implements broker.Engine.
func (m *Memory) Fleet(ctx context.Context) (fleet protocol.Fleet, rev uint64, err error) {
	err = m.with(ctx, "settings of the fleet", func(d *directory) error {
		if d.fleet != nil {
			fleet, rev = *d.fleet, d.fleetRev
		}
		return nil
	})
	return fleet, rev, err
}

// PutFleet implements broker.Engine.
func (m *Memory) PutFleet(ctx context.Context, fleet protocol.Fleet, rev uint64) (next uint64, err error) {
	err = m.with(ctx, "put settings of the fleet", func(d *directory) error {
		if d.fleetRev != rev {
			return fmt.Errorf("after %d: %w", rev, broker.ErrConflict)
		}
		d.fleet, d.fleetRev, next = &fleet, rev+1, rev+1
		d.revision++
		return nil
	})
	return next, err
}

// Directory implements broker.Engine. A cut connection keeps its last view,
// with ConnectedSince zero.
func (m *Memory) Directory(ctx context.Context) (*lifecycle.Directory, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, fmt.Errorf("directory: %w", m.reachable())
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	d := &m.s.directory
	if m.snapshot.last != nil && (m.snapshot.last.Revision == d.revision || m.cut) {
		return m.snapshot.last, nil
	}
	snap := &lifecycle.Directory{
		Revision:       d.revision,
		Agents:         maps.Clone(d.agents),
		Holders:        maps.Clone(d.holders),
		Fleet:          d.fleet,
		Schedules:      d.schedules,
		Rules:          d.rules,
		Health:         d.healthSnapshot(),
		LastPresent:    map[string]time.Time{},
		ConnectedSince: m.since,
	}
	for agent, at := range d.lastPresent {
		if !at.IsZero() {
			snap.LastPresent[agent] = at
		}
	}
	snap.Count()
	m.snapshot.last = snap
	return snap, nil
}

// Departures implements broker.Engine.
func (m *Memory) Departures(ctx context.Context) (<-chan protocol.Holder, error) {
	if err := m.checkUsable(ctx); err != nil {
		return nil, fmt.Errorf("departures: %w", err)
	}
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastSubscription++
	key, ch := s.lastSubscription, make(chan protocol.Holder, 256)
	s.directory.departures[key] = ch
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.directory.departures, key)
	})
	return ch, nil
}
