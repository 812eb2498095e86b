package protocol

// Record is the body of one append to the ledger: the events that were
// applied together and the state after them.
type Record struct {
	// ID is unique to this append. A writer whose append timed out finds by it
	// whether it had won.
	ID     string
	Events []Event
	State  State
}

// Change is one step of a handoff as a reader sees it: a Record, where it
// stands in the ledger, and when the engine stored it.
type Change struct {
	Seq    uint64 // ledger sequence
	At     Time   // the engine's time stamp
	Hash   string // sha256 of the record as stored, hex
	Record Record // State is bound to Seq
}

// newEvent makes an empty event of each type, to decode into.
var newEvent = map[EventType]func() Event{
	EventSubmitted:       func() Event { return new(Submitted) },
	EventOffered:         func() Event { return new(Offered) },
	EventClaimed:         func() Event { return new(Claimed) },
	EventAccepted:        func() Event { return new(Accepted) },
	EventStarted:         func() Event { return new(Started) },
	EventProgressed:      func() Event { return new(Progressed) },
	EventCompleted:       func() Event { return new(Completed) },
	EventFailed:          func() Event { return new(Failed) },
	EventRejected:        func() Event { return new(Rejected) },
	EventConditioned:     func() Event { return new(Conditioned) },
	EventAnswered:        func() Event { return new(Answered) },
	EventRetryScheduled:  func() Event { return new(RetryScheduled) },
	EventRerouted:        func() Event { return new(Rerouted) },
	EventEscalated:       func() Event { return new(Escalated) },
	EventLeaseLost:       func() Event { return new(LeaseLost) },
	EventReleased:        func() Event { return new(Released) },
	EventReminded:        func() Event { return new(Reminded) },
	EventExtended:        func() Event { return new(Extended) },
	EventTimedOut:        func() Event { return new(TimedOut) },
	EventCancelRequested: func() Event { return new(CancelRequested) },
	EventClosed:          func() Event { return new(Closed) },
	EventStuck:           func() Event { return new(Stuck) },
	EventHandedOff:       func() Event { return new(HandedOff) },
	EventSuspended:       func() Event { return new(Suspended) },
	EventChildrenClosed:  func() Event { return new(ChildrenClosed) },
	EventTaken:           func() Event { return new(Taken) },
	EventRolledBack:      func() Event { return new(RolledBack) },
	EventLateResultUsed:  func() Event { return new(LateResultUsed) },
	EventResultParked:    func() Event { return new(ResultParked) },
	EventReturnSent:      func() Event { return new(ReturnSent) },
	EventReturned:        func() Event { return new(Returned) },
	EventRedriven:        func() Event { return new(Redriven) },
	EventDismissed:       func() Event { return new(Dismissed) },
	EventAssigned:        func() Event { return new(Assigned) },
	EventSourceCompleted: func() Event { return new(SourceCompleted) },
}

// EventTypes are all event types, in the order of the table.
var EventTypes = []EventType{EventSubmitted, EventOffered, EventClaimed, EventAccepted,
	EventStarted, EventProgressed, EventCompleted, EventFailed, EventRejected, EventConditioned,
	EventAnswered, EventRetryScheduled, EventRerouted, EventEscalated, EventLeaseLost,
	EventReleased, EventReminded, EventExtended, EventTimedOut, EventCancelRequested, EventClosed, EventStuck,
	EventHandedOff, EventSuspended, EventChildrenClosed, EventTaken, EventRolledBack, EventLateResultUsed,
	EventResultParked, EventReturnSent, EventReturned, EventRedriven, EventDismissed, EventAssigned, EventSourceCompleted}

func (*Submitted) EventType() EventType       { return EventSubmitted }
func (*Offered) EventType() EventType         { return EventOffered }
func (*Claimed) EventType() EventType         { return EventClaimed }
func (*Accepted) EventType() EventType        { return EventAccepted }
func (*Started) EventType() EventType         { return EventStarted }
func (*Progressed) EventType() EventType      { return EventProgressed }
func (*Completed) EventType() EventType       { return EventCompleted }
func (*Failed) EventType() EventType          { return EventFailed }
func (*Rejected) EventType() EventType        { return EventRejected }
func (*Conditioned) EventType() EventType     { return EventConditioned }
func (*Answered) EventType() EventType        { return EventAnswered }
func (*RetryScheduled) EventType() EventType  { return EventRetryScheduled }
func (*Rerouted) EventType() EventType        { return EventRerouted }
func (*Escalated) EventType() EventType       { return EventEscalated }
func (*LeaseLost) EventType() EventType       { return EventLeaseLost }
func (*Released) EventType() EventType        { return EventReleased }
func (*Reminded) EventType() EventType        { return EventReminded }
func (*Extended) EventType() EventType        { return EventExtended }
func (*TimedOut) EventType() EventType        { return EventTimedOut }
func (*CancelRequested) EventType() EventType { return EventCancelRequested }
func (*Closed) EventType() EventType          { return EventClosed }
func (*Stuck) EventType() EventType           { return EventStuck }
func (*HandedOff) EventType() EventType       { return EventHandedOff }
func (*Suspended) EventType() EventType       { return EventSuspended }
func (*ChildrenClosed) EventType() EventType  { return EventChildrenClosed }
func (*Taken) EventType() EventType           { return EventTaken }
func (*RolledBack) EventType() EventType      { return EventRolledBack }
func (*LateResultUsed) EventType() EventType  { return EventLateResultUsed }
func (*ResultParked) EventType() EventType    { return EventResultParked }
func (*ReturnSent) EventType() EventType      { return EventReturnSent }
func (*Returned) EventType() EventType        { return EventReturned }
func (*Redriven) EventType() EventType        { return EventRedriven }
func (*Dismissed) EventType() EventType       { return EventDismissed }
func (*Assigned) EventType() EventType        { return EventAssigned }
func (*SourceCompleted) EventType() EventType { return EventSourceCompleted }
