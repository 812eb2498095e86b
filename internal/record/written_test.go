package record

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/wirejson"
	"github.com/agenthandoff/handoff/protocol"
)

// filler generates values of any type, rare ones as often as common ones.
type filler struct{ *rand.Rand }

var (
	oddTexts = []string{"", "a", "agent-7", "größer", "a \"quoted\" \\ line\nand\r\tmore", "\x00\x01\x1f\x7f\b\f", "<&>", "\u2028\u2029",
		"\xff half \xc3", "long enough for eight at a time, twice", "eight at a time, then \"", "日本語の文字列です", strings.Repeat("x", 64)}
	oddJSON    = []string{`null`, `true`, `-0`, `1.50e+10`, `""`, `"\u00e9\/\u0000<&>"`, `{}`, `[]`, ` { "a" : [ 1 , { "b" : "c : , d" } ] } `, `["\ud800"]`, "\"\u2028\"", "\"\xff\"", deepJSON(40)}
	oddNumbers = []float64{0, 1, -1, 0.1, 1e-6, 1e-7, 1.5e-9, 1e20, 1e21, -1e21, 1e100, math.MaxFloat64, math.SmallestNonzeroFloat64, 1.0 / 3}
	oddZones   = []*time.Location{time.UTC, time.FixedZone("", 3600), time.FixedZone("x", -9*3600-1800)}
)

func deepJSON(levels int) string {
	return strings.Repeat(`[`, levels) + strings.Repeat(`]`, levels)
}

func (f filler) fill(v reflect.Value) {
	if f.IntN(3) == 0 {
		return // zero
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(oddTexts[f.IntN(len(oddTexts))])
	case reflect.Bool:
		v.SetBool(f.IntN(2) == 0)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(f.Uint64() >> f.IntN(64)))
	case reflect.Uint64:
		v.SetUint(f.Uint64() >> f.IntN(64))
	case reflect.Float64:
		v.SetFloat(oddNumbers[f.IntN(len(oddNumbers))])
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem())
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			v.SetBytes([]byte(oddJSON[f.IntN(len(oddJSON))]))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), f.IntN(4), 4))
		for i := range v.Len() {
			f.fill(v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range f.IntN(4) {
			elem := reflect.New(v.Type().Elem()).Elem()
			f.fill(elem)
			v.SetMapIndex(reflect.ValueOf(oddTexts[f.IntN(len(oddTexts))]), elem)
		}
	case reflect.Struct:
		if at, ok := v.Addr().Interface().(*time.Time); ok {
			*at = time.Unix(f.Int64N(4e9), f.Int64N(1e9)>>f.IntN(30)).In(oddZones[f.IntN(len(oddZones))])
			return
		}
		for i := range v.NumField() {
			f.fill(v.Field(i))
		}
	}
}

// FuzzWritesAsGoDoes checks that the writer writes the bytes of encoding/json for every document
// and every event. Digests depend on them.
func FuzzWritesAsGoDoes(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		fill := filler{rand.New(rand.NewPCG(seed, 1))}
		type plain protocol.Package // without its own encoder, which is tested here
		for _, v := range []any{new(protocol.Package), new(protocol.Result), new(protocol.State), new(protocol.Ack),
			new(protocol.Answer), new(protocol.Profile), new(protocol.Progress)} {
			fill.fill(reflect.ValueOf(v).Elem())
			sh, w := protocol.ShapeOf(reflect.TypeOf(v)), new(wirejson.Writer)
			if err := w.Object(sh, v); err != nil {
				t.Fatal(err)
			}
			goes := v
			if pkg, ok := v.(*protocol.Package); ok {
				goes = (*plain)(pkg)
			}
			if want, err := protocol.Marshal(goes); err != nil || string(w.Written()) != string(want) {
				t.Fatalf("%T: %v\n%s\n%s", v, err, w.Written(), want)
			}
			readsAsGoDoes(t, sh, goes, w.Written())
		}
		for _, kind := range protocol.EventTypes {
			e := protocol.NewEvent(kind)
			fill.fill(reflect.ValueOf(e).Elem())
			want, err := eventAsGoDoes(e)
			got, failed := EncodeEvent(e)
			if err != nil || failed == nil && string(got) != string(want) {
				t.Fatalf("%s: %v\n%s\n%s", kind, err, got, want)
			}
			if failed != nil && !strings.Contains(failed.Error(), "NUL") && !strings.Contains(failed.Error(), "UTF-8") {
				t.Fatalf("%s: %v", kind, failed)
			}
		}
	})
}

// readsAsGoDoes checks that the reader agrees with encoding/json. Only the type of v matters.
func readsAsGoDoes(t *testing.T, sh *wirejson.Shape, v any, raw []byte) {
	want := reflect.New(reflect.TypeOf(v).Elem())
	if err := json.Unmarshal(raw, want.Interface()); err != nil {
		return // a null or a number that the type does not allow
	}
	got := reflect.New(reflect.TypeOf(v).Elem())
	into := got
	if got.Type().ConvertibleTo(reflect.TypeFor[*protocol.Package]()) {
		into = got.Convert(reflect.TypeFor[*protocol.Package]())
	}
	s := wirejson.NewLenientReader(raw)
	defer s.Free()
	s.Read(sh, into.Interface())
	if err := s.Broken("it"); err != nil {
		if !strings.Contains(err.Message, "UTF-8") && !strings.Contains(err.Message, "must be") {
			t.Fatalf("%T: %v\n%s", v, err, raw)
		}
		return
	}
	if !reflect.DeepEqual(got.Interface(), want.Interface()) {
		t.Fatalf("%T: %+v\n%+v\n%s", v, got, want, raw)
	}
}

// eventAsGoDoes encodes an event by encoding/json, with its type first and its body last.
func eventAsGoDoes(e protocol.Event) ([]byte, error) {
	var body json.RawMessage
	if inline, _ := protocol.BodyOf(e); inline != nil {
		body, *inline = *inline, nil
		defer func() { *inline = body }()
	}
	raw, err := protocol.Marshal(e)
	if err != nil {
		return nil, err
	}
	raw = append([]byte(`{"type":"`+string(e.EventType())+`",`), raw[1:]...)
	if body != nil {
		raw = append(append(append(bytes.TrimSuffix(raw, []byte("}")), ',', '"'), bodyField(eventShapes[e.EventType()]).Name...), '"', ':')
		raw = append(append(raw, body...), '}')
	}
	return raw, nil
}

func TestWriteRefuses(t *testing.T) {
	late := time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	for what, v := range map[string]any{"year": &protocol.State{UpdatedAt: late}, "raw": &protocol.State{Progress: &protocol.Progress{Details: json.RawMessage(`{`)}},
		"two values": &protocol.State{Progress: &protocol.Progress{Details: json.RawMessage(`1 2`)}}, "NaN": &protocol.State{Progress: &protocol.Progress{Percent: math.NaN()}}} {
		_, err := protocol.Marshal(v)
		if refused := new(wirejson.Writer).Object(stateShape, v); err == nil || refused == nil || refused.Code != wirejson.Malformed {
			t.Errorf("%s: %v, %v", what, refused, err)
		}
	}
}
