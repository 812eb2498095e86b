package record

import (
	"bytes"
	"encoding/json"
	"reflect"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agenthandoff/handoff/internal/wirejson"
	"github.com/agenthandoff/handoff/protocol"
)

// Projection decodes a part of each record: some fields of the state and some types of events.
// Skipping the rest costs half as much as decoding it.
type Projection struct {
	state  *wirejson.Shape
	events map[protocol.EventType]*wirejson.Shape
}

// NewProjection takes the wire names of state fields, and types of events. It omits the large
// fields of events: policy, summary, routing. It panics at an unknown name.
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

// Decode decodes the projection of a record. Everything else is zero, and other events are
// omitted, including those of unknown types.
func (p *Projection) Decode(body []byte, seq uint64) (protocol.Record, error) {
	r := readers.Get().(*reader)
	defer r.free()
	if err := r.read(body, seq, p.state, p.event); err != nil {
		return protocol.Record{}, err
	}
	return r.record, nil
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
	r.record.Events = append(r.record.Events, e)
	return r.Decode(sh, e, false)
}

var packageTextShape = protocol.ShapeOf(reflect.TypeFor[protocol.Package]()).Only("reason", "task")

// PackageText decodes the description of the task and the reason of an encoded package.
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

// PackageOutputSchema returns the output schema of an encoded package; nil without one. The schema
// shares memory with body. A package that does not contain the field's name is not parsed. The
// error is a *Error.
func PackageOutputSchema(body []byte) (json.RawMessage, error) {
	if !bytes.Contains(body, []byte(`"output_schema"`)) && !bytes.Contains(body, []byte(`\u00`)) { // plain or escaped
		return nil, nil
	}
	return packageMember(body, "expectations", "output_schema")
}

// PackageContext returns the context of an encoded package; nil without one. It shares memory with
// body. The error is a *Error.
func PackageContext(body []byte) (json.RawMessage, error) { return packageMember(body, "context") }

// packageMember returns the field of an encoded package at a path; nil if it is absent or null.
func packageMember(body []byte, path ...string) (found json.RawMessage, err error) {
	s := wirejson.NewLenientReader(body)
	defer s.Free()
	if readMember(s, path, &found) {
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

// readMember reads the next value, and finds the member at a path in it.
func readMember(s *wirejson.Reader, path []string, found *json.RawMessage) (ok bool) {
	switch {
	case len(path) == 0:
		*found, _, ok = s.Raw()
		return ok
	case s.Peek() != jsontext.KindBeginObject:
		return s.Skip()
	}
	return s.Members(func(_ int, raw []byte) bool {
		if wirejson.NameIs(raw, path[0]) {
			return readMember(s, path[1:], found)
		}
		return s.Skip()
	})
}
