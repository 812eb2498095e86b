package protocol

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"

	"github.com/agenthandoff/handoff/internal/wirejson"
	"github.com/google/uuid"
)

// Traces. A handoff is part of a trace as in W3C Trace Context: of the one that its package names,
// or of one that begins with it. The ids of its spans follow from its ticket and the ledger, so
// that every process computes the same ids and nothing needs to be stored.

// TraceContext is a span that others follow from, in the terms of W3C Trace Context (level 1,
// version 00). The zero value is none.
type TraceContext struct {
	Parent string `json:"traceparent,omitempty"`
	State  string `json:"tracestate,omitempty"` // of the maker of Parent; propagated unchanged
	// Own means that the trace began with a handoff and no program has decided yet whether it is
	// sampled: a sampler decides by the trace's id, and ignores the flag in Parent.
	Own bool `json:"own,omitempty"`
}

// traceStateBytesMax is the longest tracestate: the length that the recommendation asks each
// program to propagate.
const traceStateBytesMax = 512

// traceStateMembersMax is how many members a tracestate may have (W3C).
const traceStateMembersMax = 32

// IsZero reports whether there is no trace.
func (t TraceContext) IsZero() bool { return t.Parent == "" }

// Validate checks the two texts. A *protocol.Error names the field.
func (t TraceContext) Validate() error {
	return checkTrace(t.Parent, t.State).orNil()
}

func checkTrace(parent, state string) *Error {
	switch {
	case parent == "" && state == "":
		return nil
	case parent == "":
		return Errorf(CodeConflict, "tracestate", "needs a traceparent: add one, or leave both out")
	case !isTraceParent(parent):
		return Errorf(CodeInvalid, "traceparent", "must be one of W3C Trace Context, such as 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01, not %q", wirejson.Clip(parent))
	case len(state) > traceStateBytesMax:
		return tooLarge("tracestate", len(state), traceStateBytesMax)
	case !isTraceState(state):
		return Errorf(CodeInvalid, "tracestate", "must be one of W3C Trace Context, such as rojo=00f067aa0ba902b7,congo=t61rcWkgMzE: at most %d different keys, each with a value", traceStateMembersMax)
	}
	return nil
}

// traceParentLen is the length of a traceparent of version 00.
const traceParentLen = len("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")

func isTraceParent(s string) bool {
	if len(s) != traceParentLen || !strings.HasPrefix(s, "00-") || s[35] != '-' || s[52] != '-' {
		return false
	}
	for _, part := range []string{s[3:35], s[36:52], s[53:]} {
		if strings.Trim(part, "0123456789abcdef") != "" {
			return false
		}
	}
	return strings.Trim(s[3:35], "0") != "" && strings.Trim(s[36:52], "0") != ""
}

func isTraceState(s string) bool {
	if s == "" {
		return true
	}
	members := strings.Split(s, ",")
	if len(members) > traceStateMembersMax {
		return false
	}
	seen := make(map[string]bool, len(members))
	for _, member := range members {
		key, value, ok := strings.Cut(strings.Trim(member, " "), "=")
		if !ok || !isTraceKey(key) || !isTraceValue(value) || seen[key] {
			return false
		}
		seen[key] = true
	}
	return true
}

func isTraceKey(key string) bool {
	if key == "" || len(key) > 256 || strings.IndexByte("abcdefghijklmnopqrstuvwxyz0123456789", key[0]) < 0 {
		return false
	}
	return strings.Trim(key, "abcdefghijklmnopqrstuvwxyz0123456789_-*/@") == ""
}

func isTraceValue(value string) bool {
	if value == "" || len(value) > 256 {
		return false
	}
	return strings.IndexFunc(value, func(r rune) bool { return r < ' ' || r > '~' || r == '=' }) < 0
}

// TraceID returns the id of the trace, or 0 without one.
func (t TraceContext) TraceID() (id [16]byte) {
	if len(t.Parent) == traceParentLen {
		_, _ = hex.Decode(id[:], []byte(t.Parent[3:35]))
	}
	return id
}

// SpanID returns the id of the span that others follow from, or 0 without one.
func (t TraceContext) SpanID() (id [8]byte) {
	if len(t.Parent) == traceParentLen {
		_, _ = hex.Decode(id[:], []byte(t.Parent[36:52]))
	}
	return id
}

// Sampled returns the flag that the parent's maker has set.
func (t TraceContext) Sampled() bool {
	if len(t.Parent) != traceParentLen {
		return false
	}
	var flags [1]byte
	_, _ = hex.Decode(flags[:], []byte(t.Parent[53:]))
	return flags[0]&1 != 0
}

// WithSampled returns the same context with the flag set or cleared.
func (t TraceContext) WithSampled(sampled bool) TraceContext {
	if len(t.Parent) != traceParentLen || sampled == t.Sampled() {
		return t
	}
	flags := "00"
	if sampled {
		flags = "01"
	}
	t.Parent = t.Parent[:53] + flags
	return t
}

// Span is a part of a handoff with a span of its own.
type Span string

const (
	SpanHandoff     Span = "handoff"     // all of it, from its submission to its end
	SpanSubmit      Span = "submit"      // its first append
	SpanQueue       Span = "queue"       // an offer in a queue
	SpanAcknowledge Span = "acknowledge" // from the claim to the answer
	SpanWork        Span = "work"        // from the acceptance to the end of the attempt
	SpanWait        Span = "wait"        // for the next attempt, an answer, or children
	SpanReturn      Span = "return"      // from its end until its source has received it
)

// SpanID returns the id of one of the handoff's spans. n distinguishes spans of one kind: the fence
// for SpanWork; 0 for a single one.
func (s State) SpanID(kind Span, n uint64) (id [8]byte) {
	var number [8]byte
	binary.BigEndian.PutUint64(number[:], n)
	sum := sha256.Sum256([]byte(s.Ticket + "\x00" + string(kind) + "\x00" + string(number[:])))
	copy(id[:], sum[:])
	if id == [8]byte{} { // the zero id is invalid
		id[7] = 1
	}
	return id
}

// follows reports whether the handoff follows from a span. The ledger's content comes from others,
// and may be anything.
func (s State) follows() bool { return s.Trace != nil && isTraceParent(s.Trace.Parent) }

// TraceID returns the id of the handoff's trace: that of its package, or of the handoff it follows
// from, else its ticket.
func (s State) TraceID() [16]byte {
	if s.follows() {
		return s.Trace.TraceID()
	}
	id, err := uuid.Parse(s.Ticket)
	if err != nil || id == uuid.Nil { // the nil UUID is a valid ticket but no valid trace id
		sum := sha256.Sum256([]byte(s.Ticket))
		copy(id[:], sum[:])
	}
	return id
}

// TraceAt returns the context for followers of one of the handoff's spans. A trace that began with
// a handoff is marked as sampled.
func (s State) TraceAt(kind Span, n uint64) TraceContext {
	trace, span := s.TraceID(), s.SpanID(kind, n)
	t := TraceContext{Own: true}
	flags := "01"
	if s.follows() {
		t, flags = *s.Trace, s.Trace.Parent[traceParentLen-2:]
		if t.Validate() != nil { // it goes into headers and environments, where a line break can inject
			t.State = ""
		}
	}
	text := make([]byte, 0, traceParentLen)
	text = append(text, "00-"...)
	text = hex.AppendEncode(text, trace[:])
	text = append(text, '-')
	text = hex.AppendEncode(text, span[:])
	text = append(text, '-')
	t.Parent = string(append(text, flags...))
	return t
}

// WorkTrace returns the context for followers of the current work. If no agent has accepted the
// handoff, it is that of the whole handoff.
func (s State) WorkTrace() TraceContext {
	if s.Fence == 0 {
		return s.TraceAt(SpanHandoff, 0)
	}
	return s.TraceAt(SpanWork, s.Fence)
}

// TakeTrace removes the trace from a package. It is not part of the content: the same package sent
// again from within another trace is the same.
func (p *Package) TakeTrace() TraceContext {
	t := TraceContext{Parent: p.TraceParent, State: p.TraceState}
	p.TraceParent, p.TraceState = "", ""
	return t
}
