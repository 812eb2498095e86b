package protocol

// EventType names a fact, in the past tense.
type EventType string

const (
	EventSubmitted       EventType = "submitted"
	EventOffered         EventType = "offered"
	EventClaimed         EventType = "claimed"
	EventAccepted        EventType = "accepted"
	EventStarted         EventType = "started"
	EventProgressed      EventType = "progressed"
	EventCompleted       EventType = "completed"
	EventFailed          EventType = "failed"
	EventRejected        EventType = "rejected"
	EventConditioned     EventType = "conditioned"
	EventAnswered        EventType = "answered"
	EventRetryScheduled  EventType = "retry_scheduled"
	EventRerouted        EventType = "rerouted"
	EventEscalated       EventType = "escalated"
	EventLeaseLost       EventType = "lease_lost"
	EventReleased        EventType = "released"
	EventReminded        EventType = "reminded"
	EventExtended        EventType = "extended"
	EventTimedOut        EventType = "timed_out"
	EventCancelRequested EventType = "cancel_requested"
	EventClosed          EventType = "closed"
	EventStuck           EventType = "stuck"
	EventHandedOff       EventType = "handed_off"
	EventSuspended       EventType = "suspended"
	EventChildrenClosed  EventType = "children_closed"
	EventTaken           EventType = "taken"
	EventRolledBack      EventType = "rolled_back"
	EventLateResultUsed  EventType = "late_result_used"
	EventResultParked    EventType = "result_parked"
	EventReturnSent      EventType = "return_sent"
	EventReturned        EventType = "returned"
	EventRedriven        EventType = "redriven"
	EventDismissed       EventType = "dismissed"
	EventAssigned        EventType = "assigned"
	EventSourceCompleted EventType = "source_completed"
)

// Event is one fact of a handoff's life. The concrete types are below, one
// for each EventType.
type Event interface {
	EventType() EventType
	// When is the instant the event carries; the core knows no other clock.
	When() Time
}

// events makes an empty event of each type, in the order of the lifecycle's table.
// An event that is not listed here cannot be read.
var events = [...]func() Event{
	empty[Submitted], empty[Offered], empty[Claimed], empty[Accepted],
	empty[Started], empty[Progressed], empty[Completed], empty[Failed],
	empty[Rejected], empty[Conditioned], empty[Answered], empty[RetryScheduled],
	empty[Rerouted], empty[Escalated], empty[LeaseLost], empty[Released],
	empty[Reminded], empty[Extended], empty[TimedOut], empty[CancelRequested],
	empty[Closed], empty[Stuck], empty[HandedOff], empty[Suspended],
	empty[ChildrenClosed], empty[Taken], empty[RolledBack], empty[LateResultUsed],
	empty[ResultParked], empty[ReturnSent], empty[Returned], empty[Redriven],
	empty[Dismissed], empty[Assigned], empty[SourceCompleted],
}

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
	By string `json:"by,omitempty"` // who caused it: an agent, a holder, "supervisor", a person
}

// When returns the instant of the event.
func (m Meta) When() Time { return m.At }
