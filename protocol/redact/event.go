package redact

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/agenthandoff/handoff/protocol"
)

// Events replaces the secrets in what events say in words, and in the results
// that they hold, by Marker, and tells whether there were any. Codes, ids and digests stay, and so do packages:
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

// event names the free texts of every type of event; a test compares the list with
// the types.
func (r *eventRedaction) event(e protocol.Event) {
	switch e := e.(type) {
	case *protocol.Progressed:
		r.text(&e.Progress.Message)
		r.free(&e.Progress.Details)
	case *protocol.Completed:
		r.result(&e.Result)
	case *protocol.Failed:
		r.text(&e.Message)
	case *protocol.Rejected:
		r.text(&e.Reason)
	case *protocol.Conditioned:
		r.text(&e.Reason)
		r.texts(&e.NeedsContext)
		r.texts(&e.NeedsPermission)
	case *protocol.Answered:
		r.text(&e.Answer.Text)
		r.text(&e.Answer.DenyReason)
		r.named(&e.Answer.Variables)
	case *protocol.Rerouted:
		r.text(&e.Reason)
	case *protocol.Escalated:
		r.text(&e.Reason)
		r.text(&e.Assessment)
	case *protocol.Released:
		r.text(&e.Reason)
	case *protocol.Extended:
		r.text(&e.Reason)
	case *protocol.CancelRequested:
		r.text(&e.Reason)
	case *protocol.Closed:
		r.text(&e.Message)
	case *protocol.Stuck:
		r.text(&e.Reason)
	case *protocol.Taken:
		r.text(&e.Reason)
	case *protocol.RolledBack:
		r.text(&e.Reason)
		r.result(&e.Result)
	case *protocol.ResultParked:
		r.result(&e.Result)
	case *protocol.Returned:
		r.text(&e.Reason)
	case *protocol.Dismissed:
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

func (r *eventRedaction) free(raw *json.RawMessage) {
	if len(*raw) > 0 && r.ready() {
		*raw = r.counted(r.redactor.redact(r.ended, *raw, freePlan))
	}
}

// counted notes what became of a value, and returns the value.
func (r *eventRedaction) counted(raw json.RawMessage, count int, err error) json.RawMessage {
	r.changed, r.err = r.changed || count > 0, err
	return raw
}

func (r *eventRedaction) result(raw *json.RawMessage) {
	if len(*raw) > 0 && r.ready() {
		*raw = r.counted(r.redactor.redact(r.ended, *raw, resultPlan))
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
			redacted[name] = r.counted(r.redactor.redactValue(r.ended, raw, freePlan, r.redactor.secretField([]byte(name))))
		}
	}
	*all = redacted
}
