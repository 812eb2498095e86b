package protocol

import (
	"cmp"
	"encoding/json"
	"strings"
)

// unit is messages that stay or go together: a call of a tool and its results, or one message.
type unit struct {
	messages []int // in their order
	rank     float64
}

// unitsOf parts a conversation into units, in the order of their first messages, and says of each
// message which unit it is of. A result whose call is not before it is a unit by itself.
func unitsOf(all []Message) (units []unit, of []int) {
	root := make([]int, len(all)) // of each message, one that it belongs to
	find := func(i int) int {
		for root[i] != i {
			root[i] = root[root[i]]
			i = root[i]
		}
		return i
	}
	callers := map[string]int{} // the last message that made the call of an id
	last := -1                  // the last message that called
	for i, message := range all {
		root[i] = i
		parts := partsOf(message)
		for _, id := range parts.results {
			caller, known := callers[id]
			if id == "" {
				caller, known = last, last >= 0
			}
			if known {
				a, b := find(caller), find(i)
				root[max(a, b)] = min(a, b)
			}
		}
		for _, id := range parts.calls {
			callers[id], last = i, i
		}
	}
	of = make([]int, len(all))
	for i := range all {
		if r := find(i); r == i {
			of[i] = len(units)
			units = append(units, unit{messages: []int{i}})
		} else {
			of[i] = of[r]
			units[of[r]].messages = append(units[of[r]].messages, i)
		}
	}
	return units, of
}

// messageParts is what a message says of itself, in the words of the common interfaces of models.
type messageParts struct {
	role    string
	speaker string
	text    string
	calls   []string // ids of the calls that it makes; an empty one has none
	results []string // ids of the calls that it answers
}

// partsOf reads a message as far as it can be read.
func partsOf(message Message) (p messageParts) {
	var fields map[string]json.RawMessage
	if first(message) != '{' || json.Unmarshal(message, &fields) != nil {
		p.text = textOf(message)
		return p
	}
	p.role = textOf(fields["role"])
	p.speaker = strings.TrimSpace(cmp.Or(p.role, "message") + " " + cmp.Or(textOf(fields["agent_id"]), textOf(fields["name"])))
	p.part(fields, p.role)
	for _, call := range objectsOf(fields["tool_calls"]) {
		p.calls = append(p.calls, textOf(call["id"]))
	}
	if hasContent(fields["function_call"]) {
		p.calls = append(p.calls, "")
	}
	if p.text = textOf(fields["content"]); p.text != "" {
		return p
	}
	var texts []string
	for _, part := range objectsOf(fields["content"]) {
		p.part(part, "")
		if text := cmp.Or(textOf(part["text"]), textOf(part["content"])); text != "" {
			texts = append(texts, text)
		}
	}
	p.text = strings.Join(texts, "\n")
	return p
}

// part notes the call or the result that a message, or a part of its content, is.
func (p *messageParts) part(fields map[string]json.RawMessage, role string) {
	id := cmp.Or(textOf(fields["call_id"]), textOf(fields["tool_call_id"]), textOf(fields["tool_use_id"]))
	kind := textOf(fields["type"])
	switch {
	case kind == "tool_call" || kind == "tool_use" || kind == "function_call":
		p.calls = append(p.calls, cmp.Or(id, textOf(fields["id"])))
	case kind == "tool_result" || kind == "function_call_output" || role == "tool" || role == "function":
		p.results = append(p.results, id)
	}
}

// textOf is a JSON string, or empty where it is none.
func textOf(raw json.RawMessage) (text string) {
	if first(raw) != '"' || json.Unmarshal(raw, &text) != nil {
		return ""
	}
	return text
}

// objectsOf are the objects of a JSON list, or none.
func objectsOf(raw json.RawMessage) (objects []map[string]json.RawMessage) {
	var list []json.RawMessage
	if first(raw) != '[' || json.Unmarshal(raw, &list) != nil {
		return nil
	}
	for _, item := range list {
		var fields map[string]json.RawMessage
		if first(item) == '{' && json.Unmarshal(item, &fields) == nil {
			objects = append(objects, fields)
		}
	}
	return objects
}
