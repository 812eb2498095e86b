package protocol

import (
	"cmp"
	"fmt"
	"strings"
)

// Code is a stable machine-readable word for what was wrong. Codes are never
// renamed; docs/reference/protocol.md lists them.
type Code string

const (
	CodeMalformed      Code = "malformed"        // does not parse
	CodeMissing        Code = "missing"          // a required field is absent or empty
	CodeInvalid        Code = "invalid"          // a field has a value it may not have
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
	CodeLeaseLost      Code = "lease_lost"       // the claim is not yours (any more)
	CodeLeaseInvalid   Code = "lease_invalid"    // not a lease, or a forged one
	CodeUnreachable    Code = "unreachable"      // no engine there
	CodeOutputSchema   Code = "output_schema"    // a result that breaks the package's schema
	CodeBadResult      Code = "result_malformed" // a result that is broken
	CodeNothingToClaim Code = "nothing_to_claim"
	CodeUnreadable     Code = "unreadable"        // an entry of the ledger is none of this handoff
	CodeBehind         Code = "behind"            // the index has not read all of the ledger
	CodeAmbiguous      Code = "ambiguous"         // the beginning of several tickets
	CodeAutonomy       Code = "autonomy_exceeded" // more autonomy, or risk, than the agent has
	CodeNoMatch        Code = "no_match"          // no agent is found for a task
	CodeBreakerOpen    Code = "breaker_open"      // the breaker of the agent is open
	CodeForbidden      Code = "forbidden"         // not this agent's to say or to see
	CodeHandoffsOff    Code = "handoffs_off"      // the source hands off nothing, or not this type
	CodeGone           Code = "gone"              // the gateway does not have that (any more)
	CodeBusy           Code = "busy"              // the gateway has as much to do as it may; again later
	CodeLimitExceeded  Code = "limit_exceeded"    // a limit of handoffs, depth or agents is reached
	CodeLockBusy       Code = "lock_busy"         // another handoff has the lock
	CodeDeadlock       Code = "deadlock"          // a request that would wait for itself
	CodeScope          Code = "scope"             // a name outside of what the agent may write
	CodeUnsupported    Code = "unsupported"       // the engine has no part for this
	CodeBudget         Code = "budget_exceeded"   // tokens or cost of a lineage
	CodeCircular       Code = "circular_handoff"  // the same hand-off again, and nothing has changed
	CodeContract       Code = "contract"          // the package is not what the agent expects
)

// Error is what a refusal of input looks like: which field, what was wrong,
// and a code to branch on. Nothing was written when one is returned.
type Error struct {
	Code    Code   `json:"code"`
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
	Source  string `json:"source,omitempty"` // of the package, where known
	Target  string `json:"target,omitempty"`
	Clock   Clock  `json:"clock,omitempty"` // that took the claim, of CodeLeaseLost
	// RetryAfterMS is when to try again, of CodeBreakerOpen.
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
}

// Error reads "field: message (source -> target)".
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

// Is matches another Error by its code, so that errors.Is(err,
// &Error{Code: CodeNotFound}) works.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && (t.Field == "" || t.Field == e.Field)
}

// Errorf makes an Error.
func Errorf(code Code, field, format string, args ...any) *Error {
	return &Error{Code: code, Field: field, Message: fmt.Sprintf(format, args...)}
}

// FieldOutputSchema is the field of an Error for an output schema that cannot be used.
const FieldOutputSchema = "expectations.output_schema"
