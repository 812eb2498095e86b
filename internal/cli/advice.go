package cli

import (
	"errors"

	"github.com/agenthandoff/handoff/explain"
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
