package schema

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agenthandoff/handoff/protocol"
)

// Limits of an output schema. The compiler's time grows with the square of the
// number of objects, and faster with their depth; within these limits it stays
// under a second.
const (
	OutputSchemaBytesMax   = 128 << 10 // of JSON
	OutputSchemaObjectsMax = 4096
	OutputSchemaDepthMax   = protocol.DepthMax
)

// schemaField is where a package asks for an output, resultField what is checked.
const (
	schemaField = "expectations.output_schema"
	resultField = "result.body"
)

// CheckSchema tells whether raw can be used as a package's output schema: JSON
// Schema of draft 2020-12 unless its $schema says otherwise, at most
// OutputSchemaBytesMax long and whole in itself. Nothing is loaded from a
// network or a file. Absent and null ask for nothing and are fine. The error is
// a *protocol.Error for the field expectations.output_schema, with CodeTooLarge
// or CodeInvalid.
func CheckSchema(raw json.RawMessage) error {
	if nothing(raw) {
		return nil
	}
	_, err := compiled(raw)
	return err
}

// CheckOutput tells whether body is what the output schema asks for; a body
// that is absent counts as null. The error is a *protocol.Error for the field
// result.body with CodeOutputSchema, whose message names the first few places
// in the body and what is wrong there; or one of CheckSchema's, if the schema
// itself is of no use. Formats are not asserted, as drafts since 2019-09 have
// it. How long it takes is up to the schema; the body is not changed.
func CheckOutput(schema, body json.RawMessage) error {
	if nothing(schema) {
		return nil
	}
	want, err := compiled(schema)
	if err != nil {
		return err
	}
	if len(body) == 0 {
		body = json.RawMessage("null")
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body)) // numbers stay exact
	if err != nil {
		return protocol.Errorf(protocol.CodeOutputSchema, resultField, "is not JSON: %v", err)
	}
	if number := unwieldy(value); number != "" {
		return protocol.Errorf(protocol.CodeOutputSchema, resultField,
			"holds the number %s, which is too long to be checked against the package's output_schema", short(number))
	}
	var wrong *jsonschema.ValidationError
	switch err := want.Validate(value); {
	case err == nil:
		return nil
	case errors.As(err, &wrong):
		return protocol.Errorf(protocol.CodeOutputSchema, resultField, "breaks the package's output_schema: %s", explain(wrong))
	default:
		return protocol.Errorf(protocol.CodeOutputSchema, resultField, "breaks the package's output_schema: %s", short(err.Error()))
	}
}

func nothing(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) == 0 || string(raw) == "null"
}

// cacheMax is how many compiled schemas are kept. A fleet uses few of them,
// each many times: for every attempt of every handoff of a kind.
const cacheMax = 128

// cache holds compiled schemas by the hash of their text. They are safe for
// use by many goroutines.
var cache = struct {
	sync.Mutex
	known map[[sha256.Size]byte]*jsonschema.Schema
}{known: map[[sha256.Size]byte]*jsonschema.Schema{}}

func compiled(raw json.RawMessage) (*jsonschema.Schema, error) {
	if len(raw) > OutputSchemaBytesMax {
		return nil, protocol.Errorf(protocol.CodeTooLarge, schemaField, "is %d bytes, at most %d are allowed", len(raw), OutputSchemaBytesMax)
	}
	key := sha256.Sum256(raw)
	cache.Lock()
	known := cache.known[key]
	cache.Unlock()
	if known != nil {
		return known, nil
	}
	fresh, err := compile(raw)
	if err != nil {
		return nil, err
	}
	cache.Lock()
	defer cache.Unlock()
	if len(cache.known) >= cacheMax {
		for any := range cache.known { // whichever comes first: it can be compiled again
			delete(cache.known, any)
			break
		}
	}
	cache.known[key] = fresh
	return fresh, nil
}

// home is where an output schema lies as far as relative references in it are
// concerned. There is nothing else there.
const (
	away = "handoff:///"
	home = away + "output_schema"
)

func compile(raw json.RawMessage) (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalid, schemaField, "is not JSON: %v", err)
	}
	switch doc.(type) {
	case map[string]any, bool:
	default:
		return nil, protocol.Errorf(protocol.CodeInvalid, schemaField, "is no JSON Schema; it must be an object, true or false")
	}
	if number := unwieldy(doc); number != "" {
		return nil, protocol.Errorf(protocol.CodeInvalid, schemaField, "holds the number %s, which is too long", short(number))
	}
	switch objects, depth := measure(doc); {
	case objects > OutputSchemaObjectsMax:
		return nil, protocol.Errorf(protocol.CodeTooLarge, schemaField, "has %d objects, at most %d are allowed", objects, OutputSchemaObjectsMax)
	case depth > OutputSchemaDepthMax:
		return nil, protocol.Errorf(protocol.CodeTooLarge, schemaField, "is nested %d levels deep, at most %d are allowed", depth, OutputSchemaDepthMax)
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.UseLoader(nowhere{})
	if err := compiler.AddResource(home, doc); err != nil {
		return nil, refused(err)
	}
	schema, err := compiler.Compile(home)
	if err != nil {
		return nil, refused(err)
	}
	return schema, nil
}

// errElsewhere is why a reference to another document leads nowhere.
var errElsewhere = errors.New("references to other documents are not followed")

// nowhere is a loader that loads nothing: a package must not make the one who
// checks it open files or connections.
type nowhere struct{}

// Load refuses.
func (nowhere) Load(string) (any, error) { return nil, errElsewhere }

// refused words a compiler's error for whoever wrote the schema.
func refused(err error) error {
	var load *jsonschema.LoadURLError
	var invalid *jsonschema.SchemaValidationError
	var wrong *jsonschema.ValidationError
	switch {
	case errors.As(err, &load):
		return protocol.Errorf(protocol.CodeInvalid, schemaField,
			"refers to %s; references to other documents are not followed, the schema must be whole in itself", short(strings.TrimPrefix(load.URL, away)))
	case errors.As(err, &invalid) && errors.As(invalid.Err, &wrong):
		return protocol.Errorf(protocol.CodeInvalid, schemaField, "is no JSON Schema: %s", explain(wrong))
	}
	return protocol.Errorf(protocol.CodeInvalid, schemaField, "is no JSON Schema: %s", short(strings.ReplaceAll(err.Error(), home, "")))
}

// numberBytesMax and exponentDigitsMax bound the numbers that are checked: they
// are computed with exactly, and 1e999999 has a million digits.
const (
	numberBytesMax    = 400
	exponentDigitsMax = 3
)

// unwieldy finds a number that is too long to be computed with.
func unwieldy(value any) string {
	switch value := value.(type) {
	case json.Number:
		_, exponent, _ := strings.Cut(strings.ToLower(value.String()), "e")
		if len(value) > numberBytesMax || len(strings.TrimLeft(exponent, "+-0")) > exponentDigitsMax {
			return value.String()
		}
	case []any:
		for _, item := range value {
			if number := unwieldy(item); number != "" {
				return number
			}
		}
	case map[string]any:
		for _, item := range value {
			if number := unwieldy(item); number != "" {
				return number
			}
		}
	}
	return ""
}

// measure counts what may be a subschema: objects, true and false.
func measure(value any) (objects, depth int) {
	below := func(value any) {
		o, d := measure(value)
		objects, depth = objects+o, max(depth, d+1)
	}
	switch value := value.(type) {
	case bool:
		return 1, 0
	case []any:
		for _, item := range value {
			below(item)
		}
	case map[string]any:
		objects = 1
		for _, item := range value {
			below(item)
		}
	}
	return objects, depth
}
