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
	texts := textFieldsByEvent[reflect.TypeOf(e)]
	if len(texts) == 0 {
		return
	}
	fields := reflect.ValueOf(e).Elem()
	for _, text := range texts {
		field := fields.FieldByIndex(text.index)
		if field.IsZero() {
			continue
		}
		switch field := field.Addr().Interface().(type) {
		case *string:
			r.redactText(field)
		case *[]string:
			r.redactTexts(field)
		case *json.RawMessage:
			r.redactJSON(field, text.plan)
		case *map[string]json.RawMessage:
			r.redactMap(field)
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

func (r *eventRedactor) redactText(text *string) {
	if *text != "" && r.enabled() {
		original := *text
		*text, r.err = r.redactor.Text(r.ctx, original)
		r.changed = r.changed || *text != original
	}
}

// redactTexts replaces the list by a redacted copy.
func (r *eventRedactor) redactTexts(list *[]string) {
	redacted := slices.Clone(*list)
	for i := range redacted {
		r.redactText(&redacted[i])
	}
	*list = redacted
}

func (r *eventRedactor) redactJSON(raw *json.RawMessage, p *plan) {
	if len(*raw) > 0 && r.enabled() {
		*raw = r.noteChange(r.redactor.redact(r.ctx, *raw, p))
	}
}

// noteChange records the outcome of a redaction, and returns its value.
func (r *eventRedactor) noteChange(raw json.RawMessage, count int, err error) json.RawMessage {
	r.changed, r.err = r.changed || count > 0, err
	return raw
}

// redactMap replaces the map by a copy whose values are redacted, by their names too.
func (r *eventRedactor) redactMap(all *map[string]json.RawMessage) {
	if len(*all) == 0 || !r.enabled() {
		return
	}
	redacted := maps.Clone(*all)
	for name, raw := range redacted {
		if r.enabled() {
			redacted[name] = r.noteChange(r.redactor.redactValue(r.ctx, raw, freePlan, r.redactor.isSecretName([]byte(name))))
		}
	}
	*all = redacted
}
