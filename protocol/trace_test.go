package protocol

import (
	"strings"
	"testing"
)

const aTraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// TestTraceOfATicket: a handoff that no trace is given begins one with the bytes
// of its ticket, and its spans have the same ids wherever they are asked for.
func TestTraceOfATicket(t *testing.T) {
	s := State{Ticket: "0c1e9a52-6d0c-4c0e-8c8e-3d1e5a2b7f10"}
	const want = "00-0c1e9a526d0c4c0e8c8e3d1e5a2b7f10-"
	whole, work := s.TraceAt(SpanHandoff, 0), s.TraceAt(SpanWork, 42)
	for _, c := range []TraceContext{whole, work} {
		if !strings.HasPrefix(c.Parent, want) || !c.Sampled() || !c.Own || c.Validate() != nil {
			t.Errorf("%+v: %v", c, c.Validate())
		}
	}
	if whole.SpanID() == work.SpanID() || work.SpanID() != s.SpanID(SpanWork, 42) || work.SpanID() == s.SpanID(SpanWork, 43) {
		t.Errorf("ids of spans: %x, %x", whole.SpanID(), work.SpanID())
	}
	// Fixed for ever: another process, of another version, has the same.
	if got := work.Parent; got != "00-0c1e9a526d0c4c0e8c8e3d1e5a2b7f10-2a527ff238a2d96c-01" {
		t.Errorf("the id of the work has changed: %s", got)
	}
	nobody := State{Ticket: "00000000-0000-0000-0000-000000000000"}
	if err := nobody.TraceAt(SpanHandoff, 0).Validate(); err != nil {
		t.Errorf("the nil ticket: %v", err)
	}
}

// TestTraceThatIsGiven: what follows from a handoff is in the trace that the
// handoff is in, with its flag and its state.
func TestTraceThatIsGiven(t *testing.T) {
	for _, flags := range []string{"00", "01"} {
		s := State{Ticket: "0c1e9a52-6d0c-4c0e-8c8e-3d1e5a2b7f10"}
		s.Trace = &TraceContext{Parent: strings.TrimSuffix(aTraceParent, "01") + flags, State: "rojo=1"}
		s.Fence = 7
		got := s.WorkTrace()
		if got.TraceID() != s.Trace.TraceID() || got.Sampled() != (flags == "01") || got.State != "rojo=1" || got.Own {
			t.Errorf("%+v", got)
		}
		if got.SpanID() != s.SpanID(SpanWork, 7) {
			t.Errorf("the work's span is %x", got.SpanID())
		}
		if turned := got.WithSampled(!got.Sampled()); turned.Sampled() == got.Sampled() || turned.Validate() != nil {
			t.Errorf("turned: %+v", turned)
		}
	}
}

// TestTraceOfABrokenLedger: a state that somebody else has written is no panic.
func TestTraceOfABrokenLedger(t *testing.T) {
	for _, parent := range []string{"", "00", "x" + aTraceParent[1:], strings.Repeat("0", 55)} {
		s := State{Ticket: "0c1e9a52-6d0c-4c0e-8c8e-3d1e5a2b7f10"}
		s.Trace = &TraceContext{Parent: parent}
		if got := s.WorkTrace(); got.Validate() != nil || !got.Own {
			t.Errorf("%q: %+v", parent, got)
		}
	}
	s := State{Ticket: "0c1e9a52-6d0c-4c0e-8c8e-3d1e5a2b7f10"}
	s.Trace = &TraceContext{Parent: aTraceParent, State: "rojo=1\r\nNats-Rollup: all"}
	if got := s.WorkTrace(); got.State != "" || got.TraceID() != s.Trace.TraceID() {
		t.Errorf("a state with a line break: %+v", got)
	}
}

// TestTakeTrace checks that the trace is no part of the package that is handed off.
func TestTakeTrace(t *testing.T) {
	p := Package{TraceParent: aTraceParent, TraceState: "rojo=1"}
	if got := p.TakeTrace(); got.Parent != aTraceParent || got.State != "rojo=1" || got.Own {
		t.Errorf("%+v", got)
	}
	if !p.TakeTrace().IsZero() || p.TraceParent != "" || p.TraceState != "" {
		t.Errorf("left: %+v", p)
	}
}
