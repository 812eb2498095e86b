package supervisor

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
)

const (
	// keyEvery is the time between two looks at the keys for which handoffs wait.
	keyEvery = 250 * time.Millisecond
	// keyListEvery is the time between two lists of all keys, which also has those that only another
	// supervisor knows.
	keyListEvery = 10 * time.Second
)

// waitingKeys remembers the keys with a limit for which handoffs wait, and when each is looked at next.
// The holder that releases a place passes it on. A supervisor acts on rates, ends of pauses and lost
// holders.
type waitingKeys struct {
	mu   sync.Mutex
	next map[string]time.Time
}

func (k *waitingKeys) add(key string, at time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.next == nil {
		k.next = map[string]time.Time{}
	}
	if known, has := k.next[key]; !has || at.Before(known) {
		k.next[key] = at
	}
}

// due removes and returns the keys that are to be looked at, in a fixed order.
func (k *waitingKeys) due(now time.Time) (keys []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(k.next)) {
		if !now.Before(k.next[key]) {
			keys = append(keys, key)
			delete(k.next, key)
		}
	}
	return keys
}

// ensureKey makes sure that a handoff that waits for a place under a key gets one.
func (s *Supervisor) ensureKey(ctx context.Context, head broker.Head) error {
	key := lifecycle.AwaitsKey(head.State)
	if key == "" {
		return nil
	}
	s.keys.add(key, s.b.Now())
	_, err := s.b.KeyLimits().Ensure(ctx, head)
	return err
}

// keyLoop lets handoffs begin that wait for a place under a key, until ctx ends.
func (s *Supervisor) keyLoop(ctx context.Context) error {
	var listed time.Time
	return everyTick(ctx, keyEvery, func() {
		now := s.b.Now()
		if d, err := s.b.Directory(ctx); err == nil && now.Sub(listed) >= keyListEvery && lifecycle.HasKeyLimits(d) {
			uses, err := s.b.KeyLimits().Uses(ctx)
			if err != nil {
				s.log.Debug("limits by key not listed; trying again", "err", err)
			}
			for _, use := range uses {
				if len(use.Waiting) > 0 {
					s.keys.add(use.Key, now)
				}
			}
			listed = now
		}
		for _, key := range s.keys.due(now) {
			next, err := s.b.KeyLimits().Turn(ctx, key)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				s.log.Warn("limit not looked at; trying again", "key", key, "err", err)
				s.keys.add(key, now.Add(time.Second))
			case !next.IsZero():
				s.keys.add(key, next)
			}
		}
	})
}
