package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

func TestKinds(t *testing.T) {
	closed := func(outcome protocol.Outcome) protocol.State {
		return protocol.State{Closed: true, Outcome: outcome}
	}
	back := closed(protocol.OutcomeFailed)
	back.ReturnOf = "another"
	asks := protocol.State{Phase: protocol.Conditional, Conditions: &protocol.Conditions{NeedsContext: []string{"which branch?"}}}
	gate := func(kind protocol.GateKind) protocol.State {
		return protocol.State{Phase: protocol.AwaitingApproval, Gate: &protocol.Gate{GateTerms: protocol.GateTerms{Waits: []protocol.GateKind{kind}}}}
	}
	for name, c := range map[string]struct {
		state  protocol.State
		events []protocol.Event
		want   []Kind
	}{
		"a question":            {asks, []protocol.Event{&protocol.Conditioned{}}, []Kind{Asked}},
		"another entry of it":   {asks, []protocol.Event{&protocol.Spent{}}, nil},
		"put off":               {protocol.State{Phase: protocol.Conditional}, []protocol.Event{&protocol.Conditioned{RetryAfterMS: 1}}, nil},
		"an approval":           {gate(protocol.GateApproval), []protocol.Event{&protocol.Gated{}}, []Kind{Approval}},
		"an approval after all": {gate(protocol.GateApproval), []protocol.Event{&protocol.GateOpened{}}, []Kind{Approval}},
		"another is asked":      {gate(protocol.GateApproval), []protocol.Event{&protocol.Lapsed{}}, []Kind{Approval}},
		"a spent budget":        {gate(protocol.GateBudget), []protocol.Event{&protocol.Gated{}}, []Kind{Approval}},
		"a sick agent":          {gate(protocol.GateBreaker), []protocol.Event{&protocol.Gated{}}, nil},
		"success":               {closed(protocol.OutcomeSuccess), []protocol.Event{&protocol.Completed{}}, []Kind{Closed}},
		"failure":               {closed(protocol.OutcomeFailed), []protocol.Event{&protocol.Failed{}, &protocol.Closed{}}, []Kind{Closed, Failed}},
		"out of time":           {closed(protocol.OutcomeTimeout), []protocol.Event{&protocol.TimedOut{Clock: protocol.ClockDeadline}, &protocol.Closed{}}, []Kind{Closed, Failed}},
		"cancelled":             {closed(protocol.OutcomeCancelled), []protocol.Event{&protocol.CancelRequested{}, &protocol.Closed{}}, []Kind{Closed}},
		"after the end":         {closed(protocol.OutcomeFailed), []protocol.Event{&protocol.Dismissed{}}, nil},
		"the end of a return":   {back, []protocol.Event{&protocol.Closed{}}, nil},
		"stuck":                 {protocol.State{}, []protocol.Event{&protocol.Stuck{}}, []Kind{Stuck}},
		"absent":                {protocol.State{}, []protocol.Event{&protocol.TimedOut{Clock: protocol.ClockAcknowledge}, &protocol.Escalated{}, &protocol.Offered{}}, []Kind{Escalated, Absent}},
		"too slow":              {protocol.State{}, []protocol.Event{&protocol.TimedOut{Clock: protocol.ClockWork}}, nil},
	} {
		var got []Kind
		for _, kind := range Kinds {
			if kind.is(protocol.Change{Record: protocol.Record{State: c.state, Events: c.events}}) {
				got = append(got, kind)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestBackOff(t *testing.T) {
	for attempt, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second, 10: 5 * time.Minute, 1 << 40: 5 * time.Minute} {
		if got := backOff(attempt); got != want {
			t.Errorf("attempt %d: %v, want %v", attempt, got, want)
		}
	}
}

func TestProgram(t *testing.T) {
	var out bytes.Buffer
	p := &Program{Line: `cat; echo "$HANDOFF_TYPE $HANDOFF_TICKET $HANDOFF_NOTIFICATION $HANDOFF_SENTENCE"`, Env: os.Environ(), Stdout: &out, Stderr: &out}
	n := Notification{Type: "handoff.asked", Data: Data{Ticket: "t", Sentence: "It waits\nfor $(you)."}}
	body, err := json.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Send(t.Context(), "id", n, body); err != nil {
		t.Fatal(err)
	}
	if want := string(body) + "\nhandoff.asked t id It waits⏎for $(you).\n"; out.String() != want {
		t.Errorf("it had %q, want %q", out.String(), want)
	}
	p.Line = "exit 3"
	if err := p.Send(t.Context(), "id", n, body); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("an exit code of 3: %v", err)
	}
	p.Line = "exec sleep 60"
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Send(ctx, "id", n, body); err == nil {
		t.Error("no end, and no error")
	}
}
