package ask

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/protocol"
)

// valueBytesMax bounds one value of a filter: no field of a handoff is longer.
const valueBytesMax = 512

// Validate refuses a page that no index gives. Its errors are *protocol.Error.
func (q ListQuery) Validate() error {
	if err := checkLimit(q.Limit); err != nil {
		return err
	}
	if q.Sort != "" {
		if err := oneOf("sort", []Sort{q.Sort}, Sorts); err != nil {
			return err
		}
	}
	return q.Filter.Validate()
}

// Validate refuses a count that no index makes. Its errors are *protocol.Error.
func (q CountQuery) Validate() error {
	if len(q.By) > CountByMax {
		return protocol.Errorf(protocol.CodeTooLarge, "by", "has %d fields, at most %d are allowed", len(q.By), CountByMax)
	}
	for i, by := range q.By {
		if slices.Contains(q.By[:i], by) {
			return protocol.Errorf(protocol.CodeInvalid, "by", "has %s twice", protocol.CutText(string(by), shownBytesMax))
		}
	}
	if q.Had && !slices.Contains(q.By, ByTarget) {
		return protocol.Errorf(protocol.CodeInvalid, "had", "goes with a count by target")
	}
	return cmp.Or(oneOf("by", q.By, Bys), q.Filter.Validate())
}

// Validate refuses figures that no index sums up. Its errors are *protocol.Error.
func (q FiguresQuery) Validate() error {
	if q.Top < 0 || q.Top > FiguresTopMax {
		return protocol.Errorf(protocol.CodeInvalid, "top", "must be from 1 to %d, not %d", FiguresTopMax, q.Top)
	}
	return q.Filter.Validate()
}

// Validate refuses a filter that can select no handoff. Its errors are *protocol.Error.
func (f Filter) Validate() error {
	for _, field := range []struct {
		name   string
		values []string
		ticket bool
	}{
		{"agent", f.Agent, false}, {"source", f.Source, false}, {"target", f.Target, false},
		{"from", f.From, false}, {"to", f.To, false},
		{"workflow_id", f.WorkflowID, false}, {"conversation_id", f.ConversationID, false}, {"task_id", f.TaskID, false}, {"variant", f.Variant, false},
		{"parent", f.Parent, true}, {"group", f.Group, true}, {"ticket", f.Ticket, true},
	} {
		if err := checkValues("filter."+field.name, field.values, field.ticket); err != nil {
			return err
		}
	}
	for _, err := range []error{
		oneOf("filter.phase", f.Phase, protocol.Phases), oneOf("filter.outcome", f.Outcome, protocol.Outcomes),
		oneOf("filter.priority", f.Priority, protocol.Priorities), oneOf("filter.type", f.Type, protocol.Types),
		oneOf("filter.gate", f.Gate, protocol.GateKinds),
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
	return nil
}

func checkValues(field string, values []string, tickets bool) error {
	if len(values) > FilterMax {
		return protocol.Errorf(protocol.CodeTooLarge, field, "has %d values, at most %d are allowed", len(values), FilterMax)
	}
	for _, value := range values {
		switch {
		case tickets:
			if _, err := protocol.ParseTicket(value); err != nil {
				return protocol.Errorf(protocol.CodeInvalid, field, "%q is not a ticket; a ticket is the UUID that a submission returns", protocol.CutText(value, shownBytesMax))
			}
		case value == "":
			return protocol.Errorf(protocol.CodeMissing, field, "has an empty value; leave it out or fill it in")
		case len(value) > valueBytesMax:
			return protocol.Errorf(protocol.CodeTooLarge, field, "has a value of %d bytes, at most %d are allowed", len(value), valueBytesMax)
		case !utf8.ValidString(value) || strings.ContainsRune(value, 0):
			return protocol.Errorf(protocol.CodeText, field, "holds bytes that are no text")
		}
	}
	return nil
}

// oneOf refuses words that are not among all.
func oneOf[T ~string](field string, values, all []T) error {
	if len(values) > FilterMax {
		return protocol.Errorf(protocol.CodeTooLarge, field, "has %d values, at most %d are allowed", len(values), FilterMax)
	}
	for _, value := range values {
		if !slices.Contains(all, value) {
			return protocol.Errorf(protocol.CodeInvalid, field, "must be one of %s, not %q", listed(all), protocol.CutText(string(value), shownBytesMax))
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

// shownBytesMax is how much of a wrong value an error repeats.
const shownBytesMax = 80
