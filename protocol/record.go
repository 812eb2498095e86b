package protocol

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/agenthandoff/handoff/internal/wirejson"
)

// Record is the body of one append to the ledger: the events that were applied together and the
// state after them.
type Record struct {
	// ID is unique to this append. A writer whose append timed out uses it to find out whether the
	// append succeeded.
	ID     string
	Events []Event
	State  State
}

// Change is one step of a handoff for a reader: a Record, its place in the ledger, and when the
// engine stored it.
type Change struct {
	Seq    uint64 // ledger sequence
	At     Time   // the engine's time stamp
	Hash   string // sha256 of the record as stored, hex
	Record Record // State is bound to Seq
}

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
	Defaults: map[reflect.Type]any{reflect.TypeFor[Policy](): defaultPolicy}, // records omit default values
	Words: map[reflect.Type]string{
		reflect.TypeFor[Target](): `an object: {"agent": NAME}, {"capability": NAME} or {"agents": [NAMES]}`},
	Hints: map[reflect.Type]string{
		reflect.TypeFor[Package](): "free data goes into context.metadata", reflect.TypeFor[Result](): "free data goes into body"},
	Aliases: fieldAliases,
}

var (
	packageShape = ShapeOf(reflect.TypeFor[Package]())
	resultShape  = ShapeOf(reflect.TypeFor[Result]())
	policyShape  = ShapeOf(reflect.TypeFor[Policy]())
)

var shapeByType sync.Map

// ShapeOf returns the JSON shape of a type.
func ShapeOf(t reflect.Type) *wirejson.Shape {
	sh, ok := shapeByType.Load(t)
	if !ok {
		sh, _ = shapeByType.LoadOrStore(t, shapes.Of(t))
	}
	return sh.(*wirejson.Shape)
}

// wellFormed checks all text and free data inside v, a pointer.
func wellFormed(v any) *Error {
	return asError(wirejson.WellFormed(ShapeOf(reflect.TypeOf(v).Elem()), v))
}

// WireError converts an error of the JSON layer to an Error.
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

// below prepends a step to the path of an error.
func (e *Error) below(step string) *Error {
	e.Field = wirejson.Join(step, e.Field)
	return e
}

// fieldAliases maps names in the five documents and on the command line to our fields.
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

// Code is a stable machine-readable word for an error. Codes are never renamed;
// docs/reference/protocol.md lists them.
type Code string

const (
	CodeMalformed      Code = "malformed"        // does not parse
	CodeMissing        Code = "missing"          // a required field is absent or empty
	CodeInvalid        Code = "invalid"          // a value that the field may not have
	CodeUnknownField   Code = "unknown_field"    // an unknown top-level field
	CodeUnknownEvent   Code = "unknown_event"    // an unknown type of event
	CodeConflict       Code = "conflict"         // two fields that exclude each other
	CodeVersion        Code = "version"          // another major version
	CodeTooLarge       Code = "too_large"        // over a stated maximum
	CodePast           Code = "past"             // an instant that has passed
	CodeText           Code = "text"             // invalid UTF-8 or NUL
	CodeReserved       Code = "reserved"         // a name that no agent may have
	CodeUnknownAgent   Code = "unknown_agent"    // no such agent in the directory
	CodeNotAccepting   Code = "not_accepting"    // the agent takes no handoffs
	CodeNoAgent        Code = "no_agent"         // no agent has the capability
	CodeNotFound       Code = "not_found"        // no such ticket
	CodeKeyReused      Code = "key_reused"       // same source and key, another package
	CodeClosed         Code = "closed"           // the handoff is closed
	CodeIllegal        Code = "illegal"          // not possible in this phase
	CodeLeaseLost      Code = "lease_lost"       // the claim is no longer yours
	CodeLeaseInvalid   Code = "lease_invalid"    // not a lease, or a forged one
	CodeUnreachable    Code = "unreachable"      // no engine there
	CodeOutputSchema   Code = "output_schema"    // a result that violates the package's schema
	CodeBadResult      Code = "result_malformed" // a result that is broken
	CodeNothingToClaim Code = "nothing_to_claim"
	CodeUnreadable     Code = "unreadable"        // an entry of the ledger does not belong to this handoff
	CodeBehind         Code = "behind"            // the index has not read all of the ledger
	CodeAmbiguous      Code = "ambiguous"         // the beginning of several tickets
	CodeAutonomy       Code = "autonomy_exceeded" // more autonomy, or risk, than the agent has
	CodeNoMatch        Code = "no_match"          // no agent is found for a task
	CodeBreakerOpen    Code = "breaker_open"      // the breaker of the agent is open
	CodeForbidden      Code = "forbidden"         // this agent may not do or see this
	CodeHandoffsOff    Code = "handoffs_off"      // the source may hand off nothing, or not this type
	CodeGone           Code = "gone"              // the gateway does not have it, or no longer
	CodeBusy           Code = "busy"              // the gateway is at its limit; try again later
	CodeLimitExceeded  Code = "limit_exceeded"    // a limit of handoffs, depth or agents is reached
	CodeLockBusy       Code = "lock_busy"         // another handoff has the lock
	CodeDeadlock       Code = "deadlock"          // a request that would wait for itself
	CodeScope          Code = "scope"             // a name outside of what the agent may write
	CodeUnsupported    Code = "unsupported"       // the engine does not support this
	CodeBudget         Code = "budget_exceeded"   // tokens or cost of a lineage
	CodeCircular       Code = "circular_handoff"  // an unchanged repetition of a hand-off
	CodeContract       Code = "contract"          // the package violates the agent's contract
)

// Error is a refusal of input: the field, the problem, and a code to branch on. Nothing was written
// when one is returned.
type Error struct {
	Code    Code   `json:"code"`
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
	Source  string `json:"source,omitempty"` // of the package, where known
	Target  string `json:"target,omitempty"`
	Clock   Clock  `json:"clock,omitempty"` // that took the claim, of CodeLeaseLost
	// RetryAfterMS is the time until the next try, of CodeBreakerOpen.
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
}

// Error returns "field: message (source -> target)".
func (e *Error) Error() string {
	var b strings.Builder
	if e.Field != "" {
		b.WriteString(e.Field + ": ")
	}
	b.WriteString(e.Message)
	if e.Source != "" || e.Target != "" {
		fmt.Fprintf(&b, " (%s -> %s)", cmp.Or(e.Source, "?"), cmp.Or(e.Target, "?"))
	}
	return b.String()
}

// Is matches another Error by its code, so that errors.Is(err, &Error{Code: CodeNotFound}) works.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && (t.Field == "" || t.Field == e.Field)
}

// Errorf returns an Error.
func Errorf(code Code, field, format string, args ...any) *Error {
	return &Error{Code: code, Field: field, Message: fmt.Sprintf(format, args...)}
}

// FieldOutputSchema is the field of an Error for an output schema that cannot be used.
const FieldOutputSchema = "expectations.output_schema"
