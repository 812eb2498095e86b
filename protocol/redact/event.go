package redact

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"

	"github.com/agenthandoff/handoff/protocol"
)

// Events replaces the secrets in the words of events and in their results by Marker.
// It tells whether there were any. Codes, ids and digests stay, and so do packages:
// those were redacted when they were prepared, as their submitter asked for. The
// redactor is asked for at the first text; its error, and that of ended, is returned.
func Events(ended Ended, events []protocol.Event, redactor func() (*Redactor, error)) (changed bool, err error) {
	r := eventRedaction{ended: ended, source: redactor}
	for _, e := range events {
		r.event(e)
	}
	return r.changed, r.err
}

// resultPlan is the plan of the results in a group's return.
var resultPlan = redactPlan.fields["returned"].fields["members"].fields["result"]

// eventRedaction redacts events with a redactor that is made when it is needed.
type eventRedaction struct {
	ended    Ended
	source   func() (*Redactor, error)
	redactor *Redactor
	changed  bool
	err      error
}

// event redacts the fields whose tags ask for it.
func (r *eventRedaction) event(e protocol.Event) {
	texts := eventTexts[reflect.TypeOf(e)]
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
			r.text(field)
		case *[]string:
			r.texts(field)
		case *json.RawMessage:
			r.raw(field, text.plan)
		case *map[string]json.RawMessage:
			r.named(field)
		}
	}
}

// eventText is a field of an event that may hold secrets.
type eventText struct {
	index []int
	plan  *plan
}

// plans are what is redacted in a field, by what its tag redact says.
var plans = map[string]*plan{"text": textPlan, "free": freePlan, "result": resultPlan}

// eventTexts are those of every type of event, by the tags of its fields.
var eventTexts = func() map[reflect.Type][]eventText {
	all := map[reflect.Type][]eventText{}
	for _, kind := range protocol.EventTypes {
		of := reflect.TypeOf(protocol.NewEvent(kind))
		all[of] = textsOf(of.Elem(), nil)
	}
	return all
}()

// textsOf are the texts of a struct. index leads to it.
func textsOf(of reflect.Type, index []int) (texts []eventText) {
	for i := range of.NumField() {
		field, at := of.Field(i), append(slices.Clone(index), i)
		how, tagged := field.Tag.Lookup("redact")
		switch plan := plans[how]; {
		case plan != nil:
			texts = append(texts, eventText{at, plan})
		case !tagged && field.Type.Kind() == reflect.Struct:
			texts = append(texts, textsOf(field.Type, at)...)
		}
	}
	return texts
}

// ready tells whether there is a redactor that has anything to do.
func (r *eventRedaction) ready() bool {
	if r.redactor == nil && r.err == nil {
		r.redactor, r.err = r.source()
	}
	return r.err == nil && r.redactor.kinds != nil
}

func (r *eventRedaction) text(text *string) {
	if *text != "" && r.ready() {
		given := *text
		*text, r.err = r.redactor.Text(r.ended, given)
		r.changed = r.changed || *text != given
	}
}

// texts leaves the caller's list as it is.
func (r *eventRedaction) texts(list *[]string) {
	redacted := slices.Clone(*list)
	for i := range redacted {
		r.text(&redacted[i])
	}
	*list = redacted
}

func (r *eventRedaction) raw(raw *json.RawMessage, p *plan) {
	if len(*raw) > 0 && r.ready() {
		*raw = r.counted(r.redactor.redact(r.ended, *raw, p))
	}
}

// counted notes what became of a value, and returns the value.
func (r *eventRedaction) counted(raw json.RawMessage, count int, err error) json.RawMessage {
	r.changed, r.err = r.changed || count > 0, err
	return raw
}

// named redacts values by their names too, and leaves the caller's map as it is.
func (r *eventRedaction) named(all *map[string]json.RawMessage) {
	if len(*all) == 0 || !r.ready() {
		return
	}
	redacted := maps.Clone(*all)
	for name, raw := range redacted {
		if r.ready() {
			redacted[name] = r.counted(r.redactor.redactValue(r.ended, raw, freePlan, r.redactor.secretField([]byte(name))))
		}
	}
	*all = redacted
}
