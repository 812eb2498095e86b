package telemetry

import (
	"cmp"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/agenthandoff/handoff/protocol"
)

// The attributes of spans: ids, names and codes of a handoff, with stable keys. The texts of
// agents in packages, results and reasons stay in the ledger.

// handoffAttributes are the attributes of every span of a handoff.
func handoffAttributes(s protocol.State) []attribute.KeyValue {
	all := []attribute.KeyValue{
		attribute.String("handoff.ticket", s.Ticket),
		attribute.String("handoff.type", string(s.Type)),
		attribute.String("handoff.priority", string(s.Priority)),
		attribute.String("handoff.source", s.Source),
		attribute.String("messaging.system", "handoff"),
		attribute.String("messaging.message.id", s.Ticket),
	}
	for _, optional := range []struct{ key, value string }{
		{"handoff.parent", s.Parent}, {"handoff.group", s.Group}, {"handoff.origin", s.Origin}, {"handoff.return_of", s.ReturnOf},
		{"handoff.workflow_id", s.WorkflowID}, {"handoff.task_id", s.TaskID},
		{"messaging.message.conversation_id", s.ConversationID},
	} {
		if optional.value != "" {
			all = append(all, attribute.String(optional.key, optional.value))
		}
	}
	return all
}

// queueAttributes name the agent whose queue a span is about, and the operation in the messaging
// conventions of OpenTelemetry.
func queueAttributes(agent, operation string) []attribute.KeyValue {
	var all []attribute.KeyValue
	if agent != "" {
		all = append(all, attribute.String("handoff.agent", agent), attribute.String("messaging.destination.name", agent))
	}
	if operation != "" {
		all = append(all, attribute.String("messaging.operation.type", operation))
	}
	return all
}

// outcomeAttributes say how a handoff ended.
func outcomeAttributes(s protocol.State) []attribute.KeyValue {
	all := append(queueAttributes(s.Agent, ""), attribute.String("handoff.outcome", string(s.Outcome)),
		attribute.Int("handoff.attempts_total", s.AttemptsTotal), attribute.Int("handoff.reroutes", s.Reroutes),
		attribute.Int("handoff.escalations", s.Escalations))
	if s.Reason != "" {
		all = append(all, attribute.String("handoff.reason", s.Reason))
	}
	if used := s.Usage.Total(); used.Tokens > 0 {
		all = append(all, attribute.Int64("handoff.tokens", used.Tokens))
	}
	return all
}

// failureCode is the code of the failure that ended a stage; "" if none did.
func failureCode(events []protocol.Event) string {
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

// laterTime is the later of two instants. A span must not end before it begins, and the clocks of
// two writers of the ledger may differ.
func laterTime(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
