package protocol

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// Contract is what an agent expects of a package, and what it provides. Absent parts ask for nothing.
type Contract struct {
	// ContextSchema is the JSON Schema of the context of a package for the agent.
	ContextSchema json.RawMessage `json:"context_schema,omitempty"`
	// ResultSchema is the JSON Schema of the body of its results, where the package has none.
	ResultSchema json.RawMessage `json:"result_schema,omitempty"`
	// Modes are how a conversation may come: absent is in any way.
	Modes []TransferMode `json:"modes,omitempty"`
}

// ContractSchemaBytesMax is the largest schema of a contract, in bytes of JSON.
const ContractSchemaBytesMax = 16 << 10

// HasResultSchema tells whether the results of the agent have a schema of its own.
func (p *Profile) HasResultSchema() bool {
	return p.Contract != nil && saysSchema(p.Contract.ResultSchema)
}

// HasContextSchema tells whether the agent expects anything of a context.
func (c *Contract) HasContextSchema() bool { return c != nil && saysSchema(c.ContextSchema) }

// Accepts tells whether a conversation may come in this way.
func (c *Contract) Accepts(mode TransferMode) bool {
	return c == nil || len(c.Modes) == 0 || slices.Contains(c.Modes, mode)
}

// Transfer is how the conversation of a package goes: in its mode, or whole where it names none. It
// is empty where there is neither a mode nor a conversation.
func (c *Context) Transfer() TransferMode {
	if c.HistoryTransfer.Mode == "" && len(c.ConversationHistory) > 0 {
		return TransferFull
	}
	return c.HistoryTransfer.Mode
}

func saysSchema(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) > 0 && string(raw) != "null"
}

// validate checks a contract but for its schemas, which protocol/schema compiles.
func (c *Contract) validate(at string) *Error {
	if c == nil {
		return nil
	}
	for _, s := range []struct {
		name string
		raw  json.RawMessage
	}{{".context_schema", c.ContextSchema}, {".result_schema", c.ResultSchema}} {
		if len(s.raw) > ContractSchemaBytesMax {
			return tooLarge(at+s.name, len(s.raw), ContractSchemaBytesMax)
		}
	}
	for i, mode := range c.Modes {
		field := fmt.Sprintf("%s.modes[%d]", at, i)
		if err := chosen(field, mode, TransferModes); err != nil {
			return err
		}
		if slices.Contains(c.Modes[:i], mode) {
			return Errorf(CodeConflict, field, "names %s a second time", mode)
		}
	}
	return nil
}

// expectsMax bounds what Expects lists, and how deep it looks.
const expectsMax = 16

// Expects lists the members of a context that the schema of the contract requires by name, such as
// variables.branch. It is for readers: what else the schema asks for is not in it.
func (c *Contract) Expects() []string {
	if !c.HasContextSchema() {
		return nil
	}
	return requiredIn(c.ContextSchema, "", expectsMax)
}

func requiredIn(raw json.RawMessage, at string, depth int) (all []string) {
	var s struct {
		Required   []string
		Properties map[string]json.RawMessage
	}
	if depth == 0 || json.Unmarshal(raw, &s) != nil {
		return nil
	}
	for _, name := range s.Required {
		below := requiredIn(s.Properties[name], at+name+".", depth-1)
		if len(below) == 0 {
			below = []string{at + name}
		}
		if all = append(all, below...); len(all) >= expectsMax {
			return all[:expectsMax]
		}
	}
	return all
}
