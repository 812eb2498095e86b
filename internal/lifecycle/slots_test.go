package lifecycle

import (
	"testing"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

func TestSlots(t *testing.T) {
	mine, other := p.Slot{Holder: "w1", Offer: 7, At: t0}, p.Slot{Holder: "w2", Offer: 8, At: t0}
	slots, ok := TakeSlot(nil, 1, "t1", mine)
	if !ok || Room(1, slots) != 0 || Room(3, slots) != 2 {
		t.Fatalf("%v, room %d of 1, %d of 3", slots, Room(1, slots), Room(3, slots))
	}
	if _, ok := TakeSlot(slots, 1, "t2", other); ok {
		t.Error("a second one of one was taken")
	}
	if again, ok := TakeSlot(slots, 1, "t1", other); !ok || again["t1"] != other {
		t.Error("the slot of a handoff does not move to its new holder")
	}
	over := KeepSlot(slots, "t2", other)
	if len(over) != 2 || Room(1, over) != 0 || len(slots) != 1 {
		t.Errorf("kept: %v of %v", over, slots)
	}
	if _, ok := TakeSlot(over, 1, "t2", mine); ok {
		t.Error("a slot that is one too many moves to a new holder")
	}
	if _, had := FreeSlot(slots, "t1", p.Slot{Holder: "w1", Offer: 9}); had {
		t.Error("freed by another offer of the same holder")
	}
	if free, had := FreeSlot(slots, "t1", p.Slot{Holder: "w1", Offer: 7, At: t0.Add(time.Hour)}); !had || len(free) != 0 {
		t.Errorf("not freed: %v", free)
	}
}

func TestSlotVacant(t *testing.T) {
	slot := p.Slot{Holder: "w1", Offer: 7, At: t0}
	held := p.State{Agent: "a", Phase: p.Working, Offer: 7, Holder: "w1"}
	pending := p.State{Agent: "a", Phase: p.Pending, Offer: 7}
	for name, c := range map[string]struct {
		change  func(*p.State)
		state   p.State
		present bool
		after   time.Duration
		vacant  bool
	}{
		"it is at work":                 {nil, held, true, time.Hour, false},
		"it is gone":                    {nil, held, false, 0, true},
		"it is about to accept":         {nil, pending, true, SlotGrace - 1, false},
		"it never accepted":             {nil, pending, true, SlotGrace, true},
		"it takes over from another":    {func(s *p.State) { s.Holder = "w2" }, held, true, SlotGrace - 1, false},
		"another accepted":              {func(s *p.State) { s.Holder = "w2" }, held, true, SlotGrace, true},
		"it is closed":                  {func(s *p.State) { s.Closed = true }, held, true, 0, true},
		"another offer stands":          {func(s *p.State) { s.Offer = 9 }, held, true, 0, true},
		"it is with another agent":      {func(s *p.State) { s.Agent = "b" }, held, true, 0, true},
		"the ledger does not have it":   {nil, p.State{}, true, 0, true},
		"it claimed and has not begun":  {func(s *p.State) { s.Phase = p.Pending }, held, true, time.Hour, false},
		"it is gone before it accepted": {nil, pending, false, 0, true},
	} {
		if c.change != nil {
			c.change(&c.state)
		}
		if got := SlotVacant(slot, c.state, "a", c.present, t0.Add(c.after)); got != c.vacant {
			t.Errorf("%s: vacant %v", name, got)
		}
	}
}
