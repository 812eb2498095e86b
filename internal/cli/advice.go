package cli

import (
	"errors"
	"strings"

	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// advise adds a command to the message of a refusal with this code and field. The rooms
// that refuse know no command line.
func advise(err error, code protocol.Code, field, op string, args ...string) error {
	var e *protocol.Error
	if !errors.As(err, &e) || e.Code != code || e.Field != field {
		return err
	}
	advised := *e
	advised.Message += ": " + commandLine(explain.NewAction("", op, args...))
	return &advised
}

// adviseRaise adds how to raise a budget to a refusal to answer a handoff that waits for that.
func adviseRaise(err error, ticket string) error {
	for _, limit := range []string{"max_tokens", "max_cost_micros"} {
		err = advise(err, protocol.CodeIllegal, "limits."+limit, explain.OpRaise, "ticket", ticket, "limit", limit)
	}
	return err
}

// adviseWorker adds how to start a worker to a refusal for want of one.
func adviseWorker(err error) error {
	var e *protocol.Error
	if !errors.As(err, &e) || e.Error() != err.Error() {
		return err
	}
	name, capability := strings.CutPrefix(e.Target, "capability ")
	switch {
	case capability:
		return advise(err, protocol.CodeNoAgent, "target.capability", explain.OpWork, "capability", name)
	case protocol.CheckAgent("", name) == nil: // not the agents of a group
		return advise(err, protocol.CodeUnknownAgent, "target.agent", explain.OpWork, "agent", name)
	}
	return err
}
