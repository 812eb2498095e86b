package protocol

import "slices"

// EventType names a fact, in the past tense.
type EventType string

// Event is one fact of a handoff's life. A field that can hold text says in its tag
// redact how secrets are taken out of it: text, free (any JSON), result, or "-" where
// programs alone write it. The concrete types are in
// event_work.go, event_course.go, event_gate.go and event_family.go, one for each EventType.
type Event interface {
	EventType() EventType
	// When is the instant the event carries; the core knows no other clock.
	When() Time
}

// events makes an empty event of each type, in the order of the lifecycle's table:
// the lists of the files that have the types. An event that is in none cannot be read.
var events = slices.Concat(workEvents, courseEvents, gateEvents, bidEvents, familyEvents)

// empty makes an event of a type, to decode into.
func empty[T any, E interface {
	*T
	Event
}]() Event {
	return E(new(T))
}

// EventTypes are all event types, in the order of the table.
var EventTypes = func() (types []EventType) {
	for _, newEmpty := range events {
		types = append(types, newEmpty().EventType())
	}
	return types
}()

// newEvent makes an empty event of each type, to decode into.
var newEvent = func() map[EventType]func() Event {
	byType := make(map[EventType]func() Event, len(events))
	for i, newEmpty := range events {
		byType[EventTypes[i]] = newEmpty
	}
	return byType
}()

// NewEvent returns an empty event of a type, or nil for an unknown type.
func NewEvent(t EventType) Event {
	if newEmpty := newEvent[t]; newEmpty != nil {
		return newEmpty()
	}
	return nil
}

// Meta is what every event carries beside its own fields. The event's id is
// the id of its Record and its place in it.
type Meta struct {
	At Time   `json:"at"`
	By string `json:"by,omitempty" redact:"-"` // who caused it: an agent, a holder, "supervisor", a person
}

// When returns the instant of the event.
func (m Meta) When() Time { return m.At }
