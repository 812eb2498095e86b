package schema

import (
	"encoding/json"

	"github.com/agenthandoff/handoff/protocol"
)

// CheckContract checks that the schemas of an agent's contract can be used, like CheckSchema. The
// error is a *protocol.Error for contract.context_schema or contract.result_schema.
func CheckContract(c *protocol.Contract) error {
	if c == nil {
		return nil
	}
	for _, s := range []struct {
		field string
		raw   json.RawMessage
	}{{"contract.context_schema", c.ContextSchema}, {"contract.result_schema", c.ResultSchema}} {
		if nothing(s.raw) {
			continue
		}
		if _, err := cache.of(s.raw); err != nil {
			err.Field = s.field
			return err
		}
	}
	return nil
}

// CheckContext checks the context of a package against the schema of an agent's contract. The error
// is a *protocol.Error with CodeContract, whose field is the first wrong place, such as
// context.variables.branch. It has the same limits as CheckOutput. An unusable schema requires
// nothing: its agent could not have been registered with it.
func CheckContext(agent string, schema, context json.RawMessage) error {
	if nothing(schema) {
		return nil
	}
	want, err := cache.of(schema)
	if err != nil {
		return nil
	}
	if nothing(context) {
		context = json.RawMessage("{}")
	}
	return subject{protocol.CodeContract, "context", "the context_schema of " + agent, true}.check(want, context)
}
