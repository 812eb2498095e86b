package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// The use of a key with a limit is one entry in the holders' bucket. A claim takes a place there before
// the append that takes the handoff, and gives it back after the one that releases it. Every write also
// keeps the free places for the handoffs that wait, and then opens their gates.

// errAwaitsKey: the handoff has no place under a key, and waits for one.
var errAwaitsKey = errors.New("waits for its limit")

// errKeyFull: too many handoffs wait for the key already.
var errKeyFull = errors.New("too many wait for its limit")

// keyFullPause is how long a pull waits after its offers found keyFull: they go back into the queue.
const keyFullPause = time.Second

// KeyLimits are the limits by key of the fleet. KeyLimits of a Broker returns them.
type KeyLimits struct{ b *Broker }

// KeyLimits returns the limits by key.
func (b *Broker) KeyLimits() KeyLimits { return KeyLimits{b} }

// KeyUseTTL returns how long the entry of a key lives after a write at now, in whole seconds. Keys may come
// from packages, so they must not pile up. An entry that expires too early is restored: by the next beats of
// the holders, and for handoffs that wait by the next reconcile.
func KeyUseTTL(use protocol.KeyUse, now time.Time) time.Duration {
	kept := max(time.Duration(use.SpanMS)*time.Millisecond, use.PausedUntil.Sub(now), 0)
	if len(use.Places)+len(use.Waiting) > 0 {
		kept += 24 * time.Hour
	}
	return (kept + time.Hour).Round(time.Second)
}

// Uses returns the use of each key that was ever limited and is still kept, by name.
func (l KeyLimits) Uses(ctx context.Context) ([]protocol.KeyUse, error) {
	uses, err := l.b.engine.KeyUses(ctx)
	slices.SortFunc(uses, func(a, b protocol.KeyUse) int { return strings.Compare(a.Key, b.Key) })
	return uses, err
}

// Statuses returns the use of each key that has a limit, or handoffs in work or waiting, by name.
func (l KeyLimits) Statuses(ctx context.Context) ([]lifecycle.KeyStatus, error) {
	d, err := l.b.Directory(ctx)
	if err != nil {
		return nil, err
	}
	uses, err := l.Uses(ctx)
	all, now := []lifecycle.KeyStatus{}, l.b.Now()
	for _, use := range uses {
		if limit, known := lifecycle.KeyLimitOf(use, d); known || len(use.Places)+len(use.Waiting) > 0 {
			all = append(all, lifecycle.KeyStatusOf(use, limit, now))
		}
	}
	return all, err
}

// Use returns the use of one key.
func (l KeyLimits) Use(ctx context.Context, key string) (protocol.KeyUse, error) {
	use, _, err := l.b.engine.KeyUse(ctx, key)
	return use, err
}

// Turn drops the vacant places under a key, and lets the first that wait begin. It returns when it is to
// be called again, because time alone may change something: zero if none waits.
func (l KeyLimits) Turn(ctx context.Context, key string) (next time.Time, err error) {
	b := l.b
	d, err := b.Directory(ctx)
	if err != nil {
		return time.Time{}, err
	}
	use, err := l.Use(ctx, key)
	if err != nil || len(use.Waiting) == 0 {
		return time.Time{}, err
	}
	vacant, err := b.vacantKeyPlaces(ctx, use)
	if err != nil {
		return time.Time{}, err
	}
	use, err = b.changeKey(ctx, key, func(u protocol.KeyUse, _ time.Time) (protocol.KeyUse, bool) {
		return lifecycle.DropKeyPlaces(u, vacant)
	}, func(w protocol.KeyWait) (protocol.KeyLimit, bool) { return lifecycle.KeyLimitFor(key, d, w.Agent) })
	if err != nil {
		return time.Time{}, err
	}
	now := b.clock()
	next = now.Add(keyCheck)
	if turn := lifecycle.NextKeyTurn(use, now); !turn.IsZero() && turn.Before(next) {
		next = turn
	}
	return next, nil
}

// keyCheck is how often the places under a key are checked while handoffs wait.
const keyCheck = time.Second

// Ensure opens the gate of a waiting handoff that is not in the order of its key. The
// entry of the key may be lost, or have kept a place before the gate was stored.
func (l KeyLimits) Ensure(ctx context.Context, head Head) (Head, error) {
	key := lifecycle.AwaitsKey(head.State)
	if key == "" {
		return head, nil
	}
	use, _, err := l.b.engine.KeyUse(ctx, key)
	if err != nil || slices.ContainsFunc(use.Waiting, func(w protocol.KeyWait) bool { return w.Ticket == head.Ticket }) {
		return head, err
	}
	return l.b.openKeyGate(ctx, head)
}

// vacantKeyPlaces returns the vacant places under a key, judged by the ledger and the presence of the
// holders.
func (b *Broker) vacantKeyPlaces(ctx context.Context, use protocol.KeyUse) (map[string]protocol.KeyPlace, error) {
	vacant, present := map[string]protocol.KeyPlace{}, map[string]bool{}
	for _, ticket := range slices.Sorted(maps.Keys(use.Places)) { // a fixed order makes a simulation repeatable
		place := use.Places[ticket]
		if place.Holder == "" {
			continue
		}
		gone, err := b.isSlotVacant(ctx, place.Agent, ticket, place.Slot, present)
		if err != nil {
			return nil, err
		}
		if gone {
			vacant[ticket] = place
		}
	}
	return vacant, nil
}

// changeKey changes the use of a key, and admits the handoffs that wait, as far as there is room. limitOf returns the current limit of one that waits; nil is the one that it began to wait with. It
// returns the resulting use.
func (b *Broker) changeKey(ctx context.Context, key string, change func(protocol.KeyUse, time.Time) (protocol.KeyUse, bool),
	limitOf func(protocol.KeyWait) (protocol.KeyLimit, bool)) (use protocol.KeyUse, err error) {
	var admitted []protocol.KeyWait
	err = b.keys.of(key).change(ctx, entryStore[protocol.KeyUse]{
		read: func(ctx context.Context) (protocol.KeyUse, uint64, error) { return b.engine.KeyUse(ctx, key) },
		put: func(ctx context.Context, use protocol.KeyUse, rev uint64) (uint64, error) {
			use.Key = key
			return b.engine.PutKeyUse(ctx, key, use, rev)
		},
	}, func(u protocol.KeyUse) (protocol.KeyUse, bool, error) {
		now := b.clock()
		next, changed := change(u, now)
		use, admitted = lifecycle.AdmitWaiting(next, now, limitOf)
		return use, changed || len(admitted) > 0, nil
	})
	if err != nil {
		return use, fmt.Errorf("limit %s: %w", key, err)
	}
	for _, w := range admitted {
		head, err := b.Head(ctx, w.Ticket, 0)
		if err == nil && lifecycle.AwaitsKey(head.State) == key {
			_, err = b.openKeyGate(ctx, head)
		}
		if err != nil && !isAbsent(err) {
			b.log.Warn("gate of a limit not opened; a supervisor will open it", "ticket", w.Ticket, "key", key, "err", err)
		}
	}
	return use, nil
}

// openKeyGate opens the gate of a handoff for whose next claim a place is kept.
func (b *Broker) openKeyGate(ctx context.Context, head Head) (Head, error) {
	next, _, err := b.update(ctx, head, wantAgent(head.State.Gate.Agent), func(h Head, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.OpenGate(h.State, q, lifecycle.Fact{Gate: protocol.GateLimit})
	})
	return next, err
}

// keyClaim returns the claim of an offer under a limit.
func (o *Offer) keyClaim(limit protocol.KeyLimit, holder protocol.Holder) lifecycle.KeyClaim {
	return lifecycle.KeyClaim{Ticket: o.Ticket, Agent: o.Agent, Order: lifecycle.KeyOrderOf(&o.State), Slot: o.b.slotOf(holder, o.Sequence),
		Limit: limit, TakesOver: o.State.Held()}
}

// takeKeyPlaces takes a place under each key that bounds the offer. If one has none, takeKeyPlaces gives
// the others back, and returns that key and errAwaitsKey or errKeyFull.
func (o *Offer) takeKeyPlaces(ctx context.Context, holder protocol.Holder) (lacking string, err error) {
	for _, limit := range o.limits {
		claim, verdict, had := o.keyClaim(limit, holder), lifecycle.KeyTaken, false
		_, err := o.b.changeKey(ctx, limit.Key, func(u protocol.KeyUse, now time.Time) (next protocol.KeyUse, changed bool) {
			had = lifecycle.SameSlot(u.Places[o.Ticket].Slot, claim.Slot)
			next, verdict = lifecycle.TakeKeyPlace(u, claim, now)
			return next, verdict != lifecycle.KeyShared && verdict != lifecycle.KeyFull
		}, nil)
		switch {
		case err != nil:
		case verdict == lifecycle.KeyWaits:
			err = errAwaitsKey
		case verdict == lifecycle.KeyFull:
			err = errKeyFull
		case verdict == lifecycle.KeyShared:
			o.shared = true
			continue
		default:
			if !had { // else the claim that took it frees it: this offer was delivered to its holder again
				o.taken = append(o.taken, limit.Key)
			}
			continue
		}
		o.b.freeKeyPlaces(ctx, o.taken, o.Ticket, claim.Slot, true)
		o.taken = nil
		return limit.Key, err
	}
	return "", nil
}

// freeKeyPlaces frees the places of a handoff that its holder has released; unstarted, if it never began.
// A place that could not be freed counts until the next check.
func (b *Broker) freeKeyPlaces(ctx context.Context, keys []string, ticket string, slot protocol.Slot, unstarted bool) {
	for _, key := range keys {
		_, err := b.changeKey(ctx, key, func(u protocol.KeyUse, _ time.Time) (protocol.KeyUse, bool) {
			return lifecycle.FreeKeyPlace(u, ticket, slot, unstarted)
		}, nil)
		if err != nil {
			b.log.Debug("place under a key not freed; the next check frees it", "ticket", ticket, "key", key, "err", err)
		}
	}
}

// ensureKeyPlaces ensures that the claim's handoff counts under its keys.
func (c *Claim) ensureKeyPlaces(ctx context.Context) error {
	s := &c.lastHead().State
	for _, key := range c.keys {
		claim := lifecycle.KeyClaim{Ticket: c.Ticket, Agent: c.Agent, Order: lifecycle.KeyOrderOf(s), Slot: c.slot()}
		if _, err := c.b.changeKey(ctx, key, func(u protocol.KeyUse, _ time.Time) (protocol.KeyUse, bool) {
			return lifecycle.KeepKeyPlace(u, claim)
		}, nil); err != nil {
			return err
		}
	}
	return nil
}

// pauseKey pauses a key under which the claim's handoff has a place, because its provider throttles.
func (c *Claim) pauseKey(ctx context.Context, key string, after time.Duration) error {
	if !slices.Contains(c.keys, key) {
		return protocol.Errorf(protocol.CodeInvalid, "limit_key", "is %q, and %s has a place under %s", key, c.Ticket, placesWords(c.keys))
	}
	_, err := c.b.changeKey(ctx, key, func(u protocol.KeyUse, now time.Time) (protocol.KeyUse, bool) {
		return lifecycle.PauseKey(u, c.Ticket, now.Add(after), now)
	}, nil)
	return err
}

func placesWords(keys []string) string {
	if len(keys) == 0 {
		return "no key"
	}
	return fmt.Sprint(keys)
}
