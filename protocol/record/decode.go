package record

import (
	"bytes"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/internal/wirejson"
)

// DecodeEvent reads what EncodeEvent wrote, and skips fields it does not know.
// An unknown type is an Error with CodeUnknownEvent.
func DecodeEvent(raw []byte) (protocol.Event, error) {
	r := readers.Get().(*reader)
	defer r.free()
	r.BeginLenient(raw)
	e, ok := r.event(false)
	if ok {
		r.End()
	}
	if err := r.broken("events"); err != nil {
		return nil, err
	}
	return e, nil
}

// Decode reads a record as it came from the ledger at seq, its state
// bound to that sequence. What a newer minor version has in it comes as Extra and as
// UnknownEvent. Errors have CodeMalformed, CodeVersion for another shape of record,
// CodeUnknownEvent for an event without a type, or CodeTooLarge for too many levels.
func Decode(body []byte, seq uint64) (protocol.Record, error) {
	r := readers.Get().(*reader)
	defer r.free()
	if err := r.read(body, seq, stateShape, (*reader).everyEvent); err != nil {
		return protocol.Record{}, err
	}
	return r.into, nil
}

// DecodeState reads only the state and the id of a record, bound to seq: what
// a hot path needs.
func DecodeState(body []byte, seq uint64) (id string, s protocol.State, err error) {
	r := readers.Get().(*reader)
	defer r.free()
	if err := r.read(body, seq, stateShape, nil); err != nil {
		return "", protocol.State{}, err
	}
	return r.into.ID, r.into.State, nil
}

// reader is a reader of JSON and the record that it reads into. They are kept for
// the next use.
type reader struct {
	wirejson.Reader
	version int
	into    protocol.Record
	unknown *protocol.Error // an event that has no meaning here
}

var readers = sync.Pool{New: func() any { return new(reader) }}

func (r *reader) free() {
	r.Reset()
	r.version, r.into, r.unknown = 0, protocol.Record{}, nil
	readers.Put(r)
}

// broken is what was wrong with a document of the ledger.
func (r *reader) broken(field string) error {
	if r.unknown != nil && r.Err == nil {
		return r.unknown
	}
	return protocol.WireError(r.Broken(field))
}

// read reads of the state what its shape has, and has event read each event, if it
// is not nil.
func (r *reader) read(body []byte, seq uint64, state *wirejson.Shape, event func(*reader) bool) error {
	r.BeginLenient(body)
	if state != stateShape { // one field of it or two
		r.KeepTextsApart()
	}
	if r.Peek() != jsontext.KindBeginObject {
		return protocol.Errorf(protocol.CodeMalformed, "record", "is no JSON object")
	}
	hasState, stateBytes := false, 0
	if r.Members(func(_ int, raw []byte) bool {
		switch string(raw) {
		case `"v"`:
			return r.Decode(countShape, &r.version, true)
		case `"id"`:
			return r.Decode(textShape, &r.into.ID, true)
		case `"state"`:
			hasState = true
			start := r.Next()
			ok := r.Decode(state, &r.into.State, false)
			stateBytes = r.Offset() - start
			return ok
		case `"events"`:
			if event != nil {
				return r.events(event)
			}
		}
		return r.Skip()
	}) {
		r.End()
	}
	if r.Err == nil && r.unknown == nil && r.version != version { // which explains a shape that is not ours
		return protocol.Errorf(protocol.CodeVersion, "v", "record version %d, this program reads %d", r.version, version)
	}
	if err := r.broken("record"); err != nil {
		return err
	}
	if r.into.ID == "" || !hasState {
		return protocol.Errorf(protocol.CodeMissing, "record", "has no id or no state")
	}
	if stateBytes > protocol.StateBytesMax { // no append could carry on what follows from it
		return tooLarge("record.state", stateBytes)
	}
	r.into.State.Ticket = strings.Clone(r.into.State.Ticket) // callers keep things by it, longer than the texts beside it
	r.into.State.Bind(seq)
	return nil
}

// events reads the list of events at hand.
func (r *reader) events(event func(*reader) bool) bool {
	if kind := r.Peek(); kind != jsontext.KindBeginArray && kind != jsontext.KindInvalid {
		return r.Malformed(r.Next(), "expected a list of events")
	}
	return r.Elements(func(int) bool { return event(r) })
}

// everyEvent reads the event at hand.
func (r *reader) everyEvent() bool {
	e, ok := r.event(true)
	r.into.Events = append(r.into.Events, e)
	return ok
}

// event reads the event at hand, also one of a newer version if that is welcome.
func (r *reader) event(newer bool) (protocol.Event, bool) {
	kind, ok := r.eventType()
	if !ok {
		return nil, false
	}
	e := protocol.NewEvent(kind)
	switch {
	case e != nil:
		return e, r.Decode(eventShapes[kind], e, false)
	case newer && kind != "":
		return r.unknownEvent(kind)
	}
	r.unknown = protocol.Errorf(protocol.CodeUnknownEvent, "events.type", "no event is called %q", wirejson.Clip(string(kind)))
	return nil, false
}

// eventType looks ahead for the type of the event at hand. As a rule it is the first field.
func (r *reader) eventType() (kind protocol.EventType, ok bool) {
	if r.Peek() != jsontext.KindBeginObject {
		return "", r.Malformed(r.Next(), "expected an event, an object")
	}
	ahead := r.Ahead()
	const head = `{"type":"`
	if bytes.HasPrefix(ahead, []byte(head)) {
		name := ahead[len(head):]
		if i := bytes.IndexAny(name[:min(len(name), 64)], `"\\`); i >= 0 && name[i] == '"' {
			return protocol.EventType(name[:i]), true
		}
	}
	return r.eventTypeWithin(ahead)
}

// eventTypeWithin is eventType for an event whose type is a later field.
func (r *reader) eventTypeWithin(ahead []byte) (kind protocol.EventType, ok bool) {
	within := wirejson.NewLenientReader(ahead)
	defer within.Free()
	if !within.Members(func(_ int, raw []byte) bool {
		if string(raw) == `"type"` {
			return within.Decode(textShape, &kind, true)
		}
		return within.Skip()
	}) {
		return "", r.Skip() && r.Malformed(r.Offset(), "expected an event") // Skip says where
	}
	return kind, true
}

// unknownEvent reads an event whose type this version does not know.
func (r *reader) unknownEvent(kind protocol.EventType) (protocol.Event, bool) {
	e := &protocol.UnknownEvent{Type: kind}
	start := r.Next()
	ok := r.Decode(metaShape, &e.Meta, false)
	if ok {
		e.Raw = bytes.Clone(r.Data(start, r.Offset()))
	}
	return e, ok
}
