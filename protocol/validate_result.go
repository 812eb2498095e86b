package protocol

import (
	"encoding/json"
	"fmt"
)

// Validate checks a normalized result: its status and content type, that a
// text is text, counts, artifacts and the command. Whether the body keeps to
// the package's output schema is for package schema.
func (r Result) Validate() error {
	if err := r.validate(); err != nil {
		return err
	}
	return nil
}

func (r *Result) validate() *Error {
	if err := oneOf("status", r.Status, ResultStatuses); err != nil {
		return err
	}
	if err := oneOf("content_type", r.ContentType, ContentTypes); err != nil {
		return err
	}
	if r.ContentType == ContentText && len(r.Body) > 0 && first(r.Body) != '"' {
		return Errorf(CodeInvalid, "body", "must be text in quotes, since content_type is text")
	}
	if err := r.Usage.validate("usage"); err != nil {
		return err
	}
	if err := between("iterations", int64(r.Iterations), 0, IterationsMax); err != nil {
		return err
	}
	if err := checkArtifacts("artifacts", r.Artifacts); err != nil {
		return err
	}
	if err := wellFormed(resultShape, r); err != nil {
		return err
	}
	if r.Command == nil {
		return nil
	}
	if _, err := r.Command.Targets(); err != nil {
		return err.(*Error)
	}
	if c := first(r.Command.Update); c != 0 && c != '{' && c != 'n' {
		return Errorf(CodeInvalid, "command.update", "must be an object")
	}
	return r.Command.validateAwait()
}

// Goto is one agent that a command names, with what to tell it alone.
type Goto struct {
	Agent  string          `json:"agent"`
	Update json.RawMessage `json:"update,omitempty"`
}

// Targets reads Goto: a name, a list of names, or a list of objects with agent
// and update. The error is a *protocol.Error.
func (c Command) Targets() ([]Goto, error) {
	var list []json.RawMessage
	switch first(c.Goto) {
	case 0, 'n':
		return nil, nil
	case '[':
		if err := json.Unmarshal(c.Goto, &list); err != nil {
			return nil, Errorf(CodeMalformed, "command.goto", "cannot be read: %v", err)
		}
	default:
		list = append(list, c.Goto)
	}
	if len(list) > GotoMax {
		return nil, Errorf(CodeTooLarge, "command.goto", "names %d agents, at most %d are allowed", len(list), GotoMax)
	}
	targets := make([]Goto, len(list))
	for i, raw := range list {
		field := "command.goto"
		if first(c.Goto) == '[' {
			field = fmt.Sprintf("command.goto[%d]", i)
		}
		var err error
		switch first(raw) {
		case '"':
			err = json.Unmarshal(raw, &targets[i].Agent)
		case '{':
			err = decodeStrict(raw, field, ResultBytesMax, 0, gotoShape, &targets[i])
		default:
			err = fmt.Errorf("neither a name nor an object with agent")
		}
		if err != nil {
			return nil, Errorf(CodeInvalid, field, "must be the name of an agent, or an object with agent and update: %v", err)
		}
		if err := checkAgent(field, targets[i].Agent); err != nil {
			return nil, err
		}
	}
	return targets, nil
}
