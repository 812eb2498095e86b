package redact

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"

	"github.com/agenthandoff/handoff/protocol"
)

// Events replaces the secrets in the texts and results of events by Marker. It reports whether
// there were any. Codes, ids and digests stay, and so do packages: those are redacted when they
// are prepared, as their submitter asks for. redactor is called at the first text; its error, and
// that of ctx, is returned.
func Events(ctx Canceler, events []protocol.Event, redactor func() (*Redactor, error)) (changed bool, err error) {
	r := eventRedactor{ctx: ctx, source: redactor}
	for _, e := range events {
		r.redactEvent(e)
	}
	return r.changed, r.err
}

// eventRedactor redacts events with a redactor that is built at the first text.
type eventRedactor struct {
	ctx      Canceler
	source   func() (*Redactor, error)
	redactor *Redactor
	changed  bool
	err      error
}

// redactEvent redacts the fields whose tags ask for it.
func (r *eventRedactor) redactEvent(e protocol.Event) {
	fields := reflect.ValueOf(e).Elem()
	for _, text := range textFieldsByEvent[reflect.TypeOf(e)] {
		field := fields.FieldByIndex(text.index)
		if field.IsZero() || !r.enabled() {
			continue
		}
		switch field := field.Addr().Interface().(type) {
		case *string:
			*field = r.text(*field)
		case *[]string:
			redacted := slices.Clone(*field)
			for i, text := range redacted {
				redacted[i] = r.text(text)
			}
			*field = redacted
		case *json.RawMessage:
			*field = r.json(*field, text.plan, false)
		case *map[string]json.RawMessage:
			redacted := maps.Clone(*field)
			for name, raw := range redacted {
				redacted[name] = r.json(raw, freePlan, r.redactor.isSecretName([]byte(name)))
			}
			*field = redacted
		}
	}
}

// textField is a field of an event that may hold secrets.
type textField struct {
	index []int
	plan  *plan
}

// planByTag are the plans of fields by their tag redact.
var planByTag = map[string]*plan{"text": textPlan, "free": freePlan, "result": resultPlan}

// textFieldsByEvent are the text fields of every type of event.
var textFieldsByEvent = func() map[reflect.Type][]textField {
	all := map[reflect.Type][]textField{}
	for _, kind := range protocol.EventTypes {
		of := reflect.TypeOf(protocol.NewEvent(kind))
		all[of] = textFieldsOf(of.Elem(), nil)
	}
	return all
}()

// textFieldsOf are the text fields of a struct. index is the path to it.
func textFieldsOf(of reflect.Type, index []int) (texts []textField) {
	for i := range of.NumField() {
		field, at := of.Field(i), append(slices.Clone(index), i)
		how, tagged := field.Tag.Lookup("redact")
		switch plan := planByTag[how]; {
		case plan != nil:
			texts = append(texts, textField{at, plan})
		case !tagged && field.Type.Kind() == reflect.Struct:
			texts = append(texts, textFieldsOf(field.Type, at)...)
		}
	}
	return texts
}

// enabled builds the redactor if need be, and reports whether it redacts anything.
func (r *eventRedactor) enabled() bool {
	if r.redactor == nil && r.err == nil {
		r.redactor, r.err = r.source()
	}
	return r.err == nil && r.redactor.keywords != nil
}

// text returns a text without its secrets; after an error, the text.
func (r *eventRedactor) text(text string) string {
	redacted := text
	if r.err == nil {
		redacted, r.err = r.redactor.Text(r.ctx, text)
	}
	r.changed = r.changed || redacted != text
	return redacted
}

// json is text for JSON. It replaces the whole value if secret is true.
func (r *eventRedactor) json(raw json.RawMessage, p *plan, secret bool) json.RawMessage {
	count := 0
	if r.err == nil {
		raw, count, r.err = r.redactor.redactValue(r.ctx, raw, p, secret)
	}
	r.changed = r.changed || count > 0
	return raw
}
