package demo

import (
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// entry is what the ledger has after an append of these events.
func entry(ticket, step string, closedAs protocol.Outcome, events ...protocol.Event) protocol.Change {
	s := protocol.State{Ticket: ticket, Phase: protocol.Working, Outcome: closedAs, Closed: closedAs != ""}
	s.WorkflowID, s.TaskID = "w", step
	if closedAs == protocol.OutcomeSuccess {
		s.Phase = protocol.Complete
	}
	return protocol.Change{Record: protocol.Record{Events: events, State: s}}
}

func TestSum(t *testing.T) {
	submitted, completed := &protocol.Submitted{}, &protocol.Completed{}
	for _, test := range []struct {
		name         string
		ledger       []protocol.Change
		acknowledged []string
		want         Sums
		sound        bool
	}{
		{"nothing was done", nil, nil, Sums{}, false},
		{"all is well", []protocol.Change{
			entry("a", "survey", "", submitted),
			entry("a", "survey", "", &protocol.Rerouted{}, &protocol.Escalated{}, &protocol.Accepted{Attempt: 2}),
			entry("a", "survey", protocol.OutcomeSuccess, completed),
			entry("b", "history", "", submitted),
			entry("b", "history", protocol.OutcomeSuccess, completed),
		}, []string{"a", "b"}, Sums{Submitted: 2, Closed: 2, Succeeded: 2, Escalated: 1, Retried: 1, Rerouted: 1}, true},
		{"a second attempt handed off under the same ticket", []protocol.Change{
			entry("a", "survey", protocol.OutcomeSuccess, submitted, completed),
		}, []string{"a", "a"}, Sums{Submitted: 1, Closed: 1, Succeeded: 1}, true},
		{"its submitter died before it could write the ticket down", []protocol.Change{
			entry("a", "survey", protocol.OutcomeSuccess, submitted, completed),
		}, nil, Sums{Submitted: 1, Closed: 1, Succeeded: 1}, true},
		{"acknowledged, and not in the ledger", nil, []string{"a"}, Sums{Submitted: 1, Lost: 1}, false},
		{"acknowledged, and still open", []protocol.Change{
			entry("a", "survey", "", submitted),
		}, []string{"a"}, Sums{Submitted: 1, Lost: 1}, false},
		{"closed twice", []protocol.Change{
			entry("a", "survey", protocol.OutcomeSuccess, submitted, completed),
			entry("a", "survey", protocol.OutcomeSuccess, &protocol.Closed{}),
		}, []string{"a"}, Sums{Submitted: 1, Closed: 1, Succeeded: 1, Duplicated: 1}, false},
		{"one step done by two handoffs", []protocol.Change{
			entry("a", "survey", protocol.OutcomeSuccess, submitted, completed),
			entry("b", "survey", protocol.OutcomeSuccess, submitted, completed),
		}, []string{"a", "b"}, Sums{Submitted: 2, Closed: 2, Succeeded: 2, Duplicated: 1}, false},
		{"failed", []protocol.Change{
			entry("a", "survey", protocol.OutcomeFailed, submitted, &protocol.Closed{}),
		}, []string{"a"}, Sums{Submitted: 1, Closed: 1}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := sum(test.ledger, test.acknowledged)
			if got != test.want || got.Sound() != test.sound {
				t.Errorf("sum is %+v, sound %v; want %+v, sound %v", got, got.Sound(), test.want, test.sound)
			}
		})
	}
}
