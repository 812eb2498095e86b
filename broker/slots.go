package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// The slots of an agent with max_concurrency are one entry in the holders' bucket. Each claim
// changes it with a compare-and-set: before the append that takes a handoff, and after the one that
// releases it. When the entry leaves no room, it is checked against the ledger and the holders'
// presence.

const (
	// slotPoll bounds how late a pull notices a slot freed by another process.
	slotPoll = 250 * time.Millisecond
	// The next check of an agent's slots waits slotCheckRest times as long as the last one took, within
	// these bounds. A check may have been slow because the engine was unreachable, and dead holders
	// keep their slots until the next one.
	slotCheckRest    = 20
	slotCheckRestMin = time.Second
	slotCheckRestMax = 30 * time.Second
)

// slotWatch is the state of a process for waiting on slots.
type slotWatch struct {
	mu      sync.Mutex
	freed   chan struct{}        // closed when this process frees a slot
	next    map[string]time.Time // when the slots of an agent may next be checked
	resting map[string]time.Time // until when nothing is pulled for an agent
	entries entries[protocol.Slots]
}

// changed returns a channel that is closed when this process next frees a slot.
func (w *slotWatch) changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.freed == nil {
		w.freed = make(chan struct{})
	}
	return w.freed
}

func (w *slotWatch) notify() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.freed != nil {
		close(w.freed)
		w.freed = nil
	}
}

// mayCheck reports whether the slots of an agent may be checked, and blocks other checks meanwhile.
func (w *slotWatch) mayCheck(agent string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if now.Before(w.next[agent]) {
		return false
	}
	if w.next == nil {
		w.next = map[string]time.Time{}
	}
	w.next[agent] = now.Add(slotCheckRestMin)
	return true
}

func (w *slotWatch) checked(agent string, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next[agent] = time.Now().Add(min(max(slotCheckRestMin, slotCheckRest*took), slotCheckRestMax))
}

// rest makes the pulls for an agent pause: all that it is offered goes back into its queue.
func (w *slotWatch) rest(agent string, pause time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.resting == nil {
		w.resting = map[string]time.Time{}
	}
	w.resting[agent] = time.Now().Add(pause)
}

// awaitRest waits until nothing pauses the pulls for an agent, at most for wait. It returns the rest of
// the wait.
func (w *slotWatch) awaitRest(ctx context.Context, agent string, wait time.Duration) (time.Duration, error) {
	w.mu.Lock()
	pause := min(time.Until(w.resting[agent]), wait)
	w.mu.Unlock()
	if pause <= 0 { // the usual case
		return wait, nil
	}
	return wait - pause, pauseFor(ctx, pause)
}

// Capacity returns how many handoffs an agent is working on, and its limit. A limit of 0 is none,
// and then nothing is counted.
func (b *Broker) Capacity(ctx context.Context, agent string) (inHand, limit int, err error) {
	profile, err := b.ownProfile(ctx, agent)
	if limit = profile.MaxConcurrency; err != nil || limit == 0 {
		return 0, limit, err
	}
	slots, _, err := b.engine.Slots(ctx, agent)
	return len(slots), limit, err
}

// awaitCapacity waits until an agent may take a handoff, for at most wait. It returns how many of
// most it may take, and the rest of the wait.
func (b *Broker) awaitCapacity(ctx context.Context, agent string, limit, most int, wait time.Duration) (int, time.Duration, error) {
	until := time.Now().Add(wait)
	for {
		changed := b.slots.changed()
		slots, _, err := b.engine.Slots(ctx, agent)
		if err != nil {
			return 0, 0, err
		}
		if lifecycle.Room(limit, slots) == 0 {
			if slots, err = b.freeVacantSlots(ctx, agent); err != nil {
				return 0, 0, err
			}
		}
		left := time.Until(until)
		if room := lifecycle.Room(limit, slots); room > 0 || left <= 0 {
			return min(room, most), max(left, 0), nil
		}
		pause := time.NewTimer(min(left, slotPoll))
		select {
		case <-pause.C:
		case <-changed:
		case <-ctx.Done():
			pause.Stop()
			return 0, 0, ctx.Err()
		}
		pause.Stop()
	}
}

// errAtCapacity: the agent has as many handoffs as it may.
var errAtCapacity = errors.New("at capacity")

// errSlotTaken: another holder, which is present, has the handoff.
var errSlotTaken = errors.New("another holder has the handoff")

// takeSlot takes a slot for a handoff that a holder is about to take. It returns false if the
// holder had the slot before.
func (b *Broker) takeSlot(ctx context.Context, agent string, limit int, ticket string, slot protocol.Slot) (taken bool, err error) {
	var found protocol.Slots // the slots when the change was applied
	var vacant protocol.Slot // the handoff's vacant entry, which may be replaced
	for {
		err = b.changeSlots(ctx, agent, func(slots protocol.Slots) (protocol.Slots, bool, error) {
			found, taken = slots, false
			before, has := slots[ticket]
			if has && lifecycle.SameSlot(before, slot) {
				return slots, false, nil
			}
			if has && before.Holder != slot.Holder && before != vacant {
				return slots, false, errSlotTaken
			}
			next, ok := lifecycle.TakeSlot(slots, limit, ticket, slot)
			if !ok {
				return slots, false, fmt.Errorf("%s is working on %d handoffs: %w", agent, len(slots), errAtCapacity)
			}
			taken = true
			return next, true, nil
		})
		switch {
		case errors.Is(err, errSlotTaken):
			free, checkErr := b.isSlotVacant(ctx, agent, ticket, found[ticket], map[string]bool{})
			if checkErr != nil || !free {
				return false, errors.Join(checkErr, err)
			}
			vacant = found[ticket]
		case errors.Is(err, errAtCapacity):
			left, checkErr := b.freeVacantSlots(ctx, agent)
			if checkErr != nil || lifecycle.Room(limit, left) == 0 {
				return false, errors.Join(checkErr, err)
			}
		default:
			return taken && err == nil, err
		}
	}
}

// ensureSlot ensures that the claim's handoff counts.
func (c *Claim) ensureSlot(ctx context.Context) error {
	slot := c.slot()
	return c.b.changeSlots(ctx, c.Agent, func(slots protocol.Slots) (protocol.Slots, bool, error) {
		if lifecycle.SameSlot(slots[c.Ticket], slot) {
			return nil, false, nil
		}
		return lifecycle.KeepSlot(slots, c.Ticket, slot), true, nil
	})
}

func (c *Claim) slot() protocol.Slot { return c.b.slotOf(c.Holder, c.Offer) }

func (b *Broker) slotOf(h protocol.Holder, offer uint64) protocol.Slot {
	return protocol.Slot{Holder: h.ID, Offer: offer, At: b.clock().UTC().Truncate(time.Millisecond)}
}

// freeSlot frees the slot of a handoff that its holder has released.
func (b *Broker) freeSlot(ctx context.Context, agent, ticket string, slot protocol.Slot) error {
	err := b.changeSlots(ctx, agent, func(slots protocol.Slots) (protocol.Slots, bool, error) {
		next, had := lifecycle.FreeSlot(slots, ticket, slot)
		return next, had, nil
	})
	b.slots.notify()
	return err
}

// freeVacantSlots frees the slots that no longer count, judged by the ledger and the holders'
// presence, and returns the others. It makes a read per slot, and so pauses between two checks.
func (b *Broker) freeVacantSlots(ctx context.Context, agent string) (protocol.Slots, error) {
	slots, rev, err := b.engine.Slots(ctx, agent)
	if err != nil || !b.slots.mayCheck(agent) {
		return slots, err
	}
	began := time.Now()
	left, present := maps.Clone(slots), map[string]bool{}
	for _, ticket := range slices.Sorted(maps.Keys(slots)) { // a fixed order makes a simulation repeatable
		vacant, err := b.isSlotVacant(ctx, agent, ticket, slots[ticket], present)
		if err != nil {
			return nil, err
		}
		if vacant {
			delete(left, ticket)
		}
	}
	b.slots.checked(agent, time.Since(began))
	if len(left) == len(slots) {
		return slots, nil
	}
	_, err = b.engine.PutSlots(ctx, agent, left, rev)
	if errors.Is(err, ErrConflict) { // another change came first; use its result
		left, _, err = b.engine.Slots(ctx, agent)
	}
	return left, err
}

// isSlotVacant judges one slot. present caches the presence of holders.
func (b *Broker) isSlotVacant(ctx context.Context, agent, ticket string, slot protocol.Slot, present map[string]bool) (bool, error) {
	there, known := present[slot.Holder]
	if !known {
		_, err := b.engine.Holder(ctx, slot.Holder)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return false, err
		}
		there = err == nil
		present[slot.Holder] = there
	}
	var state protocol.State
	if there {
		head, err := b.Head(ctx, ticket, 0)
		if err != nil && !isAbsent(err) {
			return false, err
		}
		state = head.State
	}
	return lifecycle.SlotVacant(slot, state, agent, there, b.clock()), nil
}

// releasePlaces returns the claim's slot, and its places under keys.
func (c *Claim) releasePlaces(ctx context.Context) {
	c.releaseSlot(ctx)
	c.b.freeKeyPlaces(ctx, c.keys, c.Ticket, c.slot(), false)
}

// releaseSlot returns the claim's slot, if its agent has a limit. A slot that could not be freed
// counts until the next check.
func (c *Claim) releaseSlot(ctx context.Context) {
	if !c.limited {
		return
	}
	if err := c.b.freeSlot(ctx, c.Agent, c.Ticket, c.slot()); err != nil {
		c.b.log.Debug("slot not freed; the next check frees it", "ticket", c.Ticket, "err", err)
	}
}

// changeSlots applies a change to an agent's slots. If ctx ends, the change may be made all the
// same.
func (b *Broker) changeSlots(ctx context.Context, agent string, apply func(protocol.Slots) (protocol.Slots, bool, error)) error {
	return b.slots.entries.of(agent).change(ctx, entryStore[protocol.Slots]{
		read: func(ctx context.Context) (protocol.Slots, uint64, error) { return b.engine.Slots(ctx, agent) },
		put: func(ctx context.Context, slots protocol.Slots, rev uint64) (uint64, error) {
			return b.engine.PutSlots(ctx, agent, slots, rev)
		},
	}, apply)
}
