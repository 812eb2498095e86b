package jetstream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	// probeInterval is how often a watch of the directory checks that presence can be written, unless a
	// beat of this process has shown it. Every watcher does so: a thousand of them write 500 messages
	// per second.
	probeInterval = 2 * time.Second
	// probeLapse is how long the engine may go without a confirmed write before the watch counts as
	// broken. While no holder can beat for a shorter time, only holders with such a short lease lapse
	// unnoticed. It also detects that this process itself was frozen.
	probeLapse = 5 * time.Second
	// updatesMax bounds the updates in one snapshot.
	updatesMax = 256
)

// directoryWatch keeps the snapshot that Directory returns. It is one goroutine, in sessions: a
// session starts with the whole directory and ends when the engine stops answering. Between
// sessions the last snapshot remains, with ConnectedSince zero.
type directoryWatch struct {
	j       *Engine
	current atomic.Pointer[lifecycle.Directory]
	ready   chan struct{} // closed with the first snapshot
	refused chan struct{} // closed when the engine does not permit the watch

	mu      sync.Mutex
	refusal error // set before refused is closed

	departed listeners[protocol.Holder]
}

func newDirectoryWatch(j *Engine) *directoryWatch {
	return &directoryWatch{j: j, ready: make(chan struct{}), refused: make(chan struct{})}
}

// run runs sessions until Close.
func (w *directoryWatch) run() {
	ctx := w.j.closing
	pauses := newBackOff(ctx)
	for ctx.Err() == nil {
		link := w.j.connectionChange()
		began := time.Now()
		err := w.session(ctx, link)
		if ctx.Err() != nil {
			return
		}
		w.j.cfg.Log.Debug("directory watch broke", "err", err)
		w.disconnected()
		if errors.Is(err, broker.ErrNotAllowed) {
			w.failWaiting(err)
		}
		if time.Since(began) > probeLapse {
			pauses.Reset()
		}
		w.j.pause(ctx, pauses.NextBackOff(), nil)
	}
}

// failWaiting informs waiters for the first snapshot that none will come.
func (w *directoryWatch) failWaiting(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refusal == nil {
		w.refusal = err
		close(w.refused)
	}
}

// disconnected marks the snapshot as possibly outdated.
func (w *directoryWatch) disconnected() {
	if last := w.current.Load(); last != nil && !last.ConnectedSince.IsZero() {
		next := *last
		next.ConnectedSince = time.Time{}
		w.current.Store(&next)
	}
}

// session is the state of the directory from one loss of the engine's answers to the next.
type session struct {
	w         *directoryWatch
	since     time.Time
	agents    map[string]*protocol.Profile
	holders   map[string]protocol.Holder
	healths   map[string]lifecycle.AgentHealth
	fleet     *protocol.Fleet
	schedules map[string]protocol.Schedule
	rules     map[string]protocol.Rule
	lag       int // watches that have not caught up yet
}

func (w *directoryWatch) session(ctx context.Context, link <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := w.probe(ctx); err != nil {
		return err
	}
	epoch := w.j.holderEpoch.Load()
	s := &session{w: w, since: w.j.Now(), agents: map[string]*protocol.Profile{}, holders: map[string]protocol.Holder{}, healths: map[string]lifecycle.AgentHealth{}, schedules: map[string]protocol.Schedule{}, rules: map[string]protocol.Rule{}, lag: 2}
	agents, err := w.watch(ctx, AgentBucket, agentKeys, scheduleKeys, ruleKeys)
	if err != nil {
		return err
	}
	defer func() { _ = agents.Stop() }()
	holders, err := w.watch(ctx, HolderBucket, holderKeys, healthKeys)
	if err != nil {
		return err
	}
	defer func() { _ = holders.Stop() }()

	var probes sync.WaitGroup
	defer probes.Wait()
	defer cancel() // before probes.Wait
	probed := make(chan error, 1)
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	confirmed, probing := time.Now().Round(0), false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-link:
			return errDisconnected
		case e, ok := <-agents.Updates():
			if !ok {
				return fmt.Errorf("%w: the watch of agents ended", broker.ErrUnreachable)
			}
			s.applyAll(e, agents.Updates(), s.agent)
		case e, ok := <-holders.Updates():
			if !ok {
				return fmt.Errorf("%w: the watch of holders ended", broker.ErrUnreachable)
			}
			s.applyAll(e, holders.Updates(), s.holder)
		case err := <-probed:
			if err == nil {
				confirmed = time.Now().Round(0)
			}
			probing = false
		case <-tick.C:
			// Wall time, without the monotonic reading, which pauses while the machine sleeps; leases don't.
			if beat := time.Unix(0, w.j.lastBeat.Load()); beat.After(confirmed) {
				confirmed = beat
			}
			since := time.Since(confirmed)
			if w.j.holderEpoch.Load() != epoch { // the watch belongs to the lost stream
				return fmt.Errorf("%w: stream %s was replaced", broker.ErrUnreachable, holderStream)
			}
			if since > probeLapse {
				return fmt.Errorf("%w: presence cannot be written since %s", broker.ErrUnreachable, confirmed)
			}
			if !probing && since > probeInterval/2 {
				probing = true
				probes.Go(func() { probed <- w.probe(ctx) })
			}
		}
	}
}

// probe writes to the holders' bucket like a beat. A read would not do: a leader that has lost its
// quorum still answers reads for a while, and the presence of all holders lapses meanwhile.
func (w *directoryWatch) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	if !w.j.nc.IsConnected() {
		return errDisconnected
	}
	began := time.Now()
	seq, err := w.j.publish(ctx, nats.NewMsg(probeSubject))
	if err == nil {
		w.j.holderEpoch.Store(holderEpochOf(seq))
	}
	return w.j.denied.explain(w.j.nc, began, err)
}

func (w *directoryWatch) watch(ctx context.Context, bucket string, keys ...string) (jetstream.KeyWatcher, error) {
	began := time.Now()
	kv, err := w.j.js.KeyValue(ctx, bucket)
	if err != nil {
		return nil, w.j.denied.explain(w.j.nc, began, err)
	}
	watcher, err := kv.WatchFiltered(ctx, keys)
	return watcher, w.j.denied.explain(w.j.nc, began, err)
}

// applyAll applies an update, and those that are pending already, and publishes a snapshot.
func (s *session) applyAll(e jetstream.KeyValueEntry, more <-chan jetstream.KeyValueEntry, apply func(jetstream.KeyValueEntry)) {
	s.apply(e, apply)
	for range updatesMax {
		select {
		case e, ok := <-more:
			if !ok {
				break // the session finds it closed, and ends
			}
			s.apply(e, apply)
			continue
		default:
		}
		break
	}
	if s.lag <= 0 {
		s.publishSnapshot()
	}
}

// apply applies one update; nil means that a watch has caught up.
func (s *session) apply(e jetstream.KeyValueEntry, apply func(jetstream.KeyValueEntry)) {
	if e == nil {
		s.lag--
		return
	}
	apply(e)
}

func (s *session) agent(e jetstream.KeyValueEntry) {
	if e.Key() == protocol.FleetKey {
		s.settings(e)
	} else if name, is := strings.CutPrefix(e.Key(), "schedule."); is {
		applyTo(s, s.schedules, name, e, broker.ScheduleIn)
	} else if name, is := strings.CutPrefix(e.Key(), "rule."); is {
		applyTo(s, s.rules, name, e, broker.RuleIn)
	} else {
		applyTo(s, s.agents, e.Key(), e, func(name string, body []byte) (*protocol.Profile, error) {
			p, err := profileIn(name, body)
			return &p, err
		})
	}
}

// applyTo applies the entry of a name to those of its kind. An unreadable one is left out.
func applyTo[E any](s *session, all map[string]E, name string, e jetstream.KeyValueEntry, read func(string, []byte) (E, error)) {
	delete(all, name)
	if e.Operation() != jetstream.KeyValuePut {
		return
	}
	entry, err := read(name, e.Value())
	if err != nil {
		s.w.j.cfg.Log.Warn("entry left out of the directory", "key", e.Key(), "seq", e.Revision(), "err", err)
		return
	}
	all[name] = entry
}

// settings applies the settings of the fleet. If they are unreadable, the last ones are kept.
func (s *session) settings(e jetstream.KeyValueEntry) {
	if e.Operation() != jetstream.KeyValuePut {
		s.fleet = nil
		return
	}
	fleet, err := fleetIn(e.Value())
	if err != nil {
		s.w.j.cfg.Log.Warn("settings of the fleet not readable; the previous ones apply", "seq", e.Revision(), "err", err)
		return
	}
	s.fleet = &fleet
}

func (s *session) holder(e jetstream.KeyValueEntry) {
	agent, is := strings.CutPrefix(e.Key(), "health.")
	if !is {
		applyTo(s, s.holders, strings.TrimPrefix(e.Key(), "holder."), e, holderIn)
		return
	}
	applyTo(s, s.healths, agent, e, func(agent string, body []byte) (lifecycle.AgentHealth, error) {
		h, err := healthIn(agent, body)
		return lifecycle.AgentHealth{Health: h, Rev: e.Revision()}, err
	})
	if s.healths[agent].IsZero() {
		delete(s.healths, agent)
	}
}

// publishSnapshot publishes a snapshot, and reports the departed holders.
func (s *session) publishSnapshot() {
	last := s.w.current.Load()
	first := last == nil
	if first {
		last = &lifecycle.Directory{}
	}
	next := &lifecycle.Directory{
		Revision: last.Revision + 1, Agents: maps.Clone(s.agents), Holders: maps.Clone(s.holders), Fleet: s.fleet,
		Schedules: maps.Clone(s.schedules), Rules: maps.Clone(s.rules),
		LastPresent: maps.Clone(last.LastPresent), ConnectedSince: s.since,
	}
	if len(s.healths) > 0 { // usually all agents are healthy
		next.Health = maps.Clone(s.healths)
	}
	if next.LastPresent == nil {
		next.LastPresent = map[string]time.Time{}
	}
	now := s.w.j.Now()
	for _, h := range last.Holders {
		if h.Attends() {
			next.LastPresent[h.Agent] = now // unless another holder of it is present
		}
	}
	for agent, at := range last.LastPresent {
		next.LastPresent[agent] = at
	}
	for _, h := range next.Holders {
		if h.Attends() {
			delete(next.LastPresent, h.Agent)
		}
	}
	next.Count()
	s.w.current.Store(next)
	if first {
		close(s.w.ready)
	}
	for id, h := range last.Holders {
		if _, still := next.Holders[id]; !still {
			s.w.departed.notify(h)
		}
	}
}
