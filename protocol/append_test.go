package protocol

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
)

// filler makes values of any type, with what is rare in them as often as not.
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
		if v.Type() == rawType {
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

// FuzzWritesAsGoDoes: the writer writes the bytes that Go's encoder writes, for
// every document and every event. Digests are made of them.
func FuzzWritesAsGoDoes(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		fill := filler{rand.New(rand.NewPCG(seed, 1))}
		type plain Package // without its own encoder, which is the one to be tested
		for sh, v := range map[*shape]any{packageShape: new(Package), resultShape: new(Result), stateShape: new(State), ackShape: new(Ack),
			answerShape: new(Answer), profileShape: new(Profile), progressShape: new(Progress)} {
			fill.fill(reflect.ValueOf(v).Elem())
			w := new(writer)
			if err := w.object(sh, v); err != nil {
				t.Fatal(err)
			}
			goes := v
			if pkg, ok := v.(*Package); ok {
				goes = (*plain)(pkg)
			}
			if want, err := marshal(goes); err != nil || string(w.buf) != string(want) {
				t.Fatalf("%T: %v\n%s\n%s", v, err, w.buf, want)
			}
			readsAsGoDoes(t, sh, goes, w.buf)
		}
		for _, kind := range EventTypes {
			e := newEvent[kind]()
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

// readsAsGoDoes: what was written is read as Go's decoder reads it. v is only for
// its type.
func readsAsGoDoes(t *testing.T, sh *shape, v any, raw []byte) {
	want := reflect.New(reflect.TypeOf(v).Elem())
	if err := json.Unmarshal(raw, want.Interface()); err != nil {
		return // a null where there is none, or a number that does not fit
	}
	got := reflect.New(reflect.TypeOf(v).Elem())
	into := got
	if _, ok := got.Interface().(direct); !ok && sh.direct {
		into = got.Convert(reflect.TypeFor[*Package]())
	}
	s := scanner{data: raw, lenient: true}
	s.read(sh, into.Elem())
	if err := s.broken("it"); err != nil {
		if !strings.Contains(err.Message, "UTF-8") && !strings.Contains(err.Message, "must be") {
			t.Fatalf("%T: %v\n%s", v, err, raw)
		}
		return
	}
	if !reflect.DeepEqual(got.Interface(), want.Interface()) {
		t.Fatalf("%T: %+v\n%+v\n%s", v, got, want, raw)
	}
}

// eventAsGoDoes is an event with its type in front, and a body behind it as it came.
func eventAsGoDoes(e Event) ([]byte, error) {
	var body json.RawMessage
	if inline, _ := BodyOf(e); inline != nil {
		body, *inline = *inline, nil
		defer func() { *inline = body }()
	}
	raw, err := marshal(e)
	if err != nil {
		return nil, err
	}
	raw = append([]byte(`{"type":"`+string(e.EventType())+`",`), raw[1:]...)
	if body != nil {
		raw = append(append(append(bytes.TrimSuffix(raw, []byte("}")), ',', '"'), bodyField(eventShapes[e.EventType()]).name...), '"', ':')
		raw = append(append(raw, body...), '}')
	}
	return raw, nil
}

// TestWritesText: every character, alone and among others.
func TestWritesText(t *testing.T) {
	for r := rune(0); r < 0x3000; r++ {
		for _, s := range []string{string(r), "seven.." + string(r) + "and eight after it", string([]byte{byte(r)}) + "x"} {
			w := new(writer)
			w.text(s)
			if want, _ := marshal(s); string(want) != string(w.buf) {
				t.Fatalf("%q: %s, want %s", s, w.buf, want)
			}
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	late := time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	for what, v := range map[string]any{"year": &State{UpdatedAt: late}, "raw": &State{Progress: &Progress{Details: json.RawMessage(`{`)}},
		"two values": &State{Progress: &Progress{Details: json.RawMessage(`1 2`)}}, "NaN": &State{Progress: &Progress{Percent: math.NaN()}}} {
		_, err := marshal(v)
		if refused := new(writer).object(stateShape, v); err == nil || refused == nil || refused.Code != CodeMalformed {
			t.Errorf("%s: %v, %v", what, refused, err)
		}
	}
}

// FuzzSkim: what the skimmer gets through is JSON, and ends where the
// scanner ends.
func FuzzSkim(f *testing.F) {
	for _, text := range append(oddJSON, `01`, `-`, `1.`, `1e`, `tru`, `"\x"`, "\"\n\"", `{"a"}`, `{"a":1,}`, `[1,]`, `[1 2]`, `{1:2}`, `"\u12"`) {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		k := skimmer{data: raw}
		end := k.value(0, skimDepthMax)
		whole := end >= 0 && k.space(end) == len(raw)
		if whole && !json.Valid(raw) {
			t.Fatalf("no JSON: %q", raw)
		}
		if !whole && json.Valid(raw) && json.Unmarshal(raw, new(any)) == nil && depthOf(raw) <= skimDepthMax {
			t.Fatalf("not got through: %q", raw)
		}
	})
}

func depthOf(raw []byte) int {
	depth, most, quoted := 0, 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			depth++
			most = max(most, depth)
		case c == ']' || c == '}':
			depth--
		}
	}
	return most
}
