package protocol

import (
	"encoding/json"
	"fmt"
)

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

type wireRecord struct {
	Version int               `json:"v"`
	ID      string            `json:"id"`
	Events  []json.RawMessage `json:"events"`
	State   State             `json:"state"`
}

// recordVersion is the version of the record's shape, apart from Version.
const recordVersion = 1

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
	EventTimedOut:        func() Event { return new(TimedOut) },
	EventCancelRequested: func() Event { return new(CancelRequested) },
	EventClosed:          func() Event { return new(Closed) },
	EventStuck:           func() Event { return new(Stuck) },
}

// EventTypes are all event types, in the order of the table.
var EventTypes = []EventType{EventSubmitted, EventOffered, EventClaimed, EventAccepted,
	EventStarted, EventProgressed, EventCompleted, EventFailed, EventRejected, EventConditioned,
	EventAnswered, EventRetryScheduled, EventRerouted, EventEscalated, EventLeaseLost,
	EventReleased, EventReminded, EventTimedOut, EventCancelRequested, EventClosed, EventStuck}

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
func (*TimedOut) EventType() EventType        { return EventTimedOut }
func (*CancelRequested) EventType() EventType { return EventCancelRequested }
func (*Closed) EventType() EventType          { return EventClosed }
func (*Stuck) EventType() EventType           { return EventStuck }

// EncodeEvent writes an event as JSON, its type in the first field.
func EncodeEvent(e Event) (json.RawMessage, error) {
	body, err := marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode event %s: %w", e.EventType(), err)
	}
	head := []byte(`{"type":"` + string(e.EventType()) + `"`)
	if len(body) > 2 { // more than {}
		head = append(head, ',')
	}
	return append(head, body[1:]...), nil
}

// DecodeEvent reads what EncodeEvent wrote. An unknown type is an Error with
// CodeUnknownEvent.
func DecodeEvent(raw []byte) (Event, error) {
	var head struct {
		Type EventType `json:"type"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, Errorf(CodeMalformed, "events", "event is not JSON: %v", err)
	}
	make, ok := newEvent[head.Type]
	if !ok {
		return nil, Errorf(CodeUnknownEvent, "events.type", "no event is called %q", head.Type)
	}
	e := make()
	if err := json.Unmarshal(raw, e); err != nil {
		return nil, Errorf(CodeMalformed, "events", "event %s: %v", head.Type, err)
	}
	return e, nil
}

// EncodeRecord writes a record for the ledger. It refuses a state over StateBytesMax.
func EncodeRecord(r Record) ([]byte, error) {
	w := wireRecord{Version: recordVersion, ID: r.ID, State: r.State}
	for _, e := range r.Events {
		raw, err := EncodeEvent(e)
		if err != nil {
			return nil, err
		}
		w.Events = append(w.Events, raw)
	}
	return marshal(w)
}

// DecodeRecord reads a record as it came from the ledger at seq, its state
// bound to that sequence.
func DecodeRecord(body []byte, seq uint64) (Record, error) {
	w, err := decodeWireRecord(body)
	if err != nil {
		return Record{}, err
	}
	r := Record{ID: w.ID, State: w.State}
	for _, raw := range w.Events {
		e, err := DecodeEvent(raw)
		if err != nil {
			return Record{}, err
		}
		r.Events = append(r.Events, e)
	}
	r.State.Bind(seq)
	return r, nil
}

// DecodeState reads only the state and the id of a record, bound to seq: what
// a hot path needs.
func DecodeState(body []byte, seq uint64) (id string, s State, err error) {
	w, err := decodeWireRecord(body)
	if err != nil {
		return "", State{}, err
	}
	w.State.Bind(seq)
	return w.ID, w.State, nil
}

func decodeWireRecord(body []byte) (wireRecord, error) {
	var w wireRecord
	if err := json.Unmarshal(body, &w); err != nil {
		return w, Errorf(CodeMalformed, "record", "record is not JSON: %v", err)
	}
	if w.Version != recordVersion {
		return w, Errorf(CodeVersion, "v", "record version %d, this program reads %d", w.Version, recordVersion)
	}
	return w, nil
}
