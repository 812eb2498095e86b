package protocol

import (
	"bytes"
	"cmp"
	"encoding/json"
	"reflect"
)

// A record on the wire:
//
//	{"v":1, "id":"…", "events":[{"type":"…", …}, …], "state":{…}}
//
// It is read and written for every step of every handoff, and may carry a
// package or a result of InlineBytesMax. So it is read in one pass, and bodies
// are carried byte for byte.

// recordVersion is the version of the record's shape, apart from Version.
const recordVersion = 1

// recordDepth is how many levels of a record may be around a package or result.
const recordDepth = 8

var (
	stateShape  = shapeOf(reflect.TypeFor[State]())
	eventShapes = func() map[EventType]*shape {
		shapes := map[EventType]*shape{}
		for kind, newEmpty := range newEvent {
			shapes[kind] = shapeOf(reflect.TypeOf(newEmpty()))
		}
		return shapes
	}()
	textShape  = shapeOf(reflect.TypeFor[string]())
	countShape = shapeOf(reflect.TypeFor[int]())
)

// EncodeRecord writes a record for the ledger. A state over StateBytesMax is an
// Error with CodeTooLarge; a body that is no JSON is one with CodeMalformed.
func EncodeRecord(r Record) ([]byte, error) {
	w := writers.Get().(*writer)
	defer w.free()
	w.raw(`{"v":1,"id":`)
	if err := w.value(r.ID); err != nil {
		return nil, err
	}
	w.raw(`,"events":[`)
	for i, e := range r.Events {
		if i > 0 {
			w.raw(",")
		}
		if err := w.event(e); err != nil {
			return nil, err
		}
	}
	w.raw(`],"state":`)
	before := w.buf.Len()
	if err := w.value(&r.State); err != nil {
		return nil, err
	}
	if size := w.buf.Len() - before; size > StateBytesMax {
		return nil, tooLarge("state", size, StateBytesMax)
	}
	w.raw("}")
	return bytes.Clone(w.buf.Bytes()), nil
}

// EncodeEvent writes an event as JSON, its type in the first field.
func EncodeEvent(e Event) (json.RawMessage, error) {
	w := writers.Get().(*writer)
	defer w.free()
	if err := w.event(e); err != nil {
		return nil, err
	}
	return bytes.Clone(w.buf.Bytes()), nil
}

// event writes an event. A body goes to the end, as it is.
func (w *writer) event(e Event) *Error {
	var name string
	var body json.RawMessage
	switch with := e.(type) {
	case *Submitted:
		if without := *with; without.Package != nil {
			name, body, without.Package = "package", without.Package, nil
			e = &without
		}
	case *Completed:
		if without := *with; without.Result != nil {
			name, body, without.Result = "result", without.Result, nil
			e = &without
		}
	case *HandedOff:
		if without := *with; without.Package != nil {
			name, body, without.Package = "package", without.Package, nil
			e = &without
		}
	case *ResultParked:
		if without := *with; without.Result != nil {
			name, body, without.Result = "result", without.Result, nil
			e = &without
		}
	case *RolledBack:
		if without := *with; without.Result != nil {
			name, body, without.Result = "result", without.Result, nil
			e = &without
		}
	}
	w.raw(`{"type":"`)
	w.raw(string(e.EventType()))
	w.raw(`",`)
	start := w.buf.Len()
	if err := w.value(e); err != nil {
		return err
	}
	// The object that was written begins with a brace where a comma stands
	// already. Every event has a time, so it is never empty.
	text := w.buf.Bytes()
	w.buf.Truncate(start + copy(text[start:], text[start+1:]))
	if body == nil {
		return nil
	}
	if s := scan(body, anything, nil); s.err != nil {
		return s.err.below(name).below("events")
	}
	w.buf.Truncate(w.buf.Len() - 1)
	w.raw(`,"` + name + `":`)
	w.buf.Write(body)
	w.raw("}")
	return nil
}

// DecodeEvent reads what EncodeEvent wrote, and skips fields it does not know.
// An unknown type is an Error with CodeUnknownEvent.
func DecodeEvent(raw []byte) (Event, error) {
	s := scanner{data: raw, lenient: true}
	e, ok := s.event()
	if ok {
		s.end()
	}
	if err := s.broken("events"); err != nil {
		return nil, err
	}
	return e, nil
}

// event reads the event at hand.
func (s *scanner) event() (Event, bool) {
	kind, ok := s.eventType()
	if !ok {
		return nil, false
	}
	newEmpty := newEvent[kind]
	if newEmpty == nil {
		s.err = Errorf(CodeUnknownEvent, "events.type", "no event is called %q", clip(string(kind)))
		return nil, false
	}
	e := newEmpty()
	return e, s.value(eventShapes[kind], reflect.ValueOf(e).Elem(), false)
}

// eventType looks ahead for the type of the event at hand. As a rule it stands first.
func (s *scanner) eventType() (kind EventType, ok bool) {
	s.space()
	start := s.pos
	const head = `{"type":"`
	if rest := s.data[start:]; bytes.HasPrefix(rest, []byte(head)) {
		name := rest[len(head):]
		if i := bytes.IndexAny(name[:min(len(name), 64)], `"\\`); i >= 0 && name[i] == '"' {
			return EventType(name[:i]), true
		}
	}
	if start >= len(s.data) || s.data[start] != '{' {
		return "", s.malformed("expected an event, an object")
	}
	s.pos++
	ok = s.members(func(_ int, raw []byte, _ bool) bool {
		if string(raw) == `"type"` {
			return s.value(textShape, reflect.ValueOf(&kind).Elem(), true)
		}
		return s.value(anything, reflect.Value{}, true)
	})
	s.pos = start
	return kind, ok
}

// broken is what was wrong with a document of the ledger.
func (s *scanner) broken(field string) *Error {
	switch {
	case s.err != nil && s.err.Code == CodeUnknownEvent:
		return s.err
	case s.err != nil:
		return Errorf(s.err.Code, field, "%s: %s", cmp.Or(s.err.Field, "the JSON"), s.err.Message)
	case s.problem != nil:
		return Errorf(CodeMalformed, field, "%s: %s", cmp.Or(s.problem.Field, "the JSON"), s.problem.Message)
	}
	return nil
}

// DecodeRecord reads a record as it came from the ledger at seq, its state
// bound to that sequence. Errors have CodeMalformed, CodeVersion for another
// shape of record, CodeUnknownEvent, or CodeTooLarge for too many levels.
func DecodeRecord(body []byte, seq uint64) (Record, error) {
	var r Record
	if err := decodeRecord(body, seq, &r, stateShape, everyEvent); err != nil {
		return Record{}, err
	}
	return r, nil
}

// DecodeState reads only the state and the id of a record, bound to seq: what
// a hot path needs.
func DecodeState(body []byte, seq uint64) (id string, s State, err error) {
	var r Record
	if err := decodeRecord(body, seq, &r, stateShape, nil); err != nil {
		return "", State{}, err
	}
	return r.ID, r.State, nil
}

// everyEvent reads the event at hand.
func everyEvent(s *scanner, r *Record) bool {
	e, ok := s.event()
	r.Events = append(r.Events, e)
	return ok
}

// decodeRecord reads of the state what its shape has, and has event read each
// event, if it is not nil.
func decodeRecord(body []byte, seq uint64, r *Record, state *shape, event func(*scanner, *Record) bool) error {
	s := scanner{data: body, lenient: true}
	if s.space(); s.pos >= len(body) || body[s.pos] != '{' {
		return Errorf(CodeMalformed, "record", "is no JSON object")
	}
	s.pos++
	version, hasState := 0, false
	if s.members(func(_ int, raw []byte, _ bool) bool {
		switch string(raw) {
		case `"v"`:
			return s.value(countShape, reflect.ValueOf(&version).Elem(), true)
		case `"id"`:
			return s.value(textShape, reflect.ValueOf(&r.ID).Elem(), true)
		case `"state"`:
			hasState = true
			return s.value(state, reflect.ValueOf(&r.State).Elem(), false)
		case `"events"`:
			if event != nil {
				return s.events(r, event)
			}
		}
		return s.value(anything, reflect.Value{}, true)
	}) {
		s.end()
	}
	if s.err == nil && version != recordVersion { // which explains a shape that is not ours
		return Errorf(CodeVersion, "v", "record version %d, this program reads %d", version, recordVersion)
	}
	if err := s.broken("record"); err != nil {
		return err
	}
	if r.ID == "" || !hasState {
		return Errorf(CodeMissing, "record", "has no id or no state")
	}
	r.State.Bind(seq)
	return nil
}

// events reads the list of events at hand.
func (s *scanner) events(r *Record, event func(*scanner, *Record) bool) bool {
	if s.space(); s.pos >= len(s.data) || s.data[s.pos] != '[' {
		return s.malformed("expected a list of events")
	}
	s.pos++
	return s.elements(func(int) bool { return event(s, r) })
}
