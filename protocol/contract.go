package protocol

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/internal/wirejson"
)

// Contract holds the requirements of an agent for its packages, and the schema of its results.
// Absent parts require nothing.
type Contract struct {
	// ContextSchema is the JSON Schema of the context of a package for the agent.
	ContextSchema json.RawMessage `json:"context_schema,omitempty"`
	// ResultSchema is the JSON Schema of the body of its results, if the package has none.
	ResultSchema json.RawMessage `json:"result_schema,omitempty"`
	// Modes lists the accepted transfer modes of a conversation; absent means any.
	Modes []TransferMode `json:"modes,omitempty" flag:"takes-transfer" doc:"a {WAY} in which a conversation may come: full, relevant_only, summary or reference (repeatable; default all; '' for all again)"`
}

// contractSchemaBytesMax is the largest schema of a contract, in bytes of JSON.
const contractSchemaBytesMax = 16 << 10

// HasResultSchema reports whether the agent's results have a schema of its own.
func (p *Profile) HasResultSchema() bool {
	return p.Contract != nil && saysSchema(p.Contract.ResultSchema)
}

// HasContextSchema reports whether the agent requires anything of a context.
func (c *Contract) HasContextSchema() bool { return c != nil && saysSchema(c.ContextSchema) }

// Accepts reports whether a conversation may arrive in this mode.
func (c *Contract) Accepts(mode TransferMode) bool {
	return c == nil || len(c.Modes) == 0 || slices.Contains(c.Modes, mode)
}

// Transfer returns how the conversation of a package is transferred: in its mode, or in full if it
// names none. It is empty without a mode and a conversation.
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

// validate checks a contract except its schemas, which internal/schema compiles.
func (c *Contract) validate(at string) *Error {
	if c == nil {
		return nil
	}
	if err := cmp.Or(
		notLonger(at+".context_schema", c.ContextSchema, contractSchemaBytesMax),
		notLonger(at+".result_schema", c.ResultSchema, contractSchemaBytesMax),
	); err != nil {
		return err
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

// expectsMax bounds the length and the depth of Expects.
const expectsMax = 16

// Expects lists the members of a context that the schema of the contract requires by name, such as
// variables.branch. It is for readers and omits the other requirements of the schema.
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

// ResultFromOutput makes a result from the standard output of a program. The first matching rule
// applies:
//
//  1. Only white space: a result without a body.
//  2. One nonempty JSON object that DecodeResult and Validate accept: that result.
//  3. One JSON value: the body, unchanged, of content type json. If it is an object whose fields
//     are all those of a result, SetAside explains why it was not taken for one.
//  4. Else the body is the output as text (ResultFromText).
//
// A JSON string falls under 3 and has content type text.
func ResultFromOutput(stdout []byte) Result {
	stdout = bytes.TrimPrefix(stdout, byteOrderMark)
	trimmed := bytes.TrimSpace(stdout)
	if len(trimmed) == 0 {
		return completed(Result{})
	}
	s := wirejson.NewReader(trimmed)
	defer s.Free()
	if s.Read(resultShape, nil); s.Err == nil {
		if trimmed[0] == '{' && !s.HasUnknown() && len(trimmed) > len("{}") {
			r, err := DecodeResult(trimmed)
			if err == nil {
				r.Normalize()
				err = r.Validate()
			}
			if err == nil {
				return r
			}
			return completed(Result{Body: bytes.Clone(trimmed), ContentType: ContentJSON,
				SetAside: fmt.Sprintf("the output looks like a result but is not valid (%v); it was taken as the body", err)})
		}
		return completed(Result{Body: bytes.Clone(trimmed)})
	}
	return ResultFromText(stdout)
}

// ResultFromText makes a result whose body is a program's output as text, without trailing line
// breaks. Invalid UTF-8 and NULs become U+FFFD, and SetAside counts them.
func ResultFromText(stdout []byte) Result {
	stdout = bytes.TrimPrefix(stdout, byteOrderMark)
	text, replaced := cleanText(strings.TrimRight(string(stdout), "\r\n"))
	body, err := Marshal(text)
	if err != nil { // clean text always has a JSON form
		panic(err)
	}
	return completed(Result{Body: body, ContentType: ContentText, SetAside: replaced})
}

// AddSetAside adds words about output that did not go into the result unchanged.
func (r *Result) AddSetAside(words string) {
	if r.SetAside != "" {
		words = r.SetAside + "; " + words
	}
	r.SetAside = words
}

func completed(r Result) Result {
	r.Normalize()
	return r
}

// cleanText replaces bytes that the wire refuses, and describes how many.
func cleanText(s string) (text, replaced string) {
	broken := 0
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == 0 || r == utf8.RuneError && n <= 1 {
			broken++
		}
		i += n
	}
	if broken == 0 {
		return s, ""
	}
	var b strings.Builder
	for _, r := range s { // a range yields U+FFFD for every broken byte
		if r == 0 {
			r = utf8.RuneError
		}
		b.WriteRune(r)
	}
	if broken == 1 {
		return b.String(), "1 byte of the output was NUL or no UTF-8; it was replaced by U+FFFD"
	}
	return b.String(), fmt.Sprintf("%d bytes of the output were NUL or no UTF-8; they were replaced by U+FFFD", broken)
}
