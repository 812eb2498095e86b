package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agenthandoff/handoff/protocol"
)

// Field is where a package asks for an output: what errors about the schema itself name.
const Field = protocol.FieldOutputSchema

// resultField is what is checked.
const resultField = "result.body"

// CheckSchema tells whether raw can be used as a package's output schema. That is
// JSON Schema of draft 2020-12, unless its $schema says otherwise, within the limits
// of this package and whole in itself. Nothing is loaded from a network or a file.
// A $ref may be circular through the values in a value, and not for one and the same
// value; $dynamicRef and $recursiveRef are refused. Absent and null ask for nothing
// and are fine. The error is a *protocol.Error for Field, with CodeTooLarge or
// CodeInvalid.
func CheckSchema(raw json.RawMessage) error {
	if nothing(raw) {
		return nil
	}
	_, err := cache.of(raw)
	return err
}

// heavy is held by the one check in a process that may take much memory.
var heavy sync.Mutex

// CheckOutput tells whether body is what the output schema asks for; a body
// that is absent counts as null. The error is a *protocol.Error with
// CodeOutputSchema. Its field is result.body, and its message names the first few
// places in the body and what is wrong there, or which limit the check is over
// (OutputValuesMax, OutputStepsMax). It is expectations.output_schema where the
// schema is one that CheckSchema refuses. Formats are not asserted, in any draft.
// The body is not changed. Checks that may take much memory wait for one another.
func CheckOutput(schema, body json.RawMessage) error {
	if nothing(schema) {
		return nil
	}
	want, err := cache.of(schema)
	if err != nil {
		return unusable(err)
	}
	if len(body) == 0 {
		body = json.RawMessage("null")
	}
	return output.check(want, body)
}

// subject is what is checked, and what it is checked against, in the words of an error.
type subject struct {
	code   protocol.Code
	field  string
	schema string
	// inside names the place in the field that is wrong, and not only the field.
	inside bool
}

var output = subject{code: protocol.CodeOutputSchema, field: resultField, schema: "the package's output_schema"}

// check tells whether a value is what a schema asks for.
func (of subject) check(want *usable, body json.RawMessage) error {
	wrong := of.wrong
	if valuesIn(body, OutputValuesMax) > OutputValuesMax {
		return wrong("has more than %d values, too many to be checked against %s", OutputValuesMax, of.schema)
	}
	alone := len(body) > bodyBytesLight
	if alone {
		heavy.Lock()
		defer heavy.Unlock()
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body)) // numbers stay exact
	if err != nil {
		return wrong("is not JSON: %v", err)
	}
	if number := unwieldy(value); number != "" {
		return wrong("holds the number %s, which is too long to be checked against %s", short(number), of.schema)
	}
	steps, ok := want.price.within(OutputStepsMax, value)
	if !ok {
		return wrong("takes more than %d steps to be checked against %s", OutputStepsMax, of.schema)
	}
	if steps > stepsLight && !alone {
		heavy.Lock()
		defer heavy.Unlock()
	}
	return of.verdict(want.validate(value))
}

// validate is the library's check. A panic in it is an error of the one result, and
// not the end of the process: schema and body come from outside.
func (u *usable) validate(value any) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the check panicked: %v", p)
		}
	}()
	return u.check.Validate(value)
}

func (of subject) wrong(format string, args ...any) error {
	return protocol.Errorf(of.code, of.field, format, args...)
}

// unusable words why a schema that is no use fails the result. Submission refuses
// such a schema; it stands in a ledger that something else wrote.
func unusable(err error) error {
	var e *protocol.Error
	if !errors.As(err, &e) {
		return err
	}
	return protocol.Errorf(protocol.CodeOutputSchema, Field, "cannot be used: %s", e.Message)
}

// verdict words what the library found.
func (of subject) verdict(err error) error {
	var found *jsonschema.ValidationError
	switch {
	case err == nil:
		return nil
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

// home is where an output schema lies as far as relative references in it are
// concerned. There is nothing else there.
const (
	away = "handoff:///"
	home = away + "output_schema"
)

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
	schema, err := compileDoc(doc)
	if err != nil {
		return nil, refused(err)
	}
	price, schemas, refusal := priceOf(schema)
	if refusal != nil {
		return nil, refusal
	}
	return &usable{check: schema, price: price, bytes: sizeOf(size, schemas, len(raw))}, nil
}

// compileDoc is the library's compilation. A panic in it is an error, as in validate.
func compileDoc(doc any) (schema *jsonschema.Schema, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the compiler panicked: %v", p)
		}
	}()
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.UseLoader(nowhere{})
	compiler.UseRegexpEngine(compilePattern)
	if err := compiler.AddResource(home, doc); err != nil {
		return nil, err
	}
	return compiler.Compile(home)
}

// errElsewhere is why a reference to another document leads nowhere.
var errElsewhere = errors.New("references to other documents are not followed")

// nowhere is a loader that loads nothing: a package must not make the one who
// checks it open files or connections.
type nowhere struct{}

// Load refuses.
func (nowhere) Load(string) (any, error) { return nil, errElsewhere }

// refused words a compiler's error for the author of the schema.
func refused(err error) error {
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
