package record_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

// recordSeq is the ledger sequence of decoded records.
const recordSeq = 99

// vectors are the inputs of the valid vectors by file name.
func vectors(t testing.TB) map[string]json.RawMessage {
	t.Helper()
	files, err := filepath.Glob("../../protocol/testdata/vectors/valid/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no vectors: %v", err)
	}
	all := map[string]json.RawMessage{}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var v struct{ Input json.RawMessage }
		if err := json.Unmarshal(body, &v); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".json")] = v.Input
	}
	return all
}

// packageOfSize is a package whose history makes it about so many bytes of JSON.
func packageOfSize(t testing.TB, size int) []byte {
	t.Helper()
	pkg := hotPackage()
	message := json.RawMessage(`{"role":"assistant","name":"coder","content":"` + strings.Repeat("a line of a conversation\\n", 8) + `"}`)
	for n := 0; n < size; n += len(message) {
		pkg.Context.ConversationHistory = append(pkg.Context.ConversationHistory, message)
	}
	body, err := protocol.EncodePackage(pkg)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// records are typical appends: small ones, and first ones with the package inline.
func records(t testing.TB) map[string]protocol.Record {
	read := func(name string) protocol.Record {
		made, err := record.Decode(vectors(t)[name], recordSeq)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	all := map[string]protocol.Record{"accepted": read("record-accepted"), "submitted 1KB": read("record-submitted"), "submitted 200KB": read("record-submitted")}
	all["submitted 1KB"].Events[0].(*protocol.Submitted).Package = packageOfSize(t, 1<<10)
	all["submitted 200KB"].Events[0].(*protocol.Submitted).Package = packageOfSize(t, 200<<10)
	return all
}

func TestRecordLimits(t *testing.T) {
	made := records(t)["accepted"]
	size := func() int { raw, _ := json.Marshal(made.State); return len(raw) }
	made.State.Message = strings.Repeat("m", protocol.StateBytesMax-size()-len(`"message":"",`))
	if size() != protocol.StateBytesMax {
		t.Fatalf("%d bytes", size())
	}
	if _, err := record.Encode(made); err != nil {
		t.Error(err)
	}
	made.State.Message += "m"
	if _, err := record.Encode(made); refusal(t, err).Code != protocol.CodeTooLarge || refusal(t, err).Field != "state" {
		t.Error(err)
	}
}

// TestRecordBodies checks that bodies are copied byte for byte, and validated.
func TestRecordBodies(t *testing.T) {
	for _, body := range []string{`{ "a" : 1.0 }`, `"<&>"`, `[]`, `{"type":"stuck","package":{}}`} {
		events := []protocol.Event{&protocol.Submitted{Package: json.RawMessage(body)}, &protocol.Completed{Result: json.RawMessage(body)}}
		raw, err := record.Encode(protocol.Record{ID: "x", Events: events})
		if err != nil {
			t.Fatal(err)
		}
		if !json.Valid(raw) {
			t.Errorf("no JSON: %s", raw)
		}
		made, err := record.Decode(raw, recordSeq)
		if err != nil || !reflect.DeepEqual(made.Events, events) {
			t.Errorf("%s: %v\n%s", body, err, raw)
		}
	}
	for body, code := range map[string]protocol.Code{`{`: protocol.CodeMalformed, `1 2`: protocol.CodeMalformed, "\"\xff\"": protocol.CodeText, ``: protocol.CodeMalformed} {
		_, err := record.EncodeEvent(&protocol.Submitted{Package: json.RawMessage(body)})
		if e := refusal(t, err); e.Code != code || e.Field != "events.package" {
			t.Errorf("%q: %+v", body, e)
		}
	}
}

// TestEventsMatchEncodingJSON checks that the codec agrees with encoding/json in both directions
// for every type of event.
func TestEventsMatchEncodingJSON(t *testing.T) {
	for name, input := range vectors(t) {
		if !strings.HasPrefix(name, "event-") {
			continue
		}
		e, err := record.DecodeEvent(input)
		if err != nil {
			t.Fatal(err)
		}
		want := reflect.New(reflect.TypeOf(e).Elem()).Interface()
		if err := json.Unmarshal(input, want); err != nil {
			t.Fatal(err)
		}
		compact(reflect.ValueOf(want))
		compact(reflect.ValueOf(e))
		if !reflect.DeepEqual(want, e) {
			t.Errorf("%s: decoded %+v, want %+v", name, e, want)
		}
		raw, err := record.EncodeEvent(e)
		if err != nil {
			t.Fatal(err)
		}
		slow, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		slow = append([]byte(`{"type":"`+string(e.EventType())+`",`), slow[1:]...)
		if !reflect.DeepEqual(meaning(t, raw), meaning(t, slow)) {
			t.Errorf("%s: %s, want %s", name, raw, slow)
		}
	}
}

// meaning decodes JSON to comparable values. Numbers stay texts.
func meaning(t testing.TB, raw []byte) (v any) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if err := decoder.Decode(&v); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	return v
}

// refusal is the *protocol.Error in an error.
func refusal(t *testing.T, err error) *protocol.Error {
	t.Helper()
	var e *protocol.Error
	if !errors.As(err, &e) {
		t.Fatalf("not a *protocol.Error: %v", err)
	}
	return e
}

// compact removes white space from the bodies of a vector.
func compact(event reflect.Value) {
	for _, name := range []string{"Package", "Result"} {
		if f := event.Elem().FieldByName(name); f.IsValid() && f.Len() > 0 {
			var b bytes.Buffer
			_ = json.Compact(&b, f.Bytes())
			f.SetBytes(b.Bytes())
		}
	}
}

func TestDecodeState(t *testing.T) {
	for name, made := range records(t) {
		body, err := record.Encode(made)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := record.Decode(body, 7)
		if err != nil {
			t.Fatal(err)
		}
		id, state, err := record.DecodeState(body, 7)
		if err != nil || id != whole.ID || !reflect.DeepEqual(state, whole.State) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, bad := range []string{``, `[]`, `{}`, `{"v":1}`, `{"v":1,"id":"x"}`, `{"v":1,"id":"x","state":[]}`, `{"v":1,"id":"x","state":{}} x`, `{"v":1,"id":"x","events":{},"state":{}}`} {
		_, err := record.Decode([]byte(bad), 7)
		refusal(t, err)
	}
}

func BenchmarkEncodeRecord(b *testing.B) {
	for name, made := range records(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := record.Encode(made); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecodeRecord(b *testing.B) {
	for name, made := range records(b) {
		body, err := record.Encode(made)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := record.Decode(body, recordSeq); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecodeState(b *testing.B) {
	for name, made := range records(b) {
		body, err := record.Encode(made)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := record.DecodeState(body, recordSeq); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestStateBytesRead checks that a state can be read up to the size with which it may be written.
func TestStateBytesRead(t *testing.T) {
	around := len(`{"message":""}`)
	for size, want := range map[int]protocol.Code{protocol.StateBytesMax: "", protocol.StateBytesMax + 1: protocol.CodeTooLarge} {
		body := `{"v":1,"id":"x","events":[],"state":{"message":"` + strings.Repeat("x", size-around) + `"}}`
		_, _, err := record.DecodeState([]byte(body), 1)
		var refused *protocol.Error
		if errors.As(err, &refused); want == "" && err != nil || want != "" && (refused == nil || refused.Code != want) {
			t.Errorf("a state of %d bytes: %v", size, err)
		}
	}
}
