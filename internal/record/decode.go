package record

import (
	"bytes"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agenthandoff/handoff/internal/wirejson"
	"github.com/agenthandoff/handoff/protocol"
)

// DecodeEvent decodes an event, and skips unknown fields. An unknown type is an Error with
// CodeUnknownEvent.
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

// Decode decodes a record of the ledger and binds its state to its sequence. Fields and events of
// a newer minor version are in Extra and UnknownEvent. Errors have CodeMalformed, CodeVersion for
// another format of records, CodeUnknownEvent for an event without a type, or CodeTooLarge for too
// many levels.
func Decode(body []byte, seq uint64) (protocol.Record, error) {
	r := readers.Get().(*reader)
	defer r.free()
	if err := r.read(body, seq, stateShape, (*reader).appendEvent); err != nil {
		return protocol.Record{}, err
	}
	return r.record, nil
}

// DecodeState decodes only the id and the state of a record, bound to seq.
func DecodeState(body []byte, seq uint64) (id string, s protocol.State, err error) {
	r := readers.Get().(*reader)
	defer r.free()
	if err := r.read(body, seq, stateShape, nil); err != nil {
		return "", protocol.State{}, err
	}
	return r.record.ID, r.record.State, nil
}

// reader is a JSON reader with the record that it decodes. Readers are pooled.
type reader struct {
	wirejson.Reader
	version  int
	record   protocol.Record
	eventErr *protocol.Error // about an event of an unknown type
}

var readers = sync.Pool{New: func() any { return new(reader) }}

func (r *reader) free() {
	r.Reset()
	r.version, r.record, r.eventErr = 0, protocol.Record{}, nil
	readers.Put(r)
}

// broken is the error of a document.
func (r *reader) broken(field string) error {
	if r.eventErr != nil && r.Err == nil {
		return r.eventErr
	}
	return protocol.WireError(r.Broken(field))
}

// read decodes the fields of the state that its shape has, and calls event for each event if it is
// not nil.
func (r *reader) read(body []byte, seq uint64, state *wirejson.Shape, event func(*reader) bool) error {
	r.BeginLenient(body)
	if state != stateShape { // a projection, of a few fields
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
			return r.Decode(textShape, &r.record.ID, true)
		case `"state"`:
			hasState = true
			start := r.Next()
			ok := r.Decode(state, &r.record.State, false)
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
	if r.Err == nil && r.eventErr == nil && r.version != version { // first: it explains other errors
		return protocol.Errorf(protocol.CodeVersion, "v", "record version %d, this program reads %d", r.version, version)
	}
	if err := r.broken("record"); err != nil {
		return err
	}
	if r.record.ID == "" || !hasState {
		return protocol.Errorf(protocol.CodeMissing, "record", "has no id or no state")
	}
	if stateBytes > protocol.StateBytesMax { // no append could follow it
		return tooLarge("record.state", stateBytes)
	}
	r.record.State.Ticket = strings.Clone(r.record.State.Ticket) // callers keep it as a key; it must not keep the other texts alive
	r.record.State.Bind(seq)
	return nil
}

// events decodes the list of events at the reader's position.
func (r *reader) events(event func(*reader) bool) bool {
	if kind := r.Peek(); kind != jsontext.KindBeginArray && kind != jsontext.KindInvalid {
		return r.Malformed(r.Next(), "expected a list of events")
	}
	return r.Elements(func(int) bool { return event(r) })
}

// appendEvent decodes the next event into the record.
func (r *reader) appendEvent() bool {
	e, ok := r.event(true)
	r.record.Events = append(r.record.Events, e)
	return ok
}

// event decodes the next event. With newer it accepts unknown types.
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
	r.eventErr = protocol.Errorf(protocol.CodeUnknownEvent, "events.type", "no event is called %q", wirejson.Clip(string(kind)))
	return nil, false
}

// eventType peeks at the type of the next event. It is usually the first field.
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
	return r.scanEventType(ahead)
}

// scanEventType is eventType for an event whose type is a later field.
func (r *reader) scanEventType(ahead []byte) (kind protocol.EventType, ok bool) {
	within := wirejson.NewLenientReader(ahead)
	defer within.Free()
	if !within.Members(func(_ int, raw []byte) bool {
		if string(raw) == `"type"` {
			return within.Decode(textShape, &kind, true)
		}
		return within.Skip()
	}) {
		return "", r.Skip() && r.Malformed(r.Offset(), "expected an event")
	}
	return kind, true
}

// unknownEvent decodes an event of an unknown type.
func (r *reader) unknownEvent(kind protocol.EventType) (protocol.Event, bool) {
	e := &protocol.UnknownEvent{Type: kind}
	start := r.Next()
	ok := r.Decode(metaShape, &e.Meta, false)
	if ok {
		e.Raw = bytes.Clone(r.Data(start, r.Offset()))
	}
	return e, ok
}
