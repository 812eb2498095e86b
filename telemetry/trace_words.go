package telemetry

import (
	"cmp"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/agenthandoff/handoff/protocol"
)

// What spans say of a handoff: ids, names and codes, whose names are stable. What
// agents say, in packages, results and reasons, stays in the ledger.

// about is what every span of a handoff has.
func about(s protocol.State) []attribute.KeyValue {
	all := []attribute.KeyValue{
		attribute.String("handoff.ticket", s.Ticket),
		attribute.String("handoff.type", string(s.Type)),
		attribute.String("handoff.priority", string(s.Priority)),
		attribute.String("handoff.source", s.Source),
		attribute.String("messaging.system", "handoff"),
		attribute.String("messaging.message.id", s.Ticket),
	}
	for _, also := range []struct{ name, value string }{
		{"handoff.parent", s.Parent}, {"handoff.group", s.Group}, {"handoff.origin", s.Origin}, {"handoff.return_of", s.ReturnOf},
		{"handoff.workflow_id", s.WorkflowID}, {"handoff.task_id", s.TaskID},
		{"messaging.message.conversation_id", s.ConversationID},
	} {
		if also.value != "" {
			all = append(all, attribute.String(also.name, also.value))
		}
	}
	return all
}

// addressed says whose queue a span is about, and what messaging calls it.
func addressed(agent, operation string) []attribute.KeyValue {
	var all []attribute.KeyValue
	if agent != "" {
		all = append(all, attribute.String("handoff.agent", agent), attribute.String("messaging.destination.name", agent))
	}
	if operation != "" {
		all = append(all, attribute.String("messaging.operation.type", operation))
	}
	return all
}

// summed is how a handoff ended, as a whole.
func summed(s protocol.State) []attribute.KeyValue {
	all := append(addressed(s.Agent, ""), attribute.String("handoff.outcome", string(s.Outcome)),
		attribute.Int("handoff.attempts_total", s.AttemptsTotal), attribute.Int("handoff.reroutes", s.Reroutes),
		attribute.Int("handoff.escalations", s.Escalations))
	if s.Reason != "" {
		all = append(all, attribute.String("handoff.reason", s.Reason))
	}
	if s.Tokens > 0 {
		all = append(all, attribute.Int64("handoff.tokens", s.Tokens))
	}
	return all
}

// failureOf says, as a code, why an append has ended a stage badly; "" is that
// it has not.
func failureOf(events []protocol.Event) string {
	for _, e := range events {
		switch e := e.(type) {
		case *protocol.Failed:
			return cmp.Or(e.Code, "failed")
		case *protocol.LeaseLost:
			return "lease_lost"
		case *protocol.TimedOut:
			return string(e.Clock) + "_timeout"
		}
	}
	return ""
}

// later is the later of two instants: a span never ends before it begins,
// whatever the clocks of those who wrote the ledger.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
