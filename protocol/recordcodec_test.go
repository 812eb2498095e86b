package protocol_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/record"
)

// records are appends as they are made: small ones, and first ones with the
// package inside.
func records(t testing.TB) map[string]protocol.Record {
	read := func(name string) protocol.Record {
		made, err := record.Decode(vectors(t, "valid")[name].raw(t), recordSeq)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	all := map[string]protocol.Record{"accepted": read("record-accepted"), "submitted 1KB": read("record-submitted"), "submitted 200KB": read("record-submitted")}
	all["submitted 1KB"].Events[0].(*protocol.Submitted).Package = sized(t, 1<<10)
	all["submitted 200KB"].Events[0].(*protocol.Submitted).Package = sized(t, 200<<10)
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

// TestRecordBodies: bodies are carried byte for byte, and checked.
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

// TestEventsAsGoWritesThem: the shortcuts of the codec change nothing in
// meaning, in either direction and for every type of event.
func TestEventsAsGoWritesThem(t *testing.T) {
	for name, v := range vectors(t, "valid") {
		if v.Kind != "event" {
			continue
		}
		e, err := record.DecodeEvent(v.raw(t))
		if err != nil {
			t.Fatal(err)
		}
		want := reflect.New(reflect.TypeOf(e).Elem()).Interface()
		if err := json.Unmarshal(v.raw(t), want); err != nil {
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

// compact removes the white space of the vector's file from bodies.
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

// TestStateBytesRead: a state is read up to the size that it may be written with.
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
