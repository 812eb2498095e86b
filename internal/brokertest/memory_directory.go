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
	slots       map[string]agentSlots
	keys        map[string]keyUse
	healths     map[string]agentHealth
	fleet       *protocol.Fleet // never changed once it is here
	fleetRev    uint64
	records     map[broker.RecordKey]fleetRecord
	schedules   map[string]protocol.Schedule // of the records; never changed once it is here
	rules       map[string]protocol.Rule     // likewise
}

// agentSlots are an agent's slots and their revision.
type agentSlots struct {
	taken protocol.Slots
	rev   uint64
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
	d.slots = map[string]agentSlots{}
	d.keys = map[string]keyUse{}
	d.healths = map[string]agentHealth{}
	d.records = map[broker.RecordKey]fleetRecord{}
}

func (d *directory) stop() {
	for _, t := range d.expiry {
		t.Stop()
	}
}

// PutProfile implements broker.Engine.
func (m *Memory) PutProfile(ctx context.Context, p protocol.Profile) error {
	if err := m.checkUsable(ctx); err != nil {
		return fmt.Errorf("put agent %s: %w", p.ID, err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	m.s.directory.agents[p.ID] = &p
	m.s.directory.revision++
	return nil
}

// Profile implements broker.Engine.
func (m *Memory) Profile(ctx context.Context, agent string) (protocol.Profile, error) {
	if err := m.checkUsable(ctx); err != nil {
		return protocol.Profile{}, fmt.Errorf("agent %s: %w", agent, err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	p, ok := m.s.directory.agents[agent]
	if !ok {
		return protocol.Profile{}, fmt.Errorf("agent %s: %w", agent, broker.ErrNotFound)
	}
	return *p, nil
}

// RemoveProfile implements broker.Engine.
func (m *Memory) RemoveProfile(ctx context.Context, agent string) error {
	if err := m.checkUsable(ctx); err != nil {
		return fmt.Errorf("remove agent %s: %w", agent, err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	delete(m.s.directory.agents, agent)
	m.s.directory.revision++
	return nil
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
func (m *Memory) Holder(ctx context.Context, id string) (protocol.Holder, error) {
	if err := m.checkUsable(ctx); err != nil {
		return protocol.Holder{}, fmt.Errorf("holder %s: %w", id, err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	h, ok := m.s.directory.holders[id]
	if !ok {
		return protocol.Holder{}, fmt.Errorf("holder %s: %w", id, broker.ErrNotFound)
	}
	return h, nil
}

// RemoveHolder implements broker.Engine.
func (m *Memory) RemoveHolder(ctx context.Context, id string) error {
	if err := m.checkUsable(ctx); err != nil {
		return fmt.Errorf("remove holder %s: %w", id, err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	m.s.directory.removeHolder(id)
	return nil
}

// Slots implements broker.Engine.
func (m *Memory) Slots(ctx context.Context, agent string) (protocol.Slots, uint64, error) {
	if err := m.checkUsable(ctx); err != nil {
		return nil, 0, fmt.Errorf("slots of %s: %w", agent, err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	s := m.s.directory.slots[agent]
	return maps.Clone(s.taken), s.rev, nil
}

// PutSlots implements broker.Engine.
func (m *Memory) PutSlots(ctx context.Context, agent string, slots protocol.Slots, rev uint64) (uint64, error) {
	if err := m.checkUsable(ctx); err != nil {
		return 0, fmt.Errorf("put slots of %s: %w", agent, err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	if s := m.s.directory.slots[agent]; s.rev != rev {
		return 0, fmt.Errorf("slots of %s after %d: %w", agent, rev, broker.ErrConflict)
	}
	m.s.directory.slots[agent] = agentSlots{maps.Clone(slots), rev + 1}
	return rev + 1, nil
}

// Fleet implements broker.Engine.
func (m *Memory) Fleet(ctx context.Context) (protocol.Fleet, uint64, error) {
	if err := m.checkUsable(ctx); err != nil {
		return protocol.Fleet{}, 0, fmt.Errorf("settings of the fleet: %w", err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	d := &m.s.directory
	if d.fleet == nil {
		return protocol.Fleet{}, 0, nil
	}
	return *d.fleet, d.fleetRev, nil
}

// PutFleet implements broker.Engine.
func (m *Memory) PutFleet(ctx context.Context, fleet protocol.Fleet, rev uint64) (uint64, error) {
	if err := m.checkUsable(ctx); err != nil {
		return 0, fmt.Errorf("put settings of the fleet: %w", err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	d := &m.s.directory
	if d.fleetRev != rev {
		return 0, fmt.Errorf("put settings of the fleet after %d: %w", rev, broker.ErrConflict)
	}
	d.fleet, d.fleetRev = &fleet, rev+1
	d.revision++
	return d.fleetRev, nil
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
