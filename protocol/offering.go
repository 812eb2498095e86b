package protocol

import (
	"encoding/json"
	"reflect"
	"strconv"
)

// Offering is what an offer carries in the queue: enough to accept it without
// reading anything else.
//
//	{"seq":…, "hash":"…", "state":{…}, "package":{…}, …}
type Offering struct {
	Seq     uint64 // of the head it was made from
	Hash    string // of that head
	State   *State // bound to Seq
	Package json.RawMessage
	OfferingRest
}

// OfferingRest is what few offers have.
type OfferingRest struct {
	Blob    *BlobRef `json:"package_blob,omitempty"`
	Answers []Answer `json:"answers,omitempty"`
	// Trail is what happened to the handoff before it came here.
	Trail []TrailEntry `json:"trail,omitempty"`
	// AnswersBlob is where answers and trail lie that are too large to be here.
	AnswersBlob *BlobRef `json:"answers_blob,omitempty"`
}

var (
	restShape     = shapeOf(reflect.TypeFor[OfferingRest]())
	sequenceShape = shapeOf(reflect.TypeFor[uint64]())
)

// EncodeOffering writes an offer for the queue. The package goes into it as it is.
func EncodeOffering(o *Offering) ([]byte, error) {
	w := writers.Get().(*writer)
	defer w.free()
	w.raw(`{"seq":`)
	w.buf = strconv.AppendUint(w.buf, o.Seq, 10)
	w.raw(`,"hash":`)
	w.text(o.Hash)
	w.raw(`,"state":`)
	if err := w.wholeState(o.State); err != nil {
		return nil, err.below("state")
	}
	if o.Package != nil {
		w.raw(`,"package":`)
		w.buf = append(w.buf, o.Package...)
	}
	if err := w.members(restShape, reflect.ValueOf(&o.OfferingRest).Elem(), nil); err != nil {
		return nil, err.below("offer")
	}
	w.raw("}")
	return w.written(), nil
}

// DecodeOffering reads what EncodeOffering wrote, and skips fields that it does
// not know. The state goes into the one given, which is to be empty. The package and
// all free data are parts of body. Errors are an *Error.
func DecodeOffering(body []byte, into *State) (Offering, error) {
	o := Offering{State: into}
	s := scanner{data: body, own: body, lenient: true}
	if s.space(); s.pos >= len(body) || body[s.pos] != '{' {
		return Offering{}, Errorf(CodeMalformed, "offer", "is no JSON object")
	}
	s.pos++
	hasState := false
	if s.members(func(_ int, raw []byte, _ bool) bool {
		switch string(raw) {
		case `"seq"`:
			return s.value(sequenceShape, reflect.ValueOf(&o.Seq).Elem(), false)
		case `"hash"`:
			return s.value(textShape, reflect.ValueOf(&o.Hash).Elem(), false)
		case `"state"`:
			hasState = true
			return s.value(stateShape, reflect.ValueOf(o.State).Elem(), false)
		case `"package"`:
			s.space()
			start := s.pos
			if !s.value(anything, reflect.Value{}, true) {
				return false
			}
			o.Package = body[start:s.pos:s.pos]
			return true
		}
		if f := restShape.fields[string(raw[1:len(raw)-1])]; f != nil {
			return s.value(f.shape, reflect.ValueOf(&o.OfferingRest).Elem().FieldByIndex(f.index), false)
		}
		return s.value(anything, reflect.Value{}, true)
	}) {
		s.end()
	}
	if err := s.broken("offer"); err != nil {
		return Offering{}, err
	}
	if !hasState {
		return Offering{}, Errorf(CodeMissing, "offer", "has no state")
	}
	if string(o.Package) == "null" {
		o.Package = nil
	}
	return o, nil
}
