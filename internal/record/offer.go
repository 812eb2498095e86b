package record

import (
	"encoding/json"
	"reflect"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agenthandoff/handoff/internal/wirejson"
	"github.com/agenthandoff/handoff/protocol"
)

// Offer is the content of an offer in the queue: enough to accept it without further reads.
//
//	{"seq":…, "hash":"…", "state":{…}, "package":{…}, …}
type Offer struct {
	Seq     uint64          // of the head it was made from
	Hash    string          // of that head
	State   *protocol.State // bound to Seq
	Package json.RawMessage
	OfferExtras
}

// OfferExtras are fields that few offers have.
type OfferExtras struct {
	Blob    *protocol.BlobRef `json:"package_blob,omitempty"`
	Answers []protocol.Answer `json:"answers,omitempty"`
	// Trail is the history of the handoff before this offer.
	Trail []protocol.TrailEntry `json:"trail,omitempty"`
	// AnswersBlob refers to answers and trail if they are too large for the offer.
	AnswersBlob *protocol.BlobRef `json:"answers_blob,omitempty"`
}

var (
	offerExtrasShape = protocol.ShapeOf(reflect.TypeFor[OfferExtras]())
	sequenceShape    = protocol.ShapeOf(reflect.TypeFor[uint64]())
)

// AppendOffer appends an encoded offer to buf and returns the result. It copies the package unchanged.
func AppendOffer(buf []byte, o *Offer) ([]byte, error) {
	w := wirejson.NewWriter()
	defer w.Free()
	own := w.Swap(buf)
	err := encodeOffer(w, o)
	return w.Swap(own), err
}

func encodeOffer(w *wirejson.Writer, o *Offer) error {
	w.Raw(`{"seq":`)
	w.Count(o.Seq)
	w.Raw(`,"hash":`)
	w.Text(o.Hash)
	w.Raw(`,"state":`)
	if err := writeState(w, o.State); err != nil {
		return protocol.WireError(err.Below("state"))
	}
	if o.Package != nil {
		w.Raw(`,"package":`)
		w.RawBytes(o.Package)
	}
	if err := w.Fields(offerExtrasShape, &o.OfferExtras, nil); err != nil {
		return protocol.WireError(err.Below("offer"))
	}
	w.Raw("}")
	return nil
}

// DecodeOffer decodes an offer, and skips unknown fields. It decodes the state into the one given,
// which must be zero. The package and all free data share memory with body. Errors are an *Error.
func DecodeOffer(body []byte, into *protocol.State) (Offer, error) {
	o := Offer{State: into}
	s := wirejson.NewLenientReader(body)
	defer s.Free()
	s.ShareData()
	if s.Peek() != jsontext.KindBeginObject {
		return Offer{}, protocol.Errorf(protocol.CodeMalformed, "offer", "is no JSON object")
	}
	hasState := false
	if s.Members(func(_ int, raw []byte) (ok bool) {
		switch string(raw) {
		case `"seq"`:
			return s.Decode(sequenceShape, &o.Seq, false)
		case `"hash"`:
			return s.Decode(textShape, &o.Hash, false)
		case `"state"`:
			hasState = true
			return s.Decode(stateShape, o.State, false)
		case `"package"`:
			o.Package, _, ok = s.Raw()
			return ok
		}
		if f := offerExtrasShape.Field(string(raw[1 : len(raw)-1])); f != nil {
			return s.DecodeField(f, &o.OfferExtras)
		}
		return s.Skip()
	}) {
		s.End()
	}
	if err := s.Broken("offer"); err != nil {
		return Offer{}, protocol.WireError(err)
	}
	if !hasState {
		return Offer{}, protocol.Errorf(protocol.CodeMissing, "offer", "has no state")
	}
	if string(o.Package) == "null" {
		o.Package = nil
	}
	return o, nil
}
