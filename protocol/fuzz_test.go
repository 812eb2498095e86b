package protocol_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

// seed gives the fuzzer every vector of the kinds.
func seed(f *testing.F, kinds ...string) {
	for _, folder := range []string{"valid", "invalid"} {
		for _, v := range vectors(f, folder) {
			for _, kind := range kinds {
				if v.Kind == kind {
					f.Add(v.raw(f))
				}
			}
		}
	}
}

// stable checks what holds for every decoder: it never panics, its errors are
// *protocol.Error, and what it read and wrote it reads and writes the same.
func stable(t *testing.T, raw []byte, decodeAndEncode func([]byte) ([]byte, error)) {
	t.Helper()
	once, err := decodeAndEncode(raw)
	if err != nil {
		var e *protocol.Error
		if !errors.As(err, &e) {
			t.Fatalf("not a *protocol.Error: %v", err)
		}
		return
	}
	if !json.Valid(raw) && !bytes.HasPrefix(raw, []byte("\xEF\xBB\xBF")) {
		t.Fatalf("accepted what is no JSON: %q", raw)
	}
	twice, err := decodeAndEncode(once)
	if err != nil {
		t.Fatalf("does not read what it wrote: %v\n%s", err, once)
	}
	if !bytes.Equal(once, twice) {
		t.Fatalf("not stable:\n%s\n%s", once, twice)
	}
}

func FuzzDecodePackage(f *testing.F) {
	seed(f, "package", "own")
	f.Fuzz(func(t *testing.T, raw []byte) {
		stable(t, raw, func(raw []byte) ([]byte, error) {
			pkg, err := protocol.DecodePackage(raw)
			if err != nil {
				return nil, err
			}
			return protocol.EncodePackage(pkg)
		})
		// What is accepted can be completed, written and read again.
		for _, kind := range []string{"package", "own"} {
			out, err := relays[kind](raw)
			if err != nil {
				continue
			}
			if _, err := protocol.DecodePackage(out); err != nil {
				t.Fatalf("does not read what it wrote: %v\n%s", err, out)
			}
		}
	})
}

// FuzzDecodeOthers reads the same bytes as each of the smaller documents.
func FuzzDecodeOthers(f *testing.F) {
	seed(f, "result", "ack", "answer", "profile", "progress")
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, kind := range []string{"result", "ack", "answer", "profile", "progress"} {
			stable(t, raw, relays[kind])
		}
		result := protocol.ResultFromOutput(raw)
		if err := result.Validate(); err != nil {
			t.Fatalf("made a result that is none: %v", err)
		}
		if _, err := protocol.EncodeResult(result); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzDecodeEvent(f *testing.F) {
	seed(f, "event")
	f.Fuzz(func(t *testing.T, raw []byte) { stable(t, raw, relays["event"]) })
}

func FuzzDecodeRecord(f *testing.F) {
	seed(f, "record")
	f.Fuzz(func(t *testing.T, raw []byte) {
		stable(t, raw, relays["record"])
		_, whole := record.Decode(raw, recordSeq)
		_, _, part := record.DecodeState(raw, recordSeq)
		if whole == nil && part != nil {
			t.Fatalf("DecodeState refuses what DecodeRecord reads: %v", part)
		}
	})
}

// FuzzDecodeOffer reads anything as an offer. What is read can be written, and is
// then read as the same.
func FuzzDecodeOffer(f *testing.F) {
	f.Add([]byte(`{"seq":7,"hash":"ab","state":{"ticket":"6ba7b810-9dad-11d1-80b4-00c04fd430c8"},"package":{}}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var state protocol.State
		read, err := record.DecodeOffer(raw, &state)
		if err != nil {
			var refused *protocol.Error
			if !errors.As(err, &refused) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		once, err := record.AppendOffer(nil, &read)
		if err != nil {
			return // what would be too large is not written
		}
		var again protocol.State
		if _, err := record.DecodeOffer(once, &again); err != nil {
			t.Fatalf("does not read what it wrote: %v\n%s", err, once)
		}
	})
}
