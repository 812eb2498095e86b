// Package record encodes and decodes the messages of the ledger and of the queues: a record
// with its events and state, and an offer.
package record

import (
	"encoding/json"
	"reflect"
	"sync"

	"github.com/agenthandoff/handoff/internal/wirejson"
	"github.com/agenthandoff/handoff/protocol"
)

// A record on the wire:
//
//	{"v":1, "id":"…", "events":[{"type":"…", …}, …], "state":{…}}
//
// It is read and written for every step of every handoff, and may contain a package or a
// result of InlineBytesMax. So it is read in one pass, and bodies are copied byte for
// byte.

// version is the version of the record's format, independent of protocol.Version.
const version = 1

var (
	stateShape  = protocol.ShapeOf(reflect.TypeFor[protocol.State]())
	eventShapes = func() map[protocol.EventType]*wirejson.Shape {
		shapes := map[protocol.EventType]*wirejson.Shape{}
		for _, kind := range protocol.EventTypes {
			shapes[kind] = protocol.ShapeOf(reflect.TypeOf(protocol.NewEvent(kind)))
		}
		return shapes
	}()
	metaShape  = protocol.ShapeOf(reflect.TypeFor[protocol.Meta]())
	textShape  = protocol.ShapeOf(reflect.TypeFor[string]())
	countShape = protocol.ShapeOf(reflect.TypeFor[int]())
)

// writer is a JSON writer with the state that it writes. Reflection needs the state on the heap; a
// pooled one avoids the allocation.
type writer struct {
	wirejson.Writer
	state protocol.State
}

var writers = sync.Pool{New: func() any { return new(writer) }}

// Encode encodes a record for the ledger. A state over StateBytesMax is an Error with
// CodeTooLarge; a body that is no JSON is one with CodeMalformed.
func Encode(r protocol.Record) ([]byte, error) {
	w := writers.Get().(*writer)
	defer writers.Put(w)
	w.state = r.State
	defer func() { w.state = protocol.State{}; w.Reset() }()
	if err := encode(&w.Writer, r.ID, r.Events, &w.state); err != nil {
		return nil, err
	}
	return w.Written(), nil
}

// Append appends an encoded record, given in parts, to buf and returns the extended buffer. It
// fails as Encode does.
func Append(buf []byte, id string, events []protocol.Event, s *protocol.State) ([]byte, error) {
	w := wirejson.NewWriter()
	defer w.Free()
	own := w.Swap(buf)
	err := encode(w, id, events, s)
	return w.Swap(own), err
}

func encode(w *wirejson.Writer, id string, events []protocol.Event, s *protocol.State) error {
	w.Raw(`{"v":1,"id":`)
	w.Text(id)
	w.Raw(`,"events":[`)
	for i, e := range events {
		if i > 0 {
			w.Raw(",")
		}
		if err := writeEvent(w, e, true); err != nil {
			return protocol.WireError(err)
		}
	}
	w.Raw(`],"state":`)
	before := w.Len()
	if err := writeState(w, s); err != nil {
		return protocol.WireError(err)
	}
	if size := w.Len() - before; size > protocol.StateBytesMax {
		return tooLarge("state", size)
	}
	w.Raw("}")
	return nil
}

func tooLarge(field string, size int) error {
	return protocol.Errorf(protocol.CodeTooLarge, field, "%s", protocol.OverSize(size, protocol.StateBytesMax))
}

// writeState writes a state with the fields of newer versions that it preserves.
func writeState(w *wirejson.Writer, s *protocol.State) *wirejson.Error {
	if err := w.Object(stateShape, s); err != nil || len(s.Extra) == 0 {
		return err
	}
	w.Reopen()
	w.RawBytes(s.Extra)
	w.Raw("}")
	return nil
}

// EncodeEvent encodes an event. Its type is the first field.
func EncodeEvent(e protocol.Event) (json.RawMessage, error) { return encodeEvent(e, true) }

// EncodeEventOnly encodes an event without its package or result.
func EncodeEventOnly(e protocol.Event) (json.RawMessage, error) { return encodeEvent(e, false) }

func encodeEvent(e protocol.Event, withBody bool) (json.RawMessage, error) {
	w := wirejson.NewWriter()
	defer w.Free()
	if err := writeEvent(w, e, withBody); err != nil {
		return nil, protocol.WireError(err)
	}
	return w.Written(), nil
}

// writeEvent writes an event. Its body is the last field, unchanged.
func writeEvent(w *wirejson.Writer, e protocol.Event, withBody bool) *wirejson.Error {
	if e, unknown := e.(*protocol.UnknownEvent); unknown {
		w.RawBytes(e.Raw)
		return nil
	}
	kind := e.EventType()
	sh := eventShapes[kind]
	w.Raw(`{"type":"`)
	w.Raw(string(kind))
	w.Raw(`"`)
	var body json.RawMessage
	var field *wirejson.Field
	if inline, _ := protocol.BodyOf(e); inline != nil && *inline != nil {
		body, field = *inline, bodyField(sh)
	}
	if err := w.Fields(sh, e, field); err != nil {
		return err
	}
	if field != nil && withBody {
		if err := wirejson.CheckJSON(body); err != nil {
			return err.Below(field.Name).Below("events")
		}
		w.Raw(",")
		w.Raw(field.Head)
		w.RawBytes(body)
	}
	w.Raw("}")
	return nil
}

// bodyField is the field that protocol.BodyOf returns.
func bodyField(sh *wirejson.Shape) *wirejson.Field {
	if f := sh.Field("package"); f != nil {
		return f
	}
	return sh.Field("result")
}
