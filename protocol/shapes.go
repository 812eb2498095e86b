package protocol

import (
	"reflect"

	"github.com/agenthandoff/handoff/protocol/internal/wirejson"
)

// shapes makes the JSON shapes of the wire's types.
var shapes = &wirejson.Types{
	Unions: map[reflect.Type]wirejson.Union{
		reflect.TypeFor[Artifacts](): {Words: "a list of artifacts, or an object of name to path", Forms: []wirejson.Form{0, 1},
			Choose: func(value any) (int, any) { return value.(*Artifacts).form() }},
		reflect.TypeFor[RequiredCapability](): {Words: "the id of a capability, or an object with id", Forms: []wirejson.Form{0, wirejson.Whole}},
		reflect.TypeFor[Capability](): {Words: "the id of a capability, or an object with id", Forms: []wirejson.Form{0, wirejson.Whole},
			Default: Capability{Proficiency: 1}},
		reflect.TypeFor[FileReference](): {Words: "a path, or an object with path and sections", Forms: []wirejson.Form{0, wirejson.Whole}},
	},
	Defaults: map[reflect.Type]any{reflect.TypeFor[Policy](): defaultPolicy}, // only what differs stands in a record
	Words: map[reflect.Type]string{
		reflect.TypeFor[Target](): `an object: {"agent": NAME}, {"capability": NAME} or {"agents": [NAMES]}`},
	Aliases: fieldAliases,
}

var (
	packageShape  = shapes.Of(reflect.TypeFor[Package]()).Hinting("free data goes into context.metadata")
	resultShape   = shapes.Of(reflect.TypeFor[Result]()).Hinting("free data goes into body")
	policyShape   = shapes.Of(reflect.TypeFor[Policy]())
	ackShape      = shapes.Of(reflect.TypeFor[Ack]())
	answerShape   = shapes.Of(reflect.TypeFor[Answer]())
	profileShape  = shapes.Of(reflect.TypeFor[Profile]())
	fleetShape    = shapes.Of(reflect.TypeFor[Fleet]())
	progressShape = shapes.Of(reflect.TypeFor[Progress]())
	bidShape      = shapes.Of(reflect.TypeFor[Bid]())
	gotoShape     = shapes.Of(reflect.TypeFor[Goto]())
	textShape     = shapes.Of(reflect.TypeFor[string]())
)

// ShapeOf returns the JSON shape of a type of the wire, for the encoding of records.
func ShapeOf(t reflect.Type) *wirejson.Shape { return shapes.Of(t) }

// wellFormed checks all text and free data inside v, a pointer to the shape's type.
func wellFormed(sh *wirejson.Shape, v any) *Error { return asError(wirejson.WellFormed(sh, v)) }

// WireError makes an Error of one of the JSON.
func WireError(err *wirejson.Error) error {
	if err == nil {
		return nil
	}
	return asError(err)
}

func asError(err *wirejson.Error) *Error {
	if err == nil {
		return nil
	}
	return &Error{Code: Code(err.Code), Field: err.Field, Message: err.Message}
}

// below puts a step in front of the path of an error.
func (e *Error) below(step string) *Error {
	e.Field = wirejson.Join(step, e.Field)
	return e
}

// fieldAliases are names that the five documents and the command line use for
// fields of ours.
var fieldAliases = map[string]string{
	"from_agent": "source", "from_agent_id": "source", "source_agent": "source", "from": "source",
	"to_agent": "target.agent", "to_agent_id": "target.agent", "target_agent": "target.agent", "to": "target.agent",
	"session_id": "context.conversation_id", "harness_trace_id": "context.trace_id",
	"context_variables": "context.variables", "completed_work": "context.intermediate_results",
	"return_protocol": "return", "timeout": "expectations.timeout_ms", "output_format": "expectations.output_schema",
	"file_references": "context.relevant_files", "relevant_sections": "sections", "decisions_made": "context.decisions",
	"timestamp": "created_at", "max_execution_time": "max_execution_time_ms", "protocol_version": "version",
	"alternative": "suggested_alternative", "retry_after": "retry_after_ms", "estimate": "estimated_completion_ms",
	"estimated_completion": "estimated_completion_ms", "set": "variables",
	"agent_id": "id", "agent_name": "name", "needs_more_context": "needs_context", "completed_steps": "context.completed_steps",
}
