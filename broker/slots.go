package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// The slots of an agent with max_concurrency are one entry in the holders' bucket,
// which every claim of it changes with a compare-and-set: before the append that
// takes a handoff in hand, and after the one that lets go of it. What the entry says
// is checked against the ledger and the holders' presence where it leaves no room.

const (
	// slotPoll is how soon a pull sees that another process has freed a slot.
	slotPoll = 250 * time.Millisecond
	// The next check of an agent's slots waits slotCheckRest times as long as the last one
	// took, within these bounds: it may have taken long because the engine was away, and dead
	// holders keep their slots until then.
	slotCheckRest    = 20
	slotCheckRestMin = time.Second
	slotCheckRestMax = 30 * time.Second
)

// slotWatch is what a process remembers about slots.
type slotWatch struct {
	mu    sync.Mutex
	freed chan struct{}        // closed when this process frees a slot
	next  map[string]time.Time // when the slots of an agent may be checked again
	each  map[string]*slotQueue
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

// mayCheck tells whether the slots of an agent may be checked, and has others wait
// meanwhile.
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

// profileOf is the profile of an agent whose handoffs this process has in hand: its limit, and what
// it expects. A process that watches the directory is not asked to read anything.
func (b *Broker) profileOf(ctx context.Context, agent string) (protocol.Profile, error) {
	var d *lifecycle.Directory
	var err error
	if b.watching.Load() {
		d, err = b.directory.Directory(ctx)
	} else {
		d, _, err = b.recentAgent(ctx, agent)
	}
	if err != nil {
		return protocol.Profile{}, err
	}
	profile, _ := d.Agent(agent)
	return profile, nil
}

// Directory returns the current snapshot, see Engine, with what this process knows better.
func (b *Broker) Directory(ctx context.Context) (*lifecycle.Directory, error) {
	d, err := b.directory.Directory(ctx)
	if err == nil && !b.watching.Load() {
		b.watching.Store(true)
	}
	if err != nil {
		return nil, err
	}
	return b.healths.over(d), nil
}

// Capacity returns how many handoffs an agent has in hand, and its limit. A limit of 0 is
// none, and then nothing is counted.
func (b *Broker) Capacity(ctx context.Context, agent string) (inHand, limit int, err error) {
	profile, err := b.profileOf(ctx, agent)
	if limit = profile.MaxConcurrency; err != nil || limit == 0 {
		return 0, limit, err
	}
	slots, _, err := b.directory.Slots(ctx, agent)
	return len(slots), limit, err
}

// awaitCapacity waits until an agent may take a handoff in hand, for wait at most, and tells
// how many of most it may and what is left of the wait.
func (b *Broker) awaitCapacity(ctx context.Context, agent string, limit, most int, wait time.Duration) (int, time.Duration, error) {
	until := time.Now().Add(wait)
	for {
		changed := b.slots.changed()
		slots, _, err := b.directory.Slots(ctx, agent)
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

// errAtCapacity: the agent has as many handoffs in hand as it may.
var errAtCapacity = errors.New("at capacity")

// errSlotTaken: another holder, which is there, has the handoff in hand.
var errSlotTaken = errors.New("in the hands of another holder")

// takeSlot takes a slot for a handoff that a holder is about to take in hand. False
// is that the holder had it before.
func (b *Broker) takeSlot(ctx context.Context, agent string, limit int, ticket string, slot protocol.Slot) (taken bool, err error) {
	var found protocol.Slots // as the change found them
	var vacant protocol.Slot // what stands there for the handoff, and may be replaced
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
				return slots, false, fmt.Errorf("%s has %d handoffs in hand: %w", agent, len(slots), errAtCapacity)
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

// ensureSlot sees to it that the claim's handoff counts.
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

// freeSlot frees the slot of a handoff that has left a holder's hands.
func (b *Broker) freeSlot(ctx context.Context, agent, ticket string, slot protocol.Slot) error {
	err := b.changeSlots(ctx, agent, func(slots protocol.Slots) (protocol.Slots, bool, error) {
		next, had := lifecycle.FreeSlot(slots, ticket, slot)
		return next, had, nil
	})
	b.slots.notify()
	return err
}

// freeVacantSlots frees the slots that count no more, by the ledger and by who is present,
// and returns what is left. It reads as much as there are slots, and so rests between
// two checks.
func (b *Broker) freeVacantSlots(ctx context.Context, agent string) (protocol.Slots, error) {
	slots, rev, err := b.directory.Slots(ctx, agent)
	if err != nil || !b.slots.mayCheck(agent) {
		return slots, err
	}
	began := time.Now()
	left, present := maps.Clone(slots), map[string]bool{}
	for _, ticket := range slices.Sorted(maps.Keys(slots)) { // in an order that a simulation can repeat
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
	_, err = b.directory.PutSlots(ctx, agent, left, rev)
	if errors.Is(err, ErrConflict) { // another change came first, and what it found counts
		left, _, err = b.directory.Slots(ctx, agent)
	}
	return left, err
}

// isSlotVacant judges one slot. present remembers who is there.
func (b *Broker) isSlotVacant(ctx context.Context, agent, ticket string, slot protocol.Slot, present map[string]bool) (bool, error) {
	there, known := present[slot.Holder]
	if !known {
		_, err := b.directory.Holder(ctx, slot.Holder)
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

// releaseSlot gives the claim's slot back, where its agent has a limit. A slot that
// could not be freed counts until it is checked.
func (c *Claim) releaseSlot(ctx context.Context) {
	if !c.limited {
		return
	}
	if err := c.b.freeSlot(ctx, c.Agent, c.Ticket, c.slot()); err != nil {
		c.b.log.Debug("slot not freed; it is found vacant when it is needed", "ticket", c.Ticket, "err", err)
	}
}
