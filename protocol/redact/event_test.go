package redact

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// notSaid are the texts of events that hold them together, or that were redacted
// before: ids, codes, digests, and packages, which are redacted when they are
// prepared. Whatever else an event has is said by somebody, and is redacted.
var notSaid = []string{
	"*.By", "*.Blob.Digest", "*.Facts.Agent", "*.Facts.Causes", "*.Facts.Mode", "Rerouted.ReasonCode", "Escalated.ReasonCode",
	"Submitted.Ticket", "Submitted.Package", "Submitted.Summary.*", "Submitted.Policy.*",
	"Offered.Agent", "Offered.Reason", "Offered.Routing.*", "Offered.Policy.*",
	"Claimed.Agent", "Claimed.Holder", "Accepted.Agent", "Accepted.Holder",
	"Completed.Status", "Failed.Code",
	"Rejected.Agent", "Rejected.Holder", "Rejected.ReasonCode", "Rejected.Alternative",
	"Conditioned.Agent", "Conditioned.Holder",
	"Rerouted.From", "Rerouted.To", "Escalated.From", "Escalated.To",
	"LeaseLost.Holder", "LeaseLost.Reason", "Released.Holder", "TimedOut.Clock", "TimedOut.Agent",
	"Closed.Outcome", "Closed.Reason", "Closed.Inbox",
	"HandedOff.Ticket", "HandedOff.Type", "HandedOff.Target", "HandedOff.Digest", "HandedOff.Trace.*", "HandedOff.Package", "HandedOff.Excluded*",
	"ChildrenClosed.Children.Outcome", "Assigned.Agent", "Taken.Agent", "Taken.Holder", "RolledBack.Inbox",
	"ResultParked.Holder", "ResultParked.Status", "ReturnSent.Ticket", "ReturnSent.To", "Redriven.Ticket",
}

// TestEvents plants every secret in every text of every event.
func TestEvents(t *testing.T) {
	r := testRedactor(t)
	source := func() (*Redactor, error) { return r, nil }
	left := map[string]bool{}
	for _, kind := range protocol.EventTypes {
		fresh := func() protocol.Event { return protocol.NewEvent(kind) }
		eventTexts(reflect.TypeOf(fresh()).Elem(), strings.TrimPrefix(reflect.TypeOf(fresh()).String(), "*protocol."), nil, func(path string, index [][]int) {
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
				if pattern := notSaidBy(path); pattern != "" {
					left[pattern] = true
					if i == 0 && !found {
						t.Errorf("%s: %s was changed", kind, path)
					}
				} else if found {
					t.Fatalf("%s: what %s says is stored as it is: is it redacted in event(), or no free text?\n%s", kind, path, stored)
				}
			}
		})
	}
	for _, pattern := range notSaid {
		if !left[pattern] {
			t.Errorf("no event has %s", pattern)
		}
	}
}

func notSaidBy(path string) string {
	for _, pattern := range notSaid {
		before, after, wild := strings.Cut(pattern, "*")
		if path == pattern || wild && strings.HasPrefix(path, before) && strings.HasSuffix(path, after) {
			return pattern
		}
	}
	return ""
}

// eventTexts visits every field below a type that can hold text. index leads to it,
// through pointers and the first elements of lists.
func eventTexts(of reflect.Type, path string, index [][]int, visit func(path string, index [][]int)) {
	for field := range fieldsOf(of) {
		at, next := path+"."+field.Name, append(slices.Clone(index), field.Index)
		if field.Anonymous {
			at = path
		}
		in := field.Type
		if in == reflect.TypeFor[json.RawMessage]() {
			visit(at, next)
			continue
		}
		for in.Kind() == reflect.Pointer || in.Kind() == reflect.Slice && in.Elem().Kind() != reflect.String {
			in = in.Elem()
		}
		switch in.Kind() {
		case reflect.String, reflect.Slice, reflect.Map:
			visit(at, next)
		case reflect.Struct:
			if in != reflect.TypeFor[protocol.Time]() {
				eventTexts(in, at, next, visit)
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

// plant puts a text where index leads to.
func plant(t *testing.T, v reflect.Value, index [][]int, text string) {
	t.Helper()
	for _, i := range index {
		for v.Kind() != reflect.Struct {
			v = opened(v)
		}
		v = v.FieldByIndex(i)
	}
	quoted, err := marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice && v.Type() != reflect.TypeFor[json.RawMessage]() {
		v = opened(v)
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

// opened makes what a pointer points to, or the first element of a list.
func opened(v reflect.Value) reflect.Value {
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
		t.Error("what the caller has was changed")
	}
}

// Where nothing is said no redactor is made: that takes milliseconds.
func TestEventsAsksLate(t *testing.T) {
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
