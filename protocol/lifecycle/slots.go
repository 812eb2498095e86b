package lifecycle

import (
	"maps"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// SlotGrace is how long a slot counts that was taken for an acceptance which the
// ledger does not have yet. One that it gets later than that is one too many.
const SlotGrace = time.Minute

// Room tells how many handoffs an agent may take in hand besides those that it has.
// limit is its max_concurrency; 0 is none.
func Room(limit int, slots p.Slots) int { return max(limit-len(slots), 0) }

// TakeSlot gives a holder a slot for a handoff, where the agent has room for one
// more. What stands there for the same handoff must have been found vacant.
func TakeSlot(slots p.Slots, limit int, ticket string, slot p.Slot) (p.Slots, bool) {
	others := len(slots)
	if _, has := slots[ticket]; has { // a holder that was thought gone may have made it one too many
		others--
	}
	if others >= limit {
		return slots, false
	}
	return KeepSlot(slots, ticket, slot), true
}

// KeepSlot gives a slot to a holder that has the handoff in hand already, whatever
// the limit says: one that was thought gone, or that took it by hand.
func KeepSlot(slots p.Slots, ticket string, slot p.Slot) p.Slots {
	next := maps.Clone(slots)
	if next == nil {
		next = p.Slots{}
	}
	next[ticket] = slot
	return next
}

// FreeSlot takes the slot of a handoff back from a holder. False is that it does
// not have it by this offer.
func FreeSlot(slots p.Slots, ticket string, slot p.Slot) (p.Slots, bool) {
	if !SameSlot(slots[ticket], slot) {
		return slots, false
	}
	next := maps.Clone(slots)
	delete(next, ticket)
	return next, true
}

// SameSlot tells whether two slots are of one holder and one offer.
func SameSlot(a, b p.Slot) bool { return a.Holder == b.Holder && a.Offer == b.Offer }

// SlotVacant tells whether a slot of an agent counts no more: its holder is gone, or
// the handoff, which is in the state s, is not in its hands by that offer, and will not
// be within SlotGrace of the slot.
// present says whether the holder's presence stands.
func SlotVacant(slot p.Slot, s p.State, agent string, present bool, now time.Time) bool {
	switch {
	case !present || s.Closed || s.Offer != slot.Offer || s.Agent != agent:
		return true
	case s.Holder == slot.Holder:
		return false
	}
	return !now.Before(slot.At.Add(SlotGrace)) // it may be under way, also from a holder that is gone
}
