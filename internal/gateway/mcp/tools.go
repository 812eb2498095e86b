package mcpgateway

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agenthandoff/handoff/protocol"
)

// tools are all tools, in the order in which a host lists them.
var tools = []tool{
	row("handoff_to_specialist", acts, (*caller).handOff, "Hand a task to another agent, to a capability, or to several agents. The agent does not see this conversation: write everything it needs into task and context. Returns a ticket at once; the work goes on without you."),
	row("check_handoff", reads, (*caller).check, "Read one of your handoffs: its state, the reason of its wait, its history, or its result. Without a ticket: your open ones. Do not call it in a loop; wait_ms waits."),
	row("find_agent", reads, (*caller).findAgent, "Find the agent for a task. Without a task: all agents, with their capabilities."),
	row("inbox", reads, (*caller).inbox, "List the handoffs that wait for your decision: questions of agents that you handed work to, approvals, escalations, refused work. Work for you to do comes by next_handoff."),
	row("answer_handoff", repeatable, (*caller).answerHandoff, "Answer a question of an agent that you handed work to, give or deny a permission, or approve a handoff that waits for you."),
	row("cancel_handoff", repeatable|destroys, (*caller).cancel, "Stop a handoff: at once if no agent works on it, else at the agent's next sign of life."),
	row("next_handoff", acts, (*caller).next, "Take the next handoff for your agent, with its instructions. It is yours until the lease ends; each call about it renews the lease. Respond to it next."),
	row("respond", repeatable, (*caller).respond, "Decide about the handoff that you took with next_handoff: accept it, or refuse, ask, put it off or escalate it, with the reason."),
	row("report", repeatable, (*caller).report, "Report progress of the work. The answer asks you to stop if the work was cancelled."),
	row("finish", repeatable, (*caller).finish, "End the work with its result, or with a failure; next hands the result on to another agent."),
}

// Effects of a tool, of which a host learns.
type effects int

const (
	acts       effects = 0
	reads      effects = 1 << iota // it changes nothing
	repeatable                     // a repeated call changes no more
	destroys                       // it ends work of others
)

// tool is one tool.
type tool struct {
	mcp.Tool
	do func(c *caller, ctx context.Context, arguments json.RawMessage) (answer, error)
}

// row makes a tool of a function. Its arguments are the fields of In, whose tags are jsonschema (a description)
// and the bounds of setBounds. A field without omitempty is required.
func row[In any](name string, e effects, do func(*caller, context.Context, In) (answer, error), doc string) tool {
	schema, err := jsonschema.For[In](nil)
	if err != nil {
		panic(err) // of the types of this package it does not fail
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[In]()) {
		field, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		setBounds(schema.Properties[field], f.Tag)
	}
	yes, no := e&destroys != 0, false
	hints := &mcp.ToolAnnotations{ReadOnlyHint: e == reads, DestructiveHint: &yes, IdempotentHint: e != acts, OpenWorldHint: &no}
	return tool{mcp.Tool{Name: name, Description: doc, InputSchema: schema, Annotations: hints},
		func(c *caller, ctx context.Context, arguments json.RawMessage) (answer, error) {
			var in In
			if err := decode(arguments, schema, &in); err != nil {
				return answer{}, err
			}
			return do(c, ctx, in)
		}}
}

// textMax bounds each text of a list, in bytes; contextMax the values of context, as JSON.
const (
	textMax    = 4096
	contextMax = 64 << 10
)

// setBounds adds the bounds in a field's tags to its schema: max is the length of a text or a list, or the largest
// number; min the smallest number; enum the words that a text may be.
func setBounds(s *jsonschema.Schema, tag reflect.StructTag) {
	most, _ := strconv.Atoi(tag.Get("max"))
	least, _ := strconv.ParseFloat(tag.Get("min"), 64)
	switch enum := tag.Get("enum"); {
	case enum != "":
		for word := range strings.SplitSeq(enum, ",") {
			s.Enum = append(s.Enum, word)
		}
	case s.Items != nil:
		s.Type, s.Types, s.MaxItems, s.Items.MaxLength = "array", nil, &most, jsonschema.Ptr(textMax)
	case s.Type == "string":
		s.MaxLength = &most
	case s.Type == "object":
		s.AdditionalProperties = nil // it is open
	case s.Type != "boolean":
		s.Minimum, s.Maximum = &least, jsonschema.Ptr(float64(most))
	}
}

// decode reads arguments, and holds them against their schema. An empty value is an absent one: models send both.
func decode(raw json.RawMessage, schema *jsonschema.Schema, into any) error {
	if len(raw) == 0 || string(raw) == "null" {
		raw = json.RawMessage("{}")
	}
	if err := protocol.DecodeStrict(raw, "arguments", requestBytesMax, into); err != nil {
		return err
	}
	var values map[string]any
	if err := json.Unmarshal(raw, &values); err != nil {
		return err
	}
	for _, name := range schema.PropertyOrder {
		property, value := schema.Properties[name], values[name]
		switch absent := value == nil || value == "" || value == 0.0; {
		case !absent:
			if err := check(name, property, value); err != nil {
				return err
			}
		case slices.Contains(schema.Required, name):
			return protocol.Errorf(protocol.CodeMissing, name, "is missing: %s", property.Description)
		}
	}
	return nil
}

// check holds a value against the bounds of its schema.
func check(field string, s *jsonschema.Schema, value any) error {
	size, most := 0, 0
	switch v := value.(type) {
	case string:
		if s.Enum != nil {
			if !slices.Contains(s.Enum, value) {
				return protocol.Errorf(protocol.CodeInvalid, field, "is %q, must be one of %s", protocol.CutText(v, 64), listed(s.Enum))
			}
			return nil
		}
		size, most = len(v), *s.MaxLength
	case map[string]any:
		text, _ := json.Marshal(v) // of a value that was JSON it does not fail
		size, most = len(text), contextMax
	case float64:
		if v < *s.Minimum || v > *s.Maximum {
			return protocol.Errorf(protocol.CodeInvalid, field, "is %v, must be %v to %v", v, *s.Minimum, *s.Maximum)
		}
	case []any:
		if len(v) > *s.MaxItems {
			return protocol.Errorf(protocol.CodeTooLarge, field, "has %d entries, at most %d may be", len(v), *s.MaxItems)
		}
		for i, item := range v {
			if err := check(fmt.Sprintf("%s[%d]", field, i), s.Items, item); err != nil {
				return err
			}
		}
	}
	if size > most {
		return protocol.Errorf(protocol.CodeTooLarge, field, "%s", protocol.OverSize(size, most))
	}
	return nil
}

// listed lists words for an error.
func listed(words []any) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(words), "[]"), " ", ", ")
}
