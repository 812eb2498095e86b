package protocol_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/internal/schema"
	"github.com/agenthandoff/handoff/protocol"
)

// vectorNow is the time at which packages of the vectors are checked.
var vectorNow = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// recordSeq is the ledger sequence at which records of the vectors are read.
const recordSeq = 99

type vector struct {
	Name   string          `json:"name"`
	Kind   string          `json:"kind"`
	Input  json.RawMessage `json:"input"`
	Base64 []byte          `json:"input_base64"`
	Output json.RawMessage `json:"output"`
	Code   protocol.Code   `json:"code"`
	Field  string          `json:"field"`
}

// raw is the document of the vector.
func (v vector) raw(t testing.TB) []byte {
	t.Helper()
	if v.Base64 != nil {
		return v.Base64
	}
	if v.Input[0] != '"' {
		return v.Input
	}
	var text string
	if err := json.Unmarshal(v.Input, &text); err != nil {
		t.Fatal(err)
	}
	return []byte(text)
}

func vectors(t testing.TB, folder string) map[string]vector {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "vectors", folder, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no vectors in %s: %v", folder, err)
	}
	all := map[string]vector{}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var v vector
		decoder := json.NewDecoder(bytes.NewReader(body))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&v); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		if _, known := relays[v.Kind]; !known || !strings.HasPrefix(name, v.Kind+"-") {
			t.Fatalf("%s: kind %q", file, v.Kind)
		}
		all[name] = v
	}
	return all
}

// relays read, check and write again each kind of document.
var relays = map[string]func([]byte) ([]byte, error){
	"package": relayPackage(protocol.Package.Validate),
	"own":     relayPackage(protocol.Package.ValidateOwn),
	"result": func(raw []byte) ([]byte, error) {
		r, err := protocol.DecodeResult(raw)
		if err != nil {
			return nil, err
		}
		full := r
		full.Normalize()
		if err := full.Validate(); err != nil {
			return nil, err
		}
		return protocol.EncodeResult(r)
	},
	"ack":      relay(protocol.DecodeAck),
	"answer":   relay(protocol.DecodeAnswer),
	"profile":  relay(protocol.DecodeProfile),
	"fleet":    relay(protocol.DecodeFleet),
	"progress": relay(protocol.DecodeProgress),
	"event": func(raw []byte) ([]byte, error) {
		e, err := record.DecodeEvent(raw)
		if err != nil {
			return nil, err
		}
		return record.EncodeEvent(e)
	},
	"record": func(raw []byte) ([]byte, error) {
		r, err := record.Decode(raw, recordSeq)
		if err != nil {
			return nil, err
		}
		return record.Encode(r)
	},
}

func relayPackage(validate func(protocol.Package, time.Time) error) func([]byte) ([]byte, error) {
	return func(raw []byte) ([]byte, error) {
		pkg, err := protocol.DecodePackage(raw)
		if err != nil {
			return nil, err
		}
		full := pkg
		full.Normalize(vectorNow)
		if err := validate(full, vectorNow); err != nil {
			return nil, err
		}
		return protocol.EncodePackage(pkg)
	}
}

func relay[T interface{ Validate() error }](decode func([]byte) (T, error)) func([]byte) ([]byte, error) {
	return func(raw []byte) ([]byte, error) {
		v, err := decode(raw)
		if err != nil {
			return nil, err
		}
		if err := v.Validate(); err != nil {
			return nil, err
		}
		return json.Marshal(v)
	}
}

var schemas = map[string]func() []byte{"package": schema.Package, "own": schema.Package, "result": schema.Result,
	"ack": schema.Ack, "answer": schema.Answer, "profile": schema.Profile}

func TestValidVectors(t *testing.T) {
	all := vectors(t, "valid")
	for name, v := range all {
		t.Run(name, func(t *testing.T) {
			raw := v.raw(t)
			got, err := relays[v.Kind](raw)
			if err != nil {
				t.Fatalf("refused: %v", err)
			}
			want := v.Output
			if want == nil {
				want = raw
			}
			if v.Kind == "record" { // what refers to its own append was bound to it
				want = bytes.ReplaceAll(want, []byte("4503599627370495"), []byte("99"))
			}
			if g, w := meaning(t, got), meaning(t, want); !reflect.DeepEqual(g, w) {
				t.Errorf("written again:\n%s\nwant:\n%s", got, want)
			}
			again, err := relays[v.Kind](got)
			if err != nil || !bytes.Equal(again, got) {
				t.Errorf("a second round changes it: %v\n%s\n%s", err, got, again)
			}
			if of := schemas[v.Kind]; of != nil {
				if err := schema.CheckOutput(of(), got); err != nil {
					t.Errorf("the JSON Schema refuses it: %v", err)
				}
			}
		})
	}
	for _, e := range protocol.EventTypes {
		if _, there := all["event-"+strings.ReplaceAll(string(e), "_", "-")]; !there {
			t.Errorf("no vector for the event %s", e)
		}
	}
}

// meaning decodes JSON so that equal values mean the same: instants are
// brought to UTC, the text of numbers stays.
func meaning(t testing.TB, raw []byte) any {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var v any
	if err := decoder.Decode(&v); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	return inUTC(v)
}

func inUTC(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			v[key] = inUTC(v[key])
		}
	case []any:
		for i := range v {
			v[i] = inUTC(v[i])
		}
	case string:
		if at, err := time.Parse(time.RFC3339Nano, v); err == nil {
			return at.UTC()
		}
	}
	return v
}

func TestInvalidVectors(t *testing.T) {
	for name, v := range vectors(t, "invalid") {
		t.Run(name, func(t *testing.T) {
			out, err := relays[v.Kind](v.raw(t))
			if err == nil {
				t.Fatalf("accepted, and written as %s", out)
			}
			var e *protocol.Error
			if !errors.As(err, &e) {
				t.Fatalf("not a *protocol.Error: %v", err)
			}
			if e.Code != v.Code || e.Field != v.Field {
				t.Errorf("%s in %q (%v), want %s in %q", e.Code, e.Field, err, v.Code, v.Field)
			}
			if testing.Verbose() {
				t.Log(err)
			}
		})
	}
}

// TestSchemasRefuse: what the Go types refuse for its shape, its words or its
// numbers, the JSON Schema refuses too.
func TestSchemasRefuse(t *testing.T) {
	// What a schema cannot know: what one field says about another's value, the
	// clock, bytes of UTF-8.
	beyond := []string{"package-source-is-target", "package-source-in-agents", "package-timeouts-differ",
		"package-backoff-cap-below-base", "package-deadline-past", "package-deadline-now", "package-deadline-far",
		"package-deadline-date", "package-start-past", "package-start-far", "package-start-deadline", "package-start-date", "package-half-character", "package-twice", "package-twice-nested", "package-twice-variable",
		"package-nul-escaped", "package-nul-in-free-data", "package-too-deep", "profile-capability-twice", "profile-escalates-to-itself",
		"answer-reason-without-deny", "answer-let-others-without-deny", "package-newer-minor-wrong-type", "package-returned", "package-origin",
		"package-member-is-source", "package-from-stranger", "package-return-timeouts-differ",
		"package-tracestate-twice", "package-limits-budget",
		"package-lock-outside", "profile-contract-schema-too-large", "package-locks-group", "package-locks-homeless", "package-lock-twice", "package-next-twice", "package-routing-capability",
		"result-await-unknown-field", "result-await-member", "package-bids-group", "package-bids-weights", "package-bids-agent", "package-bids-least"} // an entry is another schema's
	used := map[string]bool{}
	for name, v := range vectors(t, "invalid") {
		of, raw := schemas[v.Kind], v.raw(t)
		if of == nil || !json.Valid(raw) || v.Code == protocol.CodeReserved { // a pattern has no word for "in capitals or not"
			continue
		}
		err := schema.CheckOutput(of(), raw)
		if slices.Contains(beyond, name) {
			used[name] = true
			continue
		}
		if err == nil {
			t.Errorf("%s (%s): the JSON Schema accepts it", name, v.Name)
		}
	}
	for _, name := range beyond {
		if !used[name] {
			t.Errorf("%s is excused and not there", name)
		}
	}
}

// TestVectorsCoverEveryField: there is no field that no valid vector uses.
func TestVectorsCoverEveryField(t *testing.T) {
	used := map[string]bool{}
	for _, v := range vectors(t, "valid") {
		kind := v.Kind
		if kind == "own" {
			kind = "package"
		}
		collect(kind, meaning(t, v.raw(t)), used)
	}
	for kind, typ := range map[string]reflect.Type{"package": reflect.TypeFor[protocol.Package](), "result": reflect.TypeFor[protocol.Result](),
		"ack": reflect.TypeFor[protocol.Ack](), "answer": reflect.TypeFor[protocol.Answer](), "profile": reflect.TypeFor[protocol.Profile](),
		"progress": reflect.TypeFor[protocol.Progress]()} {
		for _, path := range fieldPaths(kind, typ) {
			never := path == "package.members.target.agents" || // a member is one agent
				path == "package.returned.members.result.command.await" || path == "package.returned.members.result.command.for" // no end waits
			if !used[path] && !never {
				t.Errorf("no valid vector has %s", path)
			}
		}
	}
	if len(used) < 100 {
		t.Errorf("only %d paths found: %v", len(used), slices.Sorted(maps.Keys(used)))
	}
}

// collect notes the path of every field; lists add nothing to it.
func collect(path string, v any, used map[string]bool) {
	used[path] = true
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			collect(path+"."+key, value, used)
		}
	case []any:
		for _, value := range v {
			collect(path, value, used)
		}
	}
}

// fieldPaths are the paths of all fields of a type, as collect writes them.
func fieldPaths(path string, t reflect.Type) []string {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return []string{path}
	case t == reflect.TypeFor[protocol.Artifacts]():
		return fieldPaths(path, reflect.TypeFor[protocol.Artifact]())
	case t.Kind() == reflect.Pointer:
		return fieldPaths(path, t.Elem())
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		return fieldPaths(path, t.Elem())
	case t.Kind() != reflect.Struct:
		return []string{path}
	}
	var paths []string
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "-" {
			paths = append(paths, fieldPaths(path+"."+name, t.Field(i).Type)...)
		}
	}
	return paths
}
