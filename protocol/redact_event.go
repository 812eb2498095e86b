package protocol

import (
	"encoding/json"
	"maps"
	"slices"
)

// RedactEvents replaces the secrets in what events say in words, and in the results
// that they hold, by Redacted. Codes, ids and digests stay, and so do packages:
// those were redacted when they were prepared, as their submitter asked for. The
// redactor is asked for at the first text; its error, and that of ended, is returned.
func RedactEvents(ended Ended, events []Event, redactor func() (*Redactor, error)) error {
	r := eventRedaction{ended: ended, source: redactor}
	for _, e := range events {
		r.event(e)
	}
	return r.err
}

// resultPlan is the plan of the results in a group's return.
var resultPlan = redactPlan.fields["returned"].fields["members"].fields["result"]

// eventRedaction redacts events with a redactor that is made when it is needed.
type eventRedaction struct {
	ended    Ended
	source   func() (*Redactor, error)
	redactor *Redactor
	err      error
}

// event names the free texts of every type of event; a test compares the list with
// the types.
func (r *eventRedaction) event(e Event) {
	switch e := e.(type) {
	case *Progressed:
		r.text(&e.Progress.Message)
		r.free(&e.Progress.Details)
	case *Completed:
		r.result(&e.Result)
	case *Failed:
		r.text(&e.Message)
	case *Rejected:
		r.text(&e.Reason)
	case *Conditioned:
		r.text(&e.Reason)
		r.texts(&e.NeedsContext)
		r.texts(&e.NeedsPermission)
	case *Answered:
		r.text(&e.Answer.Text)
		r.text(&e.Answer.DenyReason)
		r.named(&e.Answer.Variables)
	case *Rerouted:
		r.text(&e.Reason)
	case *Escalated:
		r.text(&e.Reason)
		r.text(&e.Assessment)
	case *Released:
		r.text(&e.Reason)
	case *Extended:
		r.text(&e.Reason)
	case *CancelRequested:
		r.text(&e.Reason)
	case *Closed:
		r.text(&e.Message)
	case *Stuck:
		r.text(&e.Reason)
	case *Taken:
		r.text(&e.Reason)
	case *RolledBack:
		r.text(&e.Reason)
		r.result(&e.Result)
	case *ResultParked:
		r.result(&e.Result)
	case *Returned:
		r.text(&e.Reason)
	case *Dismissed:
		r.text(&e.Note)
	}
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
		*text, r.err = r.redactor.RedactText(r.ended, *text)
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

func (r *eventRedaction) free(raw *json.RawMessage) {
	if len(*raw) > 0 && r.ready() {
		*raw, _, r.err = r.redactor.redact(r.ended, *raw, freePlan)
	}
}

func (r *eventRedaction) result(raw *json.RawMessage) {
	if len(*raw) > 0 && r.ready() {
		*raw, _, r.err = r.redactor.redact(r.ended, *raw, resultPlan)
	}
}

// named redacts values by their names too, and leaves the caller's map as it is.
func (r *eventRedaction) named(all *map[string]json.RawMessage) {
	if len(*all) == 0 || !r.ready() {
		return
	}
	redacted := maps.Clone(*all)
	for name, raw := range redacted {
		if r.ready() {
			redacted[name], _, r.err = r.redactor.redactValue(r.ended, raw, freePlan, r.redactor.secretField([]byte(name)))
		}
	}
	*all = redacted
}
