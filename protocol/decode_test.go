package protocol_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

func refusal(t testing.TB, err error) *protocol.Error {
	t.Helper()
	var e *protocol.Error
	if !errors.As(err, &e) {
		t.Fatalf("want a *protocol.Error, have %v", err)
	}
	return e
}

// TestPlace: where it says the mistake is.
func TestPlace(t *testing.T) {
	for _, c := range []struct{ body, place string }{
		{"", "line 1, column 1"},
		{"{", "line 1, column 2"},
		{"{\n\"source\": nil}", "line 2, column 12"},
		{"{\n  \"source\": \"a\",\n  \"reason\": \"é\" x\n}", "line 3, column 17"},
		{"{\r\n\"source\" 1}", "line 2, column 10"},
		{"\xEF\xBB\xBF{]", "line 1, column 2"},
		{`{"source":"` + strings.Repeat("ü", 10) + `\q"}`, "line 1, column 22"},
		{"{}\n\n{}", "line 3, column 1"},
		{"{\n\"reason\":\"\xff\"}", "line 2, column 11"},
		{"{\n\"sauce\":\"a\"}", "line 2, column 1"},
		{"{\n\"reason\":7}", "line 2, column 10"},
	} {
		_, err := protocol.DecodePackage([]byte(c.body))
		if e := refusal(t, err); !strings.Contains(e.Message, c.place) {
			t.Errorf("%q: %s; want %s", c.body, e.Message, c.place)
		}
	}
}

// TestScanAgreesWithGo: what our scanner takes for JSON is what Go takes for it.
func TestScanAgreesWithGo(t *testing.T) {
	values := []string{`0`, `-0`, `1.5e+10`, `1E5`, `01`, `1.`, `.5`, `-`, `+1`, `1e`, `1e+`, `0x1`, `Infinity`, `tru`, `true`, `nul`, `null`,
		`"\ud83d\ude00"`, `"\ud83d"`, `"\u12"`, `"\u12g4"`, `"\/\b\f\n\r\t"`, `"\a"`, "\"\t\"", `"`, `"\`, `"\"`, `'a'`, `[`, `]`, `[1,]`, `[,1]`, `[1 2]`, `[[]]`,
		`{`, `{}`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{a:1}`, `{"a":1 "b":2}`, `{"a":{"b":[1,{"c":null}]}}`, `{"a":1,"a":2}`, "\u00a0" + `1`, " \r\n\t1 ", `1 2`, `[1}`, `{"a":1]`, `//`, "\ufeff1"}
	for _, value := range values {
		body := fmt.Sprintf(`{"context":{"metadata":{"x":%s}}}`, value)
		_, err := protocol.DecodePackage([]byte(body))
		if (err == nil) != json.Valid([]byte(body)) {
			t.Errorf("%s: %v, but json.Valid says %v", value, err, json.Valid([]byte(body)))
		}
	}
}

func TestDecodeLimits(t *testing.T) {
	nested := func(levels int) string { // of which the package, its context and its metadata are three
		return `{"context":{"metadata":{"x":` + strings.Repeat("[", levels-3) + strings.Repeat("]", levels-3) + `}}}`
	}
	if _, err := protocol.DecodePackage([]byte(nested(protocol.DepthMax))); err != nil {
		t.Errorf("%d levels: %v", protocol.DepthMax, err)
	}
	_, err := protocol.DecodePackage([]byte(nested(protocol.DepthMax + 1)))
	if e := refusal(t, err); e.Code != protocol.CodeTooLarge {
		t.Errorf("one level too many: %v", err)
	}
	padded := func(size int) []byte { return append([]byte(`{}`), bytes.Repeat([]byte{' '}, size-2)...) }
	for _, c := range []struct {
		what   string
		most   int
		decode func([]byte) error
	}{
		{"package", protocol.PackageBytesMax, func(b []byte) error { _, err := protocol.DecodePackage(b); return err }},
		{"result", protocol.ResultBytesMax, func(b []byte) error { _, err := protocol.DecodeResult(b); return err }},
		{"ack", protocol.AckBytesMax, func(b []byte) error { _, err := protocol.DecodeAck(b); return err }},
		{"answer", protocol.AnswerBytesMax, func(b []byte) error { _, err := protocol.DecodeAnswer(b); return err }},
		{"profile", protocol.ProfileBytesMax, func(b []byte) error { _, err := protocol.DecodeProfile(b); return err }},
		{"fleet", protocol.FleetBytesMax, func(b []byte) error { _, err := protocol.DecodeFleet(b); return err }},
		{"progress", protocol.ProgressBytesMax, func(b []byte) error { _, err := protocol.DecodeProgress(b); return err }},
	} {
		if c.what != "result" { // as large as a package; once is enough
			if err := c.decode(padded(c.most)); err != nil {
				t.Errorf("%s of %d bytes: %v", c.what, c.most, err)
			}
		}
		if e := refusal(t, c.decode(padded(c.most+1))); e.Code != protocol.CodeTooLarge || e.Field != c.what {
			t.Errorf("%s of one byte too many: %v", c.what, e)
		}
	}
}

// TestNewerMinor: what a newer minor version adds is kept at the top and
// ignored below, wherever it stands and whatever commas are around it.
func TestNewerMinor(t *testing.T) {
	const mine = `"source":"a","target":{"agent":"b"},"reason":"r","task":{"description":"d"}`
	for _, c := range []struct{ body, want string }{
		{`{"version":"1.1","new":1,` + mine + `}`, `{"version":"1.1",` + mine + `,"new":1}`},
		{`{` + mine + `,"version":"1.1","new":{"source":"x"} }`, `{"version":"1.1",` + mine + `,"new":{"source":"x"}}`},
		{`{"b":1,"a":2 , ` + mine + `,"c":[3],"version":"1.65535"}`, `{"version":"1.65535",` + mine + `,"a":2,"b":1,"c":[3]}`},
		{`{` + mine + `,"version":"1.1","context":{"x":1}}`, `{"version":"1.1",` + mine + `}`},
		{`{` + mine + `,"version":"1.1","context":{"x":1,"y":2,"phase":"p","z":3}}`, `{"version":"1.1",` + mine + `,"context":{"phase":"p"}}`},
		{`{` + mine + `,"version":"1.1","context":{"x":1,"Phase":"q","phase":"p" , "z":3 }}`, `{"version":"1.1",` + mine + `,"context":{"phase":"p"}}`},
		{`{` + mine + `,"version":"1.1","Version":"2.0"}`, `{"version":"1.1",` + mine + `,"Version":"2.0"}`},
		{`{` + mine + `,"version":"1.1","required_capabilities":[{"id":"c","x":1}]}`, `{"version":"1.1",` + mine + `,"required_capabilities":[{"id":"c"}]}`},
		{`{` + mine + `,"version":"1.1","":null,"q\"":"\u0041"}`, `{"version":"1.1",` + mine + `,"":null,"q\"":"\u0041"}`},
	} {
		pkg, err := protocol.DecodePackage([]byte(c.body))
		if err != nil {
			t.Errorf("%s: %v", c.body, err)
			continue
		}
		got, err := protocol.EncodePackage(pkg)
		if err != nil || string(got) != c.want {
			t.Errorf("%s:\n got %s (%v)\nwant %s", c.body, got, err, c.want)
		}
		inside, err := json.Marshal(map[string]any{"pkg": pkg})
		if err != nil || !json.Valid(inside) {
			t.Errorf("inside something else: %s, %v", inside, err)
		}
	}
}

// TestDidYouMean: names from elsewhere and slips of the finger lead to ours.
func TestDidYouMean(t *testing.T) {
	for body, want := range map[string]string{
		`{"sorce":1}`:                                "source?",
		`{"conversationId":1}`:                       "context.conversation_id?",
		`{"session_id":1}`:                           "context.conversation_id?",
		`{"toAgentId":1}`:                            "target.agent?",
		`{"conversation_history":[]}`:                "context.conversation_history?",
		`{"description":"d"}`:                        "task.description?",
		`{"context":{"originalRequest":"x"}}`:        "original_request?",
		`{"expectations":{"timeoutMs":1}}`:           "timeout_ms?",
		`{"context":{"session_id":"x"}}`:             "free data",
		`{"context":{"relevant_files":[{"p":"x"}]}}`: "free data",
	} {
		_, err := protocol.DecodePackage([]byte(body))
		if e := refusal(t, err); e.Code != protocol.CodeUnknownField || !strings.Contains(e.Message, want) {
			t.Errorf("%s: %v; want %s", body, err, want)
		}
	}
}

// TestEarliestMistakeWins: of several, the one that stands first is named.
func TestEarliestMistakeWins(t *testing.T) {
	for body, want := range map[string]string{
		`{"reason":1,"zzz":1}`:                     "reason",
		`{"zzz":1,"reason":1}`:                     "zzz",
		`{"context":{"zzz":1},"reason":1,"yyy":1}`: "context.zzz",
		`{"zzz":1,"reason":`:                       "reason", // what does not parse explains itself first
	} {
		_, err := protocol.DecodePackage([]byte(body))
		if e := refusal(t, err); e.Field != want {
			t.Errorf("%s: %v; want %s", body, err, want)
		}
	}
}

func TestErrorsNameTheParties(t *testing.T) {
	_, err := protocol.DecodePackage([]byte(`{"zzz":1,"source":"a","target":{"capability":"b"}}`))
	if e := refusal(t, err); e.Source != "a" || e.Target != "capability b" {
		t.Errorf("%+v", e)
	}
	if !errors.Is(err, &protocol.Error{Code: protocol.CodeUnknownField, Field: "zzz"}) || errors.Is(err, &protocol.Error{Code: protocol.CodeMissing}) {
		t.Errorf("errors.Is: %v", err)
	}
	long := strings.Repeat("é", 100)
	_, err = protocol.DecodePackage([]byte(`{"zzz":1,"source":"` + long + `"}`))
	if e := refusal(t, err); len(e.Source) > 90 || !json.Valid([]byte(`"`+e.Source+`"`)) {
		t.Errorf("a long source is cut between characters: %q", e.Source)
	}
}

func TestPackageInsideSomethingElse(t *testing.T) {
	var outer struct{ Package protocol.Package }
	if err := json.Unmarshal([]byte(`{"Package":{"source":"a","version":"1.2","x":[1]}}`), &outer); err != nil {
		t.Fatal(err)
	}
	if string(outer.Package.Extra["x"]) != "[1]" {
		t.Errorf("%+v", outer.Package)
	}
	err := json.Unmarshal([]byte(`{"Package":{"sorce":"a"}}`), &outer)
	if e := refusal(t, err); e.Field != "sorce" {
		t.Error(err)
	}
}

// TestDecodeAsGoDoes: decoding in one pass gives what encoding/json gives.
func TestDecodeAsGoDoes(t *testing.T) {
	type plain protocol.Package // without DecodePackage behind it
	for name, v := range vectors(t, "valid") {
		raw := v.raw(t)
		var got, want any
		var err error
		switch v.Kind {
		case "package":
			var pkg protocol.Package
			pkg, err = protocol.DecodePackage(raw)
			pkg.Extra = nil
			got, want = plain(pkg), new(plain)
		case "result":
			got, err = protocol.DecodeResult(raw)
			want = new(protocol.Result)
		case "ack":
			got, err = protocol.DecodeAck(raw)
			want = new(protocol.Ack)
		case "answer":
			got, err = protocol.DecodeAnswer(raw)
			want = new(protocol.Answer)
		case "profile":
			got, err = protocol.DecodeProfile(raw)
			want = new(protocol.Profile)
		case "fleet":
			got, err = protocol.DecodeFleet(raw)
			want = new(protocol.Fleet)
		case "progress":
			got, err = protocol.DecodeProgress(raw)
			want = new(protocol.Progress)
		case "record":
			_, got, err = record.DecodeState(raw, 1)
			text := new(struct{ State protocol.State })
			if err := json.Unmarshal(raw, text); err != nil {
				t.Fatal(err)
			}
			text.State.Bind(1)
			want = &text.State
		default: // events: TestEventsAsGoWritesThem
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if v.Kind != "record" {
			if err := json.Unmarshal(raw, want); err != nil {
				t.Fatal(err)
			}
		}
		if name == "package-empty-lists" { // which DecodePackage makes absent
			continue
		}
		if want := reflect.ValueOf(want).Elem().Interface(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
		}
	}
}

// TestLedgerIsReadLeniently: what stands in the ledger is read, even if a
// newer or a foreign program wrote it.
func TestLedgerIsReadLeniently(t *testing.T) {
	const text = `{"v":1,"id":"x","new":[1],"events":[{"new":{"a":1},"at":"2026-06-01T12:00:00Z","type":"stuck","reason":"half \ud83d nul \u0000 bytes ` + "\xff" + `"}],` +
		`"state":{"ticket":"t","novelty":true,"message":"twice","message":"` + "\xff" + `"}}`
	r, err := record.Decode([]byte(text), 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Events[0].(*protocol.Stuck).Reason; got != "half \ufffd nul \x00 bytes \ufffd" || r.State.Message != "\ufffd" {
		t.Errorf("%q, %q", got, r.State.Message)
	}
	deep := json.RawMessage(strings.Repeat("[", protocol.DepthMax) + strings.Repeat("]", protocol.DepthMax))
	raw, err := record.Encode(protocol.Record{ID: "x", Events: []protocol.Event{&protocol.Submitted{Package: deep}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := record.Decode(raw, 1); err != nil {
		t.Errorf("a package as deep as it may be: %v", err)
	}
}

// TestNewerMinorVersion: what a newer version has put into a state goes on into the
// next one, by the ledger and by an offer, and its events are there without a meaning.
func TestNewerMinorVersion(t *testing.T) {
	const text = `{"v":1,"id":"x","events":[{"type":"praised","at":"2026-06-01T12:00:00Z","by":"lead","how":{"much":[1,2]}},{"type":"stuck","at":"2026-06-01T12:00:00Z","reason":"r"}],` +
		`"state":{"mood":"good","ticket":"t","phase":"working","plan":{"a":[null,"}"]},"closed":false,"stars":5}}`
	r, err := record.Decode([]byte(text), 1)
	if err != nil {
		t.Fatal(err)
	}
	praised, ok := r.Events[0].(*protocol.UnknownEvent)
	if !ok || praised.EventType() != "praised" || praised.By != "lead" || praised.When().Year() != 2026 || len(r.Events) != 2 {
		t.Errorf("events %+v", r.Events)
	}
	const carried = `,"mood":"good","plan":{"a":[null,"}"]},"stars":5}`
	again, err := record.Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(again), `{"type":"praised","at":"2026-06-01T12:00:00Z","by":"lead","how":{"much":[1,2]}}`) || !strings.HasSuffix(string(again), carried+"}") {
		t.Errorf("written again: %s", again)
	}
	offer, err := record.AppendOffer(nil, &record.Offer{Seq: 1, Hash: "h", State: &r.State})
	if err != nil {
		t.Fatal(err)
	}
	var state protocol.State
	if _, err := record.DecodeOffer(offer, &state); err != nil || !strings.HasSuffix(carried, string(state.Extra)+"}") {
		t.Errorf("by the offer: %s, %v", state.Extra, err)
	}
	if _, glanced, _ := record.DecodeState(again, 2); string(glanced.Extra) != string(state.Extra) {
		t.Errorf("read again: %s", glanced.Extra)
	}
	glance, err := record.NewProjection([]string{"phase"}).Decode(again, 2)
	if err != nil || glance.State.Extra != nil {
		t.Errorf("a glance has %s, %v", glance.State.Extra, err)
	}
	r.State.Extra = json.RawMessage(`,"x":"` + strings.Repeat("y", protocol.StateBytesMax) + `"`)
	if _, err := record.Encode(r); !errors.Is(err, &protocol.Error{Code: protocol.CodeTooLarge}) {
		t.Errorf("more than a state may be: %v", err)
	}
}

// What other packages read is read as strictly: fields known, once, in their own
// case, and text; and around free data as deep as it may be there is room for more.
func TestDecodeStrict(t *testing.T) {
	type request struct {
		Name string          `json:"name"`
		N    int             `json:"n,omitempty"`
		Body json.RawMessage `json:"body,omitempty"`
	}
	deep := strings.Repeat("[", protocol.DepthMax) + strings.Repeat("]", protocol.DepthMax)
	for body, code := range map[string]protocol.Code{
		`{"name":"x","n":1,"body":{"a":[1]}}`: "", `{}`: "", `{"body":` + deep + `}`: "",
		`{"body":` + strings.Repeat("[", protocol.DepthMax+9) + strings.Repeat("]", protocol.DepthMax+9) + `}`: protocol.CodeTooLarge,
		``: protocol.CodeMalformed, `{"name":"x"} `: "", `{"name":"x"}x`: protocol.CodeMalformed, `{"name":"x","name":"y"}`: protocol.CodeMalformed,
		`{"Name":"x"}`: protocol.CodeUnknownField, `{"more":1}`: protocol.CodeUnknownField, `{"n":"1"}`: protocol.CodeInvalid, `{"n":1.5}`: protocol.CodeInvalid, `[]`: protocol.CodeInvalid,
		"{\"name\":\"\xff\"}": protocol.CodeText, "{\"name\":\"\x00\"}": protocol.CodeText, `{"name":"` + strings.Repeat("x", 2000) + `"}`: protocol.CodeTooLarge,
	} {
		var r request
		err := protocol.DecodeStrict([]byte(body), "request", 1000, &r)
		var refused *protocol.Error
		if code == "" && err != nil || code != "" && (!errors.As(err, &refused) || refused.Code != code) {
			t.Errorf("%.60q: %v, want %q", body, err, code)
		}
	}
}

// TestDepth: too many levels are called that, however many there are and whether or
// not they end.
func TestDepth(t *testing.T) {
	for _, levels := range []int{protocol.DepthMax, 9_000, 20_000} {
		for _, end := range []string{strings.Repeat("]", levels) + "}}}", ""} {
			_, err := protocol.DecodePackage([]byte(`{"context":{"variables":{"x":` + strings.Repeat("[", levels) + end))
			var refused *protocol.Error
			if !errors.As(err, &refused) || refused.Code != protocol.CodeTooLarge {
				t.Errorf("%d levels: %v", levels, err)
			}
		}
	}
	_, err := protocol.DecodePackage([]byte(`{"context":{"variables":{"x":"\u0000`))
	var refused *protocol.Error
	if !errors.As(err, &refused) || refused.Code != protocol.CodeText {
		t.Errorf("a NUL, and no end: %v", err)
	}
}
