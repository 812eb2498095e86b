package notify_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/notify"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// TestSignal: the end of a handoff begins another one, of its lineage and with values of the
// notification, and once.
func TestSignal(t *testing.T) {
	w := newWorld(t)
	s, err := supervisor.New(w.b, w.engine, supervisor.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	outcome := json.RawMessage(`"cancelled"`)
	rule := protocol.Rule{Name: "after", Signal: "ended", Rate: 60, If: &protocol.NextCondition{Variable: "outcome", Eq: outcome}}
	_, err = w.b.Rules().Put(ctx, rule, json.RawMessage(`{"target": {"agent": "coder"}, "reason": "r",
		"task": {"description": {"$": "/ticket"}}, "context": {"variables": {"kind": {"$": "/kind"}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	w.run(&notify.Signal{Name: "ended", Broker: w.b}, notify.Closed)
	ticket := w.cancelled()
	var last *protocol.Signalled
	for last == nil {
		time.Sleep(5 * time.Millisecond)
		got, _, err := w.b.Rules().Get(ctx, "after")
		if err != nil || ctx.Err() != nil {
			t.Fatal(err)
		}
		if got.Refused != nil {
			t.Fatalf("refused: %s", got.Refused.Message)
		}
		last = got.Last
	}
	body, err := w.b.Package(ctx, last.Ticket)
	if err != nil {
		t.Fatal(err)
	}
	pkg, err := protocol.DecodePackage(body)
	if err != nil {
		t.Fatal(err)
	}
	if pkg.Parent != ticket || pkg.Task.Description != ticket || string(pkg.Context.Variables["kind"]) != `"closed"` {
		t.Errorf("it follows from %s, with the task %q and %s; the notification was about %s", pkg.Parent, pkg.Task.Description, pkg.Context.Variables["kind"], ticket)
	}
}
