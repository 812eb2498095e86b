package protocol

import (
	"bytes"
	"encoding/json"
)

// A record on the wire:
//
//	{"v":1, "id":"…", "events":[{"type":"…", …}, …], "state":{…}}
//
// It is read and written for every step of every handoff, and may carry a
// package or a result of InlineBytesMax. So it is cut into its members by one
// scan, and bodies are passed by: encoding/json sees the small rest.

// recordVersion is the version of the record's shape, apart from Version.
const recordVersion = 1

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
	if s := scan(body, anything); s.err != nil {
		return s.err.below(name).below("events")
	}
	w.buf.Truncate(w.buf.Len() - 1)
	w.raw(`,"` + name + `":`)
	w.buf.Write(body)
	w.raw("}")
	return nil
}

// part is a member of an object: from its key at start, its value at from.
type part struct {
	key              []byte
	start, from, end int
}

func (p part) value(data []byte) []byte { return data[p.from:p.end] }

// parts are the members of an object.
type parts []part

// find returns the member with this key, or one without a value.
func (all parts) find(key string) part {
	for _, p := range all {
		if string(p.key) == key {
			return p
		}
	}
	return part{}
}

// split reads an object at hand and says where its members stand. It stops at
// the value of each in into, which reads it; without into any value will do.
func (s *scanner) split(into func(key []byte) bool) (all parts, ok bool) {
	s.space()
	if s.pos >= len(s.data) || s.data[s.pos] != '{' {
		return nil, s.malformed("expected an object")
	}
	s.pos++
	all = make(parts, 0, 8)
	ok = s.members(func(start int, raw []byte, _ bool) bool {
		s.space()
		p := part{key: raw[1 : len(raw)-1], start: start, from: s.pos}
		if into == nil || !into(p.key) {
			if !s.value(anything, true) {
				return false
			}
		}
		p.end = s.pos
		all = append(all, p)
		return s.err == nil
	})
	return all, ok
}

// end ends a scan: nothing may follow.
func (s *scanner) end(field string) *Error {
	s.space()
	if s.err == nil && s.pos < len(s.data) {
		s.malformed("there is something after the end of the JSON")
	}
	if s.err != nil {
		s.err.Field = field
	}
	return s.err
}

// DecodeEvent reads what EncodeEvent wrote. An unknown type is an Error with
// CodeUnknownEvent.
func DecodeEvent(raw []byte) (Event, error) {
	s := scanner{data: raw}
	var all parts
	if s.checkText() {
		all, _ = s.split(nil)
	}
	if err := s.end("events"); err != nil {
		return nil, err
	}
	e, err := decodeEvent(raw, part{end: len(raw)}, all)
	if err != nil {
		return nil, err
	}
	return e, nil
}

// decodeEvent reads the event that stands at the place of whole in data and
// has these members.
func decodeEvent(data []byte, whole part, all parts) (Event, *Error) {
	kind := EventType(unquote(all.find("type").value(data)))
	newEmpty, ok := newEvent[kind]
	if !ok {
		return nil, Errorf(CodeUnknownEvent, "events.type", "no event is called %q", clip(string(kind)))
	}
	e := newEmpty()
	rest := whole.value(data)
	cut := func(key string) (body json.RawMessage) {
		p := all.find(key)
		if value := p.value(data); len(value) > 0 && string(value) != "null" {
			rest = without(rest, []member{{start: p.start - whole.from, end: p.end - whole.from}})
			return bytes.Clone(value)
		}
		return nil
	}
	switch e := e.(type) {
	case *Submitted:
		e.Package = cut("package")
	case *Completed:
		e.Result = cut("result")
	}
	if err := json.Unmarshal(rest, e); err != nil {
		return nil, Errorf(CodeMalformed, "events", "event %s: %v", kind, err)
	}
	return e, nil
}

// eventPart is an event inside a record: where it stands, and its members.
type eventPart struct {
	whole part
	parts
}

// splitRecord finds the members of a record and, if wanted, of its events.
func splitRecord(body []byte, withEvents bool) (all parts, events []eventPart, err *Error) {
	s := scanner{data: body}
	if s.checkText() {
		all, _ = s.split(func(key []byte) bool {
			if string(key) != "events" || !withEvents {
				return false
			}
			events = s.events()
			return true
		})
	}
	if err := s.end("record"); err != nil {
		return nil, nil, err
	}
	var version int
	if err := json.Unmarshal(all.find("v").value(body), &version); err != nil || version != recordVersion {
		return nil, nil, Errorf(CodeVersion, "v", "record version %s, this program reads %d", clip(string(all.find("v").value(body))), recordVersion)
	}
	return all, events, nil
}

// events reads the list of events at hand.
func (s *scanner) events() (list []eventPart) {
	s.space()
	if s.pos >= len(s.data) || s.data[s.pos] != '[' {
		s.malformed("expected a list of events")
		return nil
	}
	s.pos++
	if s.empty(']') {
		return nil
	}
	for {
		s.space()
		e := eventPart{whole: part{from: s.pos}}
		var ok bool
		if e.parts, ok = s.split(nil); !ok {
			return nil
		}
		e.whole.end = s.pos
		list = append(list, e)
		if more, ok := s.next(']'); !ok || !more {
			return list
		}
	}
}

// DecodeRecord reads a record as it came from the ledger at seq, its state
// bound to that sequence. Errors have CodeMalformed, CodeText, CodeVersion for
// another shape of record, or CodeUnknownEvent.
func DecodeRecord(body []byte, seq uint64) (Record, error) {
	all, events, err := splitRecord(body, true)
	if err != nil {
		return Record{}, err
	}
	r := Record{Events: make([]Event, 0, len(events))}
	if r.ID, r.State, err = decodeState(body, all, seq); err != nil {
		return Record{}, err
	}
	for _, event := range events {
		e, err := decodeEvent(body, event.whole, event.parts)
		if err != nil {
			return Record{}, err
		}
		r.Events = append(r.Events, e)
	}
	return r, nil
}

// DecodeState reads only the state and the id of a record, bound to seq: what
// a hot path needs.
func DecodeState(body []byte, seq uint64) (id string, s State, err error) {
	all, _, refusal := splitRecord(body, false)
	if refusal == nil {
		id, s, refusal = decodeState(body, all, seq)
	}
	if refusal != nil {
		return "", State{}, refusal
	}
	return id, s, nil
}

func decodeState(body []byte, all parts, seq uint64) (id string, s State, err *Error) {
	for _, m := range []struct {
		key  string
		into any
	}{{"id", &id}, {"state", &s}} {
		value := all.find(m.key).value(body)
		if len(value) == 0 {
			return "", State{}, Errorf(CodeMissing, m.key, "is missing in a record")
		}
		if err := json.Unmarshal(value, m.into); err != nil {
			return "", State{}, Errorf(CodeMalformed, m.key, "cannot be read: %v", err)
		}
	}
	s.Bind(seq)
	return id, s, nil
}
