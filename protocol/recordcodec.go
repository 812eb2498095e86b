package protocol

import (
	"bytes"
	"cmp"
	"encoding/json"
	"reflect"
	"sync"
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
	metaShape  = shapeOf(reflect.TypeFor[Meta]())
	textShape  = shapeOf(reflect.TypeFor[string]())
	countShape = shapeOf(reflect.TypeFor[int]())
)

// EncodeRecord writes a record for the ledger. A state over StateBytesMax is an
// Error with CodeTooLarge; a body that is no JSON is one with CodeMalformed.
func EncodeRecord(r Record) ([]byte, error) {
	w := writers.Get().(*writer)
	defer w.free()
	w.state = r.State
	defer func() { w.state = State{} }()
	return w.record(r.ID, r.Events, &w.state)
}

// EncodeAppend is EncodeRecord for who has the record's parts, and copies none.
func EncodeAppend(id string, events []Event, s *State) ([]byte, error) {
	w := writers.Get().(*writer)
	defer w.free()
	return w.record(id, events, s)
}

func (w *writer) record(id string, events []Event, s *State) ([]byte, error) {
	w.raw(`{"v":1,"id":`)
	w.text(id)
	w.raw(`,"events":[`)
	for i, e := range events {
		if i > 0 {
			w.raw(",")
		}
		if err := w.event(e); err != nil {
			return nil, err
		}
	}
	w.raw(`],"state":`)
	before := len(w.buf)
	if err := w.wholeState(s); err != nil {
		return nil, err
	}
	if size := len(w.buf) - before; size > StateBytesMax {
		return nil, tooLarge("state", size, StateBytesMax)
	}
	w.raw("}")
	return w.written(), nil
}

// carry adds a field of a newer version, name and value, to what is carried on.
// Broken text in it is mended.
func (s *State) carry(field []byte) {
	s.Extra = append(s.Extra, ',')
	s.Extra = append(s.Extra, bytes.ToValidUTF8(field, []byte("\uFFFD"))...)
}

// wholeState writes a state and what it carries on.
func (w *writer) wholeState(s *State) *Error {
	if err := w.object(stateShape, s); err != nil || len(s.Extra) == 0 {
		return err
	}
	w.buf = append(w.buf[:len(w.buf)-1], s.Extra...) // a state is never empty
	w.raw("}")
	return nil
}

// EncodeEvent writes an event as JSON, its type in the first field.
func EncodeEvent(e Event) (json.RawMessage, error) {
	w := writers.Get().(*writer)
	defer w.free()
	if err := w.event(e); err != nil {
		return nil, err
	}
	return w.written(), nil
}

// event writes an event. A body goes to the end, as it is.
func (w *writer) event(e Event) *Error {
	if e, unknown := e.(*UnknownEvent); unknown {
		w.buf = append(w.buf, e.Raw...)
		return nil
	}
	kind := e.EventType()
	sh := eventShapes[kind]
	w.raw(`{"type":"`)
	w.raw(string(kind))
	w.raw(`"`)
	var body json.RawMessage
	var field *field
	if inline, _ := BodyOf(e); inline != nil && *inline != nil {
		body, field = *inline, bodyField(sh)
	}
	if x, ok := e.(direct); ok {
		if x.write(w); w.err != nil {
			return w.err
		}
	} else if err := w.members(sh, reflect.ValueOf(e).Elem(), field); err != nil {
		return err
	}
	if field != nil {
		k := skimmer{data: body}
		if end := k.value(0, skimDepthMax); end < 0 || k.space(end) != len(body) || k.nul || !isText(body) {
			if s := scan(body, anything, nil); s.err != nil {
				return s.err.below(field.name).below("events")
			}
		}
		w.raw(",")
		w.raw(field.head)
		w.buf = append(w.buf, body...)
	}
	w.raw("}")
	return nil
}

// bodyField is the field of an event that BodyOf knows.
func bodyField(sh *shape) *field {
	if f := sh.fields["package"]; f != nil {
		return f
	}
	return sh.fields["result"]
}

// DecodeEvent reads what EncodeEvent wrote, and skips fields it does not know.
// An unknown type is an Error with CodeUnknownEvent.
func DecodeEvent(raw []byte) (Event, error) {
	s := scanner{data: raw, lenient: true}
	e, ok := s.event(false)
	if ok {
		s.end()
	}
	if err := s.broken("events"); err != nil {
		return nil, err
	}
	return e, nil
}

// event reads the event at hand, also one of a newer version if that is welcome.
func (s *scanner) event(newer bool) (Event, bool) {
	kind, ok := s.eventType()
	if !ok {
		return nil, false
	}
	newEmpty := newEvent[kind]
	switch {
	case newEmpty != nil:
	case newer && kind != "":
		return s.unknownEvent(kind)
	default:
		s.err = Errorf(CodeUnknownEvent, "events.type", "no event is called %q", clip(string(kind)))
		return nil, false
	}
	e := newEmpty()
	return e, s.value(eventShapes[kind], reflect.ValueOf(e).Elem(), false)
}

// eventType looks ahead for the type of the event at hand. As a rule it stands first.
func (s *scanner) eventType() (kind EventType, ok bool) {
	s.space()
	const head = `{"type":"`
	if rest := s.data[s.pos:]; bytes.HasPrefix(rest, []byte(head)) {
		name := rest[len(head):]
		if i := bytes.IndexAny(name[:min(len(name), 64)], `"\\`); i >= 0 && name[i] == '"' {
			return EventType(name[:i]), true
		}
	}
	return s.eventTypeWithin()
}

// eventTypeWithin is eventType for an event whose type stands elsewhere.
func (s *scanner) eventTypeWithin() (kind EventType, ok bool) {
	start := s.pos
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
// bound to that sequence. What a newer minor version has in it comes as Extra and as
// UnknownEvent. Errors have CodeMalformed, CodeVersion for another shape of record,
// CodeUnknownEvent for an event without a type, or CodeTooLarge for too many levels.
func DecodeRecord(body []byte, seq uint64) (Record, error) {
	r := recordReaders.Get().(*recordReader)
	defer r.free()
	if err := r.read(body, seq, stateShape, everyEvent); err != nil {
		return Record{}, err
	}
	return r.into, nil
}

// DecodeState reads only the state and the id of a record, bound to seq: what
// a hot path needs.
func DecodeState(body []byte, seq uint64) (id string, s State, err error) {
	r := recordReaders.Get().(*recordReader)
	defer r.free()
	if err := r.read(body, seq, stateShape, nil); err != nil {
		return "", State{}, err
	}
	return r.into.ID, r.into.State, nil
}

// everyEvent reads the event at hand.
func everyEvent(s *scanner, r *Record) bool {
	e, ok := s.event(true)
	r.Events = append(r.Events, e)
	return ok
}

// unknownEvent reads an event whose type nobody here knows.
func (s *scanner) unknownEvent(kind EventType) (Event, bool) {
	e := &UnknownEvent{Type: kind}
	s.space()
	start := s.pos
	ok := s.value(metaShape, reflect.ValueOf(&e.Meta).Elem(), false)
	if ok {
		e.Raw = s.keep(start)
	}
	return e, ok
}

// recordReader is a scanner and the record that it reads into. They are kept for
// the next use.
type recordReader struct {
	scanner
	version int
	into    Record
}

var recordReaders = sync.Pool{New: func() any { return new(recordReader) }}

func (r *recordReader) free() {
	*r = recordReader{scanner: scanner{path: r.emptyPath()}}
	recordReaders.Put(r)
}

// read reads of the state what its shape has, and has event read each event, if it
// is not nil.
func (r *recordReader) read(body []byte, seq uint64, state *shape, event func(*scanner, *Record) bool) error {
	s := &r.scanner
	s.data, s.lenient = body, true
	s.texts.apart = state != stateShape // one field of it or two
	if s.space(); s.pos >= len(body) || body[s.pos] != '{' {
		return Errorf(CodeMalformed, "record", "is no JSON object")
	}
	s.pos++
	hasState, stateBytes := false, 0
	if s.members(func(_ int, raw []byte, _ bool) bool {
		switch string(raw) {
		case `"v"`:
			return s.value(countShape, reflect.ValueOf(&r.version).Elem(), true)
		case `"id"`:
			return s.value(textShape, reflect.ValueOf(&r.into.ID).Elem(), true)
		case `"state"`:
			hasState = true
			start := s.pos
			ok := s.value(state, reflect.ValueOf(&r.into.State).Elem(), false)
			stateBytes = s.pos - start
			return ok
		case `"events"`:
			if event != nil {
				return s.events(&r.into, event)
			}
		}
		return s.value(anything, reflect.Value{}, true)
	}) {
		s.end()
	}
	if s.err == nil && r.version != recordVersion { // which explains a shape that is not ours
		return Errorf(CodeVersion, "v", "record version %d, this program reads %d", r.version, recordVersion)
	}
	if err := s.broken("record"); err != nil {
		return err
	}
	if r.into.ID == "" || !hasState {
		return Errorf(CodeMissing, "record", "has no id or no state")
	}
	if stateBytes > StateBytesMax { // no append could carry on what follows from it
		return tooLarge("record.state", stateBytes, StateBytesMax)
	}
	r.into.State.Bind(seq)
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
