package protocol_test

import (
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// TestInherit: what a package does not say itself comes from its parent.
func TestInherit(t *testing.T) {
	text := func(s string) *string { return &s }
	parent := func() protocol.Parent {
		return protocol.Parent{
			State: protocol.State{SubmittedAt: vectorNow, Summary: protocol.Summary{Deadline: vectorNow.Add(2 * time.Hour)}},
			Package: protocol.Package{Priority: protocol.Critical, Context: protocol.Context{ConversationID: text("c-1"), UserIntent: text("to ship"),
				WorkflowID: "w-1", UserID: "u-1", CorrelationID: "r-1", TraceID: "t-1", Summary: "its own"}},
		}
	}
	var child protocol.Package
	child.Inherit(parent(), vectorNow)
	if c := child.Context; *c.ConversationID != "c-1" || *c.UserIntent != "to ship" || c.WorkflowID != "w-1" || c.UserID != "u-1" || c.CorrelationID != "r-1" ||
		c.TraceID != "t-1" || c.Summary != "" || child.Priority != protocol.Critical || !child.Constraints.Deadline.Equal(vectorNow.Add(2*time.Hour)) {
		t.Errorf("a child that says nothing: %+v", child)
	}
	child = protocol.Package{Priority: protocol.Low, Context: protocol.Context{ConversationID: text("c-2"), UserIntent: text(""), WorkflowID: "w-2", UserID: "u-2", CorrelationID: "r-2", TraceID: "t-2"},
		Constraints: protocol.Constraints{Deadline: vectorNow.Add(time.Hour)}}
	child.Inherit(parent(), vectorNow)
	if c := child.Context; *c.ConversationID != "c-2" || *c.UserIntent != "" || c.WorkflowID != "w-2" || c.UserID != "u-2" || c.CorrelationID != "r-2" ||
		c.TraceID != "t-2" || child.Priority != protocol.Low || !child.Constraints.Deadline.Equal(vectorNow.Add(time.Hour)) {
		t.Errorf("a child that says all itself: %+v", child)
	}
}

// TestInheritDeadline: nothing outlives an open parent, and nobody's word binds nothing.
func TestInheritDeadline(t *testing.T) {
	in := func(d time.Duration) time.Time { return vectorNow.Add(d) }
	usual := in(time.Duration(protocol.DeadlineDefaultMS) * time.Millisecond)
	for name, c := range map[string]struct {
		kind              protocol.Type
		parent, own, want time.Time
		closed            bool
	}{
		"none of its own":                         {kind: protocol.Sequential, parent: in(time.Hour), want: in(time.Hour)},
		"an earlier one":                          {kind: protocol.Delegation, parent: in(time.Hour), own: in(time.Minute), want: in(time.Minute)},
		"a later one":                             {kind: protocol.Delegation, parent: in(time.Hour), own: in(3 * time.Hour), want: in(time.Hour)},
		"the default one, and its parent waits":   {kind: protocol.Delegation, parent: usual, want: usual},
		"the default one, and its parent is done": {kind: protocol.Sequential, parent: usual},
		"the parent's has passed":                 {kind: protocol.Delegation, parent: in(-time.Minute)},
		"the parent has closed":                   {kind: protocol.Delegation, parent: in(time.Hour), own: in(3 * time.Hour), want: in(3 * time.Hour), closed: true},
	} {
		pkg := protocol.Package{Type: c.kind, Constraints: protocol.Constraints{Deadline: c.own}}
		pkg.Inherit(protocol.Parent{State: protocol.State{SubmittedAt: vectorNow, Summary: protocol.Summary{Deadline: c.parent}, Closed: c.closed}}, vectorNow)
		if got := pkg.Constraints.Deadline; !got.Equal(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
