package index

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/protocol"
)

// waitDefault is a variable for tests, which wait as long as a busy machine takes.
var waitDefault = 2 * time.Second

const (
	waitMax  = 60 * time.Second
	byMax    = 3   // fields to count by at once
	valueMax = 512 // bytes of one value of a filter: no field holds a longer one
)

// wait is how long an answer may wait; negative not at all.
func (a Ask) wait() (time.Duration, error) {
	wait := time.Duration(a.WaitMS) * time.Millisecond
	switch {
	case a.WaitMS == 0:
		return waitDefault, nil
	case a.WaitMS > waitMax.Milliseconds():
		return 0, protocol.Errorf(protocol.CodeInvalid, "wait_ms", "must be at most %d, not %d", waitMax.Milliseconds(), a.WaitMS)
	case a.WaitMS < 0:
		return -1, nil
	}
	return wait, nil
}

// check refuses what no handoff can be selected by. Its errors are *protocol.Error.
func (f Filter) check() error {
	for _, field := range []struct {
		name   string
		values []string
		ticket bool
	}{
		{"agent", f.Agent, false}, {"source", f.Source, false}, {"target", f.Target, false},
		{"from", f.From, false}, {"to", f.To, false},
		{"workflow_id", f.WorkflowID, false}, {"conversation_id", f.ConversationID, false}, {"task_id", f.TaskID, false},
		{"parent", f.Parent, true}, {"group", f.Group, true}, {"ticket", f.Ticket, true},
	} {
		if err := checkValues("filter."+field.name, field.values, field.ticket); err != nil {
			return err
		}
	}
	for _, err := range []error{
		known("filter.phase", f.Phase, protocol.Phases), known("filter.outcome", f.Outcome, protocol.Outcomes),
		known("filter.priority", f.Priority, protocol.Priorities), known("filter.type", f.Type, protocol.Types),
	} {
		if err != nil {
			return err
		}
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		return protocol.Errorf(protocol.CodeInvalid, "filter.until", "must be after since: nothing lies between %s and %s",
			f.Since.Format(time.RFC3339), f.Until.Format(time.RFC3339))
	}
	return f.checkText()
}

func (f Filter) checkText() error {
	switch {
	case f.Text == "":
		return nil
	case len(f.Text) > TextBytesMax:
		return protocol.Errorf(protocol.CodeTooLarge, "filter.text", "is %d bytes long, at most %d are allowed", len(f.Text), TextBytesMax)
	case !utf8.ValidString(f.Text):
		return protocol.Errorf(protocol.CodeText, "filter.text", "holds bytes that are no UTF-8")
	}
	_, err := match(f.Text)
	return err
}

func checkValues(field string, values []string, tickets bool) error {
	if len(values) > FilterMax {
		return protocol.Errorf(protocol.CodeTooLarge, field, "has %d values, at most %d are allowed", len(values), FilterMax)
	}
	for _, value := range values {
		switch {
		case tickets:
			if _, err := protocol.ParseTicket(value); err != nil {
				return protocol.Errorf(protocol.CodeInvalid, field, "%q is not a ticket; a ticket is a UUID, as handoff submit prints it", cutTo(value, 80))
			}
		case value == "":
			return protocol.Errorf(protocol.CodeMissing, field, "has an empty value; leave it out or fill it in")
		case len(value) > valueMax:
			return protocol.Errorf(protocol.CodeTooLarge, field, "has a value of %d bytes, at most %d are allowed", len(value), valueMax)
		case !utf8.ValidString(value) || strings.ContainsRune(value, 0):
			return protocol.Errorf(protocol.CodeText, field, "holds bytes that are no text")
		}
	}
	return nil
}

// known refuses words that the protocol does not have.
func known[T ~string](field string, values, all []T) error {
	if len(values) > FilterMax {
		return protocol.Errorf(protocol.CodeTooLarge, field, "has %d values, at most %d are allowed", len(values), FilterMax)
	}
	for _, value := range values {
		if !slices.Contains(all, value) {
			return protocol.Errorf(protocol.CodeInvalid, field, "must be one of %s, not %q", listed(all), cutTo(string(value), 80))
		}
	}
	return nil
}

func listed[T ~string](all []T) string {
	texts := make([]string, len(all))
	for i, word := range all {
		texts[i] = string(word)
	}
	return strings.Join(texts, ", ")
}

// checkTicket reads the ticket of a question about one.
func checkTicket(ticket string) (uuid.UUID, error) {
	parsed, err := protocol.ParseTicket(ticket)
	if err != nil {
		return uuid.Nil, err
	}
	return uuid.MustParse(parsed), nil
}
