package record_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

// plainOffer is an offer as encoding/json encodes it. Both encodings must agree.
type plainOffer struct {
	Seq     uint64          `json:"seq"`
	Hash    string          `json:"hash"`
	State   protocol.State  `json:"state"`
	Package json.RawMessage `json:"package,omitempty"`
	record.OfferExtras
}

func offers(t *testing.T) map[string]*record.Offer {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	pkg, err := protocol.EncodePackage(hotPackage())
	if err != nil {
		t.Fatal(err)
	}
	state := func() *protocol.State {
		return &protocol.State{Ticket: protocol.NewTicket(), Phase: protocol.Pending, Agent: "ann", Offer: 81, PackageSeq: 81,
			Policy: protocol.DefaultPolicy(), SubmittedAt: at, UpdatedAt: at, Tried: []string{"ann"}, Message: "<b> & \"c\""}
	}
	small := &record.Offer{Seq: 81, Hash: "ab12", State: state(), Package: pkg}
	large := &record.Offer{Seq: 1 << 52, State: state()}
	large.Blob = &protocol.BlobRef{Digest: "sha256:00", Size: 1 << 20}
	large.AnswersBlob = &protocol.BlobRef{Digest: "sha256:01", Size: 1 << 18}
	answered := &record.Offer{Seq: 82, Hash: "ab12", State: state(), Package: pkg}
	answered.Answers = []protocol.Answer{{By: "human", Text: "yes, <do> it", Variables: map[string]json.RawMessage{"n": json.RawMessage(`1.50`)}}}
	answered.Trail = []protocol.TrailEntry{{At: at}}
	return map[string]*record.Offer{"with a package": small, "in blobs": large, "with answers": answered}
}

func TestOffer(t *testing.T) {
	for name, offer := range offers(t) {
		t.Run(name, func(t *testing.T) {
			body, err := record.AppendOffer(nil, offer)
			if err != nil {
				t.Fatal(err)
			}
			var plain plainOffer
			if err := json.Unmarshal(body, &plain); err != nil {
				t.Fatalf("%v in %s", err, body)
			}
			want := plainOffer{offer.Seq, offer.Hash, *offer.State, offer.Package, offer.OfferExtras}
			if !reflect.DeepEqual(plain, want) {
				t.Errorf("encoding/json reads\n%+v, want\n%+v", plain, want)
			}
			before, err := json.Marshal(want) // the encoding of an earlier version
			if err != nil {
				t.Fatal(err)
			}
			for _, raw := range [][]byte{body, before} {
				got, err := record.DecodeOffer(raw, new(protocol.State))
				if err != nil {
					t.Fatal(err)
				}
				if again := (plainOffer{got.Seq, got.Hash, *got.State, compacted(t, got.Package), got.OfferExtras}); !reflect.DeepEqual(again, plainOffer{want.Seq, want.Hash, want.State, compacted(t, want.Package), want.OfferExtras}) {
					t.Errorf("read\n%+v, want\n%+v", again, want)
				}
			}
		})
	}
}

// compacted undoes the escapes for HTML.
func compacted(t *testing.T, raw json.RawMessage) json.RawMessage {
	if raw == nil {
		return nil
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestOfferOfANewerVersion(t *testing.T) {
	got, err := record.DecodeOffer([]byte(` {"later":[1,{"seq":9}],"seq":7,"state":{"ticket":"t","soon":true},"package":null,"answers":[],"hash":"h"} `), new(protocol.State))
	if err != nil {
		t.Fatal(err)
	}
	if got.Seq != 7 || got.Hash != "h" || got.State.Ticket != "t" || got.Package != nil {
		t.Errorf("%+v", got)
	}
	for _, broken := range []string{"", "[]", "null", "{}", `{"seq":7}`, `{"seq":"7","state":{}}`, `{"state":[]}`, `{"state":{}`, `{"state":{}} x`, `{"state":{},"package":{]}`, `{"state":{},"answers":1}`} {
		if _, err := record.DecodeOffer([]byte(broken), new(protocol.State)); err == nil {
			t.Errorf("%s was read", broken)
		}
	}
}

func BenchmarkOffer(b *testing.B) {
	pkg := packageOfSize(b, 0)
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	state := &protocol.State{Ticket: protocol.NewTicket(), Phase: protocol.Pending, Agent: "ann", Policy: protocol.DefaultPolicy(), SubmittedAt: at, UpdatedAt: at}
	offer := &record.Offer{Seq: 81, Hash: "ab12", State: state, Package: pkg}
	body, err := record.AppendOffer(nil, offer)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := record.AppendOffer(nil, offer); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := record.DecodeOffer(body, new(protocol.State)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode/plain", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var p plainOffer
			if err := json.Unmarshal(body, &p); err != nil {
				b.Fatal(err)
			}
		}
	})
}
