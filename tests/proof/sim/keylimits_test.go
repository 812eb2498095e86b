//go:build proof

package sim

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// Planted bugs of limits by key.
const (
	keyPlaceLeaked bug = "a key that leaks a place"
	keyUnread      bug = "a key whose places count nothing"
	keyOrderLost   bug = "a key that the last to wait for gets first"
	keyRateLost    bug = "a rate that forgets what has begun"
)

func init() { bugs = append(bugs, keyPlaceLeaked, keyUnread, keyOrderLost, keyRateLost) }

// The agents a and b share the key model in two of three seeds, and in half of these it has a rate too.
const (
	sharedKey = "model"
	keyAtOnce = 2
	keyRate   = 12
	keyPer    = time.Minute
)

// keyed are the agents that share the key.
var keyed = []string{"a", "b"}

func (l *simulation) hasKeyLimits() bool {
	return dice(l.seed, "keys")%3 != 0 && l.bug != refusalLost || l.bug == keyRateLost
}
func (l *simulation) hasKeyRate() bool {
	return l.hasKeyLimits() && (dice(l.seed, "key rate")%2 == 0 || l.bug == keyRateLost)
}

func (l *simulation) giveKeyLimits(profile *protocol.Profile) {
	if !l.hasKeyLimits() || !slices.Contains(keyed, profile.ID) {
		return
	}
	limit := protocol.KeyLimit{Key: sharedKey, MaxConcurrency: keyAtOnce}
	if l.hasKeyRate() {
		limit.Rate, limit.PerMS = keyRate, keyPer.Milliseconds()
	}
	profile.LimitsBy = []protocol.KeyLimit{limit}
}

// KeyUse implements broker.Engine.
func (e *engine) KeyUse(ctx context.Context, key string) (protocol.KeyUse, uint64, error) {
	if err := e.await(ctx, "use of "+key); err != nil {
		return protocol.KeyUse{}, 0, err
	}
	use, rev, err := e.Memory.KeyUse(ctx, key)
	switch e.l.bug {
	case keyUnread:
		use.Places = nil
	case keyRateLost:
		use.Starts = nil
	case keyOrderLost:
		use.Waiting = slices.Clone(use.Waiting)
		slices.Reverse(use.Waiting)
	}
	return use, rev, err
}

// PutKeyUse implements broker.Engine.
func (e *engine) PutKeyUse(ctx context.Context, key string, use protocol.KeyUse, rev uint64) (uint64, error) {
	if err := e.await(ctx, "put use of "+key); err != nil {
		return 0, err
	}
	before, _, err := e.Memory.KeyUse(ctx, key)
	if err != nil {
		return 0, err
	}
	switch e.l.bug {
	case keyPlaceLeaked: // a place that was taken stays
		use.Places = maps.Clone(use.Places)
		for ticket, place := range before.Places {
			if _, kept := use.Places[ticket]; !kept && place.Holder != "" {
				use.Places[ticket] = place
			}
		}
	}
	next, err := e.Memory.PutKeyUse(ctx, key, use, rev)
	if err == nil {
		e.l.judge.recordKeyUse(before, use)
	}
	return next, err
}

// recordKeyUse checks the use of a key as it is stored: a place that is reserved is for the first that waits, no
// span of the rate has more starts than allowed, and none of them is forgotten; one may be taken back.
func (j *judge) recordKeyUse(before, use protocol.KeyUse) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for ticket, place := range use.Places {
		j.keyPlaces[ticket+place.Holder] = place.At
		if _, had := before.Places[ticket]; had || place.Holder != "" {
			continue
		}
		for _, w := range use.Waiting {
			if w.Order.Before(place.Order, w.Ticket, ticket) {
				j.faultLocked("a place under %s is kept for %s, and %s comes before it", sharedKey, ticket, w.Ticket)
			}
		}
	}
	if !j.l.hasKeyRate() {
		return
	}
	forgotten := -1
	for _, at := range before.Starts {
		if now := time.Now().UnixMilli(); at > now-keyPer.Milliseconds() && !slices.Contains(use.Starts, at) {
			forgotten++
		}
	}
	if forgotten > 0 {
		j.faultLocked("%d starts under %s are forgotten", forgotten, sharedKey)
	}
	for i := keyRate; i < len(use.Starts); i++ {
		if span := use.Starts[i] - use.Starts[i-keyRate]; span < keyPer.Milliseconds() {
			j.faultLocked("%d attempts begin under %s in %d ms, and %d in %v are allowed", keyRate+1, sharedKey, span, keyRate, keyPer)
		}
	}
}

// checkKeyLimits: the handoffs with a place under the key are no more than may be, but for those whose holder
// had lapsed, and acceptances that came after lifecycle.SlotGrace. Each handoff that its agents accept has a place.
func (j *judge) checkKeyLimits(after protocol.State, events []protocol.Event) {
	if !j.l.hasKeyLimits() {
		return
	}
	for _, e := range events {
		if accepted, ok := e.(*protocol.Accepted); ok && slices.Contains(keyed, accepted.Agent) && !slices.Contains(after.LimitKeys, sharedKey) {
			j.faultLocked("%s is accepted by %s, and has no place under %s", after.Ticket, accepted.Agent, sharedKey)
		}
	}
	var held []string
	for ticket, h := range j.heads {
		s := h.state
		if s.Closed || !s.Held() || h.late || !slices.Contains(s.LimitKeys, sharedKey) {
			continue
		}
		p := j.presence[s.Holder]
		if p == nil || time.Now().After(p.until) || p.lapsed.After(s.AcceptedAt.Add(-slotSlack)) {
			continue
		}
		held = append(held, ticket[:8])
	}
	if len(held) > keyAtOnce {
		j.faultLocked("%d have a place under %s, and %d may: %v", len(held), sharedKey, keyAtOnce, held)
	}
}
