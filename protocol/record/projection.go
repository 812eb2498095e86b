package record

import (
	"bytes"
	"encoding/json"
	"reflect"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/internal/wirejson"
)

// Projection reads a part of each record: some fields of the state, and some types of
// events. The rest is read over, which costs half of what decoding it does.
type Projection struct {
	state  *wirejson.Shape
	events map[protocol.EventType]*wirejson.Shape
}

// NewProjection takes the names of fields of the state, on the wire, and types of events.
// Of an event it leaves out what is heavy to carry: the policies. It panics at a name
// that does not exist.
func NewProjection(state []string, events ...protocol.EventType) *Projection {
	p := &Projection{state: stateShape.Only(state...), events: map[protocol.EventType]*wirejson.Shape{}}
	for _, kind := range events {
		if eventShapes[kind] == nil {
			panic("record: no event is called " + string(kind))
		}
		p.events[kind] = eventShapes[kind].Without("policy", "summary", "routing")
	}
	return p
}

// Decode is Decode for the projection: all else is empty, and other events are left out,
// also those of an unknown type.
func (p *Projection) Decode(body []byte, seq uint64) (protocol.Record, error) {
	r := readers.Get().(*reader)
	defer r.free()
	if err := r.read(body, seq, p.state, p.event); err != nil {
		return protocol.Record{}, err
	}
	return r.into, nil
}

func (p *Projection) event(r *reader) bool {
	kind, ok := r.eventType()
	if !ok {
		return false
	}
	sh := p.events[kind]
	if sh == nil {
		return r.Skip()
	}
	e := protocol.NewEvent(kind)
	r.into.Events = append(r.into.Events, e)
	return r.Decode(sh, e, false)
}

var packageTextShape = protocol.ShapeOf(reflect.TypeFor[protocol.Package]()).Only("reason", "task")

// PackageText reads the description of the task and the reason of the handoff out of a
// stored package.
func PackageText(body []byte) (description, reason string, err error) {
	var p protocol.Package
	s := wirejson.NewLenientReader(body)
	defer s.Free()
	s.KeepTextsApart()
	if s.Decode(packageTextShape, &p, false) {
		s.End()
	}
	if err := s.Broken("package"); err != nil {
		return "", "", protocol.WireError(err)
	}
	return p.Task.Description, p.Reason, nil
}

// PackageOutputSchema reads the output schema out of a package as it is stored;
// nil where it asks for none. The schema is a part of body, not a copy. A package in
// which the field's name does not occur is not parsed. The error is a *Error.
func PackageOutputSchema(body []byte) (json.RawMessage, error) {
	if !bytes.Contains(body, []byte(`"output_schema"`)) && !bytes.Contains(body, []byte(`\u00`)) { // as letters, or escaped
		return nil, nil
	}
	s := wirejson.NewLenientReader(body)
	defer s.Free()
	var found json.RawMessage
	ok := within(s, "expectations", func() bool {
		return within(s, "output_schema", func() bool {
			raw, _, ok := s.Raw()
			found = raw
			return ok
		})
	})
	if ok {
		s.End()
	}
	if err := s.Broken("package"); err != nil {
		return nil, protocol.WireError(err)
	}
	if string(found) == "null" {
		return nil, nil
	}
	return found, nil
}

// within reads the value at hand, and calls read at the value of this field if it
// is an object that has it.
func within(s *wirejson.Reader, name string, read func() bool) bool {
	if s.Peek() != jsontext.KindBeginObject {
		return s.Skip()
	}
	return s.Members(func(_ int, raw []byte) bool {
		if wirejson.NameIs(raw, name) {
			return read()
		}
		return s.Skip()
	})
}
