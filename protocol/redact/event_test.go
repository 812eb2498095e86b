package redact

import (
	"cmp"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// TestEvents puts every secret into every text of every event. A field that can hold text has a
// tag redact that names its mode, or "-" for structure (ids, codes, digests) and for packages,
// which are redacted when they are prepared.
func TestEvents(t *testing.T) {
	r := testRedactor(t)
	source := func() (*Redactor, error) { return r, nil }
	for _, kind := range protocol.EventTypes {
		fresh := func() protocol.Event { return protocol.NewEvent(kind) }
		eventFields(reflect.TypeOf(fresh()).Elem(), strings.TrimPrefix(reflect.TypeOf(fresh()).String(), "*protocol."), "", nil, func(path, how string, index [][]int) {
			if how == "" {
				t.Errorf("%s has no tag redact: is it free text, or exempt?", path)
				return
			}
			for i, form := range secrets {
				form = fill(form)
				_, inside, _ := strings.Cut(form, "«")
				secret, _, _ := strings.Cut(inside, "»")
				e := fresh()
				plant(t, reflect.ValueOf(e).Elem(), index, strings.NewReplacer("«", "", "»", "").Replace(form))
				if _, err := Events(t.Context(), []protocol.Event{e}, source); err != nil {
					t.Fatal(err)
				}
				stored, err := json.Marshal(e)
				if err != nil {
					t.Fatal(err)
				}
				quoted, _ := marshal(secret)
				found := strings.Contains(string(stored), string(quoted[1:len(quoted)-1])) && !strings.Contains(string(stored), Marker)
				switch {
				case how == "-" && i == 0 && !found:
					t.Errorf("%s: %s is exempt, and was changed", kind, path)
				case how != "-" && found:
					t.Fatalf("%s: the secret in %s is stored, and its tag is redact:%q\n%s", kind, path, how, stored)
				}
			}
		})
	}
}

// eventFields visits every field below a type that can hold text, with its tag redact
// or that of a struct around it. index leads to it, through pointers and the first
// elements of lists.
func eventFields(of reflect.Type, path, within string, index [][]int, visit func(path, how string, index [][]int)) {
	for field := range fieldsOf(of) {
		at, next := path+"."+field.Name, append(slices.Clone(index), field.Index)
		if field.Anonymous {
			at = path
		}
		how := cmp.Or(within, field.Tag.Get("redact"))
		in := field.Type
		if in == reflect.TypeFor[json.RawMessage]() {
			visit(at, how, next)
			continue
		}
		for in.Kind() == reflect.Pointer || in.Kind() == reflect.Slice && in.Elem().Kind() != reflect.String {
			in = in.Elem()
		}
		switch in.Kind() {
		case reflect.String, reflect.Slice, reflect.Map:
			visit(at, how, next)
		case reflect.Struct:
			if in != reflect.TypeFor[protocol.Time]() {
				eventFields(in, at, how, next, visit)
			}
		}
	}
}

func fieldsOf(of reflect.Type) func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range of.NumField() {
			if !yield(of.Field(i)) {
				return
			}
		}
	}
}

// plant sets the field at index to a text.
func plant(t *testing.T, v reflect.Value, index [][]int, text string) {
	t.Helper()
	for _, i := range index {
		for v.Kind() != reflect.Struct {
			v = initialised(v)
		}
		v = v.FieldByIndex(i)
	}
	quoted, err := marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice && v.Type() != reflect.TypeFor[json.RawMessage]() {
		v = initialised(v)
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]json.RawMessage{"x": quoted}))
	default: // free data: of a result the body
		v.SetBytes([]byte(`{"body":` + string(quoted) + `}`))
	}
}

// initialised is the value behind a pointer, or the first element of a list, created if need be.
func initialised(v reflect.Value) reflect.Value {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		return v.Elem()
	}
	if v.Len() == 0 {
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	}
	return v.Index(0)
}

func TestEventsByName(t *testing.T) {
	r := testRedactor(t)
	source := func() (*Redactor, error) { return r, nil }
	given := map[string]json.RawMessage{"password": json.RawMessage(`"any words"`), "note": json.RawMessage(`{"password":"any words"}`)}
	needs := []string{"password=hunter2"}
	answered, asked := &protocol.Answered{Answer: protocol.Answer{Variables: given}}, &protocol.Conditioned{NeedsContext: needs}
	progressed := &protocol.Progressed{Progress: protocol.Progress{Details: json.RawMessage(`{"api_key":"any words","n":1}`)}}
	if _, err := Events(t.Context(), []protocol.Event{answered, asked, progressed}, source); err != nil {
		t.Fatal(err)
	}
	if got := string(answered.Answer.Variables["password"]) + string(answered.Answer.Variables["note"]) + asked.NeedsContext[0] + string(progressed.Progress.Details); got !=
		`"[redacted]"{"password":"[redacted]"}password=[redacted]{"api_key":"[redacted]","n":1}` {
		t.Errorf("got %s", got)
	}
	if string(given["password"]) != `"any words"` || needs[0] != "password=hunter2" {
		t.Error("the caller's values were changed")
	}
}

// TestEventsLoadsTheRedactorLazily checks that events without texts build no redactor, which takes
// milliseconds.
func TestEventsLoadsTheRedactorLazily(t *testing.T) {
	wrong := errors.New("asked")
	source := func() (*Redactor, error) { return nil, wrong }
	if _, err := Events(t.Context(), []protocol.Event{&protocol.Submitted{Package: json.RawMessage(`{}`)}, &protocol.Offered{Reason: "submitted"}, &protocol.Accepted{}, &protocol.Started{}, &protocol.Released{}, &protocol.Conditioned{}}, source); err != nil {
		t.Error(err)
	}
	if _, err := Events(t.Context(), []protocol.Event{&protocol.Failed{Message: "x"}}, source); !errors.Is(err, wrong) {
		t.Errorf("%v", err)
	}
	none := func() (*Redactor, error) { return new(Redactor), nil }
	failed := &protocol.Failed{Message: "password=hunter2"}
	if _, err := Events(t.Context(), []protocol.Event{failed}, none); err != nil || failed.Message != "password=hunter2" {
		t.Errorf("%v, %s", err, failed.Message)
	}
}
