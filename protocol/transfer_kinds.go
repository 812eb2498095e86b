package protocol

import (
	"encoding/json"
	"slices"
)

// Which kinds of message go on, as history_transfer.include says.

// ofKinds returns what of a conversation is of the kinds that are asked for, and whether that is
// less than all of it. Calls of tools and their results go on together or not at all: a model
// refuses one without the other.
func ofKinds(messages []Message, include Include) (kept []Message, isLess bool) {
	tools := goesOn(include.ToolCalls) && goesOn(include.ToolResults)
	include.ToolCalls, include.ToolResults = &tools, &tools
	for _, message := range messages {
		part, ok := relevant(message, include)
		if ok {
			kept = append(kept, part)
		}
		isLess = isLess || !ok || len(part) != len(message)
	}
	return kept, isLess
}

// partOf says of which kind a message, a field of one, or a part of its content
// is. The words are those that the documents and the common interfaces of models
// use.
var partOf = map[string]func(Include) bool{
	"system": wantsSystem, "developer": wantsSystem, // roles
	"tool": wantsResults, "function": wantsResults, // roles of those that answer a call
	"tool_call": wantsCalls, "tool_use": wantsCalls, "function_call": wantsCalls, // types, and the last a field
	"tool_result": wantsResults, "function_call_output": wantsResults, // types
	"tool_calls": wantsCalls,                                 // a field
	"reasoning":  wantsReasoning, "thinking": wantsReasoning, // roles, types and fields
	"redacted_thinking": wantsReasoning, "reasoning_content": wantsReasoning, // a type, a field
}

func wantsSystem(i Include) bool    { return goesOn(i.SystemMessages) }
func wantsCalls(i Include) bool     { return goesOn(i.ToolCalls) }
func wantsResults(i Include) bool   { return goesOn(i.ToolResults) }
func wantsReasoning(i Include) bool { return goesOn(i.AgentReasoning) }

// goesOn reports whether a flag of an Include lets its kind through.
func goesOn(flag *bool) bool { return flag == nil || *flag }

// partFields are the fields of a message that say something beside its content.
var partFields = []string{"tool_calls", "function_call", "reasoning", "reasoning_content", "thinking"}

// relevant is what of a message goes on. A message whose role or type says that
// it is of a kind that was not asked for is left out whole: system messages (role
// system or developer), tool results (role tool or function, type tool_result),
// tool calls (type tool_call, tool_use), reasoning (role or type reasoning or
// thinking). Of others the fields and the parts of a content in a list that are
// of such a kind are taken out, and if nothing is left of its content then, the
// message is left out too. What has none of this goes on byte for byte.
func relevant(message Message, include Include) (Message, bool) {
	var fields map[string]json.RawMessage
	if first(message) != '{' || json.Unmarshal(message, &fields) != nil {
		return message, true
	}
	if !wanted(fields["role"], include) || !wanted(fields["type"], include) {
		return nil, false
	}
	changed := false
	for _, name := range partFields {
		if hasContent(fields[name]) && !partOf[name](include) {
			delete(fields, name)
			changed = true
		}
	}
	var parts []json.RawMessage
	if first(fields["content"]) == '[' && json.Unmarshal(fields["content"], &parts) == nil {
		kept := slices.DeleteFunc(slices.Clone(parts), func(part json.RawMessage) bool {
			var of struct {
				Type json.RawMessage `json:"type"`
			}
			return first(part) == '{' && json.Unmarshal(part, &of) == nil && !wanted(of.Type, include)
		})
		if body, err := Marshal(kept); err == nil && len(kept) < len(parts) {
			fields["content"], changed = body, true
		}
	}
	if !changed {
		return message, true
	}
	left := hasContent(fields["content"])
	for _, name := range partFields {
		left = left || hasContent(fields[name])
	}
	body, err := Marshal(fields)
	return body, left && err == nil
}

// wanted tells whether what a role or a type names was asked for. An
// unknown one was.
func wanted(word json.RawMessage, include Include) bool {
	var name string
	if json.Unmarshal(word, &name) != nil {
		return true
	}
	asked := partOf[name]
	return asked == nil || asked(include)
}

// says tells whether a field holds anything at all.
func hasContent(raw json.RawMessage) bool {
	switch string(raw) {
	case "", "null", `""`, "[]", "{}":
		return false
	}
	return true
}
