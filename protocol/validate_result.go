package protocol

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
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

// Goto is one agent that a command names, or one with a capability, with what to tell it alone.
type Goto struct {
	Agent      string          `json:"agent,omitempty"`
	Capability string          `json:"capability,omitempty"`
	Update     json.RawMessage `json:"update,omitempty"`
}

// Targets reads Goto: a name, an object with agent or capability and update, or a list of these. A
// name is without the quotes, blanks and full stops that models put around it. The error is a
// *protocol.Error.
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
			return nil, Errorf(CodeInvalid, field, "must be the name of an agent, or an object with agent or capability, and update: %v", err)
		}
		if err := targets[i].check(field); err != nil {
			return nil, err
		}
	}
	return targets, nil
}

func (to *Goto) check(field string) *Error {
	switch {
	case to.Capability == "":
		to.Agent = bareName(to.Agent)
		return checkSpelled(field, to.Agent)
	case to.Agent != "":
		return Errorf(CodeConflict, field, "names an agent and a capability; give one of them")
	}
	return checkID(field+".capability", to.Capability)
}

// bareName is a name without what models put around one: no id has any of that.
func bareName(name string) string { return strings.Trim(name, " \t\r\n\"'`.“”‘’") }

// checkSpelled checks a name that a result gives. Blanks may be within it: see SpelledAlike.
func checkSpelled(field, name string) *Error {
	if checkAgent(field, strings.Join(strings.Fields(name), "-")) == nil {
		return nil
	}
	return checkAgent(field, name)
}

// SpelledAlike reports whether two names differ in nothing but case, blanks, hyphens and underscores.
func SpelledAlike(a, b string) bool { return spelling(a) == spelling(b) }

func spelling(name string) string {
	return strings.Map(func(r rune) rune {
		if r == ' ' || r == '-' || r == '_' {
			return -1
		}
		return unicode.ToLower(r)
	}, name)
}
