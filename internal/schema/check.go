package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agenthandoff/handoff/protocol"
)

// Field is the field of a package's output schema; errors about the schema itself name it.
const Field = protocol.FieldOutputSchema

// resultField is the checked field.
const resultField = "result.body"

// CheckSchema checks that raw can be used as a package's output schema. That is JSON Schema of
// draft 2020-12, unless its $schema names another draft, within the limits of this package and
// complete in itself. Nothing is loaded from a network or a file. A $ref may be circular through
// nested values, but not for one and the same value; $dynamicRef and $recursiveRef are refused.
// Absent and null require nothing and are fine. The error is a *protocol.Error for Field, with
// CodeTooLarge or CodeInvalid.
func CheckSchema(raw json.RawMessage) error {
	if nothing(raw) {
		return nil
	}
	if _, err := cache.of(raw); err != nil {
		return err
	}
	return nil
}

// heavy serializes the checks that use much memory.
var heavy sync.Mutex

// CheckOutput checks body against an output schema; an absent body counts as null. The error is a
// *protocol.Error with CodeOutputSchema. Its field is result.body, and its message names the first
// few wrong places in the body with their problems, or the exceeded limit of values or of
// steps. The field is expectations.output_schema if CheckSchema refuses the schema.
// Formats are not asserted, in any draft. The body is not changed. Checks that may use much memory
// wait for one another.
func CheckOutput(schema, body json.RawMessage) error {
	if nothing(schema) {
		return nil
	}
	want, err := cache.of(schema)
	if err != nil { // submission refuses such a schema; another program must have written it to the ledger
		return protocol.Errorf(protocol.CodeOutputSchema, Field, "cannot be used: %s", err.Message)
	}
	if len(body) == 0 {
		body = json.RawMessage("null")
	}
	return output.check(want, body)
}

// subject describes the checked value and the schema's owner in the words of an error.
type subject struct {
	code   protocol.Code
	field  string
	schema string
	// inside adds the wrong place within the field to the error.
	inside bool
}

var output = subject{code: protocol.CodeOutputSchema, field: resultField, schema: "the package's output_schema"}

// check checks a value against a schema.
func (of subject) check(want *usable, body json.RawMessage) error {
	wrong := of.wrong
	if valuesIn(body, outputValuesMax) > outputValuesMax {
		return wrong("has more than %d values, too many to be checked against %s", outputValuesMax, of.schema)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body)) // keeps numbers exact
	if err != nil {
		return wrong("is not JSON: %v", err)
	}
	depth, number := survey(value)
	if number != "" {
		return wrong("holds the number %s, which is too long to be checked against %s", short(number), of.schema)
	}
	want.meter.start(depth, len(body) > bodyBytesLight)
	defer want.meter.stop()
	return of.verdict(want.validate(value))
}

// validate is the library's check. A panic in it becomes an error of this result instead of ending
// the process: schema and body come from outside.
func (u *usable) validate(value any) (err error) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case errSteps:
			err = errSteps
		default:
			err = fmt.Errorf("the check panicked: %v", p)
		}
	}()
	return u.check.Validate(value)
}

func (of subject) wrong(format string, args ...any) error {
	return protocol.Errorf(of.code, of.field, format, args...)
}

// verdict describes the library's error.
func (of subject) verdict(err error) error {
	var found *jsonschema.ValidationError
	switch {
	case err == nil:
		return nil
	case err == errSteps:
		return of.wrong("takes more than %d steps to be checked against %s", outputStepsMax, of.schema)
	case errors.As(err, &found):
		if of.inside {
			of.field = inside(of.field, found)
		}
		return of.wrong("breaks %s: %s", of.schema, explain(found))
	}
	return of.wrong("cannot be checked against %s: %s", of.schema, short(err.Error()))
}

func nothing(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) == 0 || string(raw) == "null"
}

// home is the base address of an output schema for relative references. No other document exists
// there.
const (
	away = "handoff:///"
	home = away + "output_schema"
)

// compile returns a schema ready for checks. Its error is a *protocol.Error.
func compile(raw json.RawMessage) (*usable, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalid, Field, "is not JSON: %v", err)
	}
	switch doc.(type) {
	case map[string]any, bool:
	default:
		return nil, protocol.Errorf(protocol.CodeInvalid, Field, "is no JSON Schema; it must be an object, true or false")
	}
	size, refusal := measure(doc)
	if refusal != nil {
		return nil, refusal
	}
	ready := &usable{meter: &meter{left: outputStepsMax}}
	if ready.check, err = ready.meter.compile(doc); err != nil {
		return nil, refused(err)
	}
	all := map[*jsonschema.Schema]bool{}
	collect(reflect.ValueOf(ready.check), all)
	ready.bytes = sizeOf(size, len(all), len(raw))
	if refusal := ready.meter.install(all); refusal != nil {
		return nil, refusal
	}
	return ready, nil
}

// compile is the library's compilation. A panic in it is an error, as in validate.
func (m *meter) compile(doc any) (schema *jsonschema.Schema, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the compiler panicked: %v", p)
		}
	}()
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.UseLoader(nowhere{})
	compiler.UseRegexpEngine(m.compilePattern)
	if err := compiler.AddResource(home, doc); err != nil {
		return nil, err
	}
	return compiler.Compile(home)
}

// errElsewhere is the error of a reference to another document.
var errElsewhere = errors.New("references to other documents are not followed")

// nowhere is a loader that loads nothing: a package must not cause files or connections to be
// opened.
type nowhere struct{}

// Load refuses.
func (nowhere) Load(string) (any, error) { return nil, errElsewhere }

// refused explains a compiler's error to the author of the schema.
func refused(err error) *protocol.Error {
	var load *jsonschema.LoadURLError
	var invalid *jsonschema.SchemaValidationError
	var why *jsonschema.ValidationError
	switch {
	case errors.As(err, &load):
		return protocol.Errorf(protocol.CodeInvalid, Field,
			"refers to %s; references to other documents are not followed, the schema must be whole in itself", short(strings.TrimPrefix(load.URL, away)))
	case errors.As(err, &invalid) && errors.As(invalid.Err, &why):
		return protocol.Errorf(protocol.CodeInvalid, Field, "is no JSON Schema: %s", explain(why))
	}
	return protocol.Errorf(protocol.CodeInvalid, Field, "is no JSON Schema: %s", short(strings.ReplaceAll(err.Error(), home, "")))
}
