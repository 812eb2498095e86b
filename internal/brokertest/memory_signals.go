package brokertest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// signals are those that are stored, in their order, and the ids of recent ones.
type signals struct {
	stored  []*storedSignal
	recent  map[[2]string]time.Time
	changed notifier
}

type storedSignal struct {
	protocol.Signal
	at       time.Time
	due      time.Time // when it may be delivered
	attempts int
}

// PutSignal implements broker.Engine.
func (m *Memory) PutSignal(ctx context.Context, sent protocol.Signal) error {
	if err := m.checkUsable(ctx); err != nil {
		return fmt.Errorf("signal %s: %w", sent.Name, err)
	}
	if err := sent.Validate(); err != nil {
		return err
	}
	now := time.Now().UTC()
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	s, key := &m.s.signals, [2]string{sent.Name, sent.ID}
	if at, has := s.recent[key]; has && now.Sub(at) < broker.SignalTwice {
		return nil
	}
	ofName := 0
	for _, one := range s.stored {
		if one.Name == sent.Name {
			ofName++
		}
	}
	if len(s.stored) >= broker.SignalsMax || ofName >= broker.SignalsOfNameMax {
		return broker.ErrSignalsFull
	}
	if s.recent == nil {
		s.recent = map[[2]string]time.Time{}
	}
	s.recent[key] = now
	s.stored = append(s.stored, &storedSignal{Signal: sent, at: now, due: now})
	s.changed.notify()
	return nil
}

// PullSignals implements broker.Engine.
func (m *Memory) PullSignals(ctx context.Context, most int, wait time.Duration) ([]broker.SignalDelivery, error) {
	end := time.Now().Add(wait)
	for {
		if err := m.checkUsable(ctx); err != nil {
			return nil, fmt.Errorf("pull signals: %w", err)
		}
		m.mu.Lock()
		state := m.stateChanged.wait()
		m.mu.Unlock()
		now := time.Now()
		var got []broker.SignalDelivery
		left := end.Sub(now)
		m.s.mu.Lock()
		for _, one := range m.s.signals.stored {
			if one.due.After(now) {
				left = min(left, one.due.Sub(now))
			} else if len(got) < most {
				one.attempts++
				one.due = now.Add(broker.SignalWait)
				got = append(got, &signalDelivery{m.s, one, one.attempts})
			}
		}
		changed := m.s.signals.changed.wait()
		m.s.mu.Unlock()
		if len(got) > 0 || !now.Before(end) {
			return got, nil
		}
		if waitAny(ctx, left, changed, state); time.Until(end) > 0 {
			m.yield("pull signals")
		}
	}
}

// SignalsWaiting implements broker.Engine.
func (m *Memory) SignalsWaiting(ctx context.Context) (int, error) {
	if err := m.checkUsable(ctx); err != nil {
		return 0, fmt.Errorf("signals: %w", err)
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	return len(m.s.signals.stored), nil
}

type signalDelivery struct {
	s       *store
	one     *storedSignal
	attempt int
}

func (d *signalDelivery) Signal() protocol.Signal { return d.one.Signal }
func (d *signalDelivery) At() time.Time           { return d.one.at }
func (d *signalDelivery) Attempt() int            { return d.attempt }

func (d *signalDelivery) Done() error {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	d.s.signals.stored = slices.DeleteFunc(d.s.signals.stored, func(one *storedSignal) bool { return one == d.one })
	return nil
}

func (d *signalDelivery) Again(after time.Duration) error {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	d.one.due = time.Now().Add(after)
	d.s.signals.changed.notify()
	return nil
}
