package protocol

import (
	"encoding/json"
	"reflect"
	"strings"
	"time"
)

// kind is what JSON a field of ours may hold.
type kind int

const (
	kindAny     kind = iota // free data, kept as it came
	kindObject              // fields of ours
	kindMap                 // names of the sender's choice
	kindList                //
	kindText                //
	kindInteger             //
	kindCount               // not negative
	kindNumber              //
	kindBoolean             //
	kindInstant             // text in RFC 3339
	kindUnion               // one of several shapes, told apart by their first character
)

// begins tells whether a value of this kind may begin with c.
func (k kind) begins(c byte) bool {
	switch k {
	case kindObject, kindMap:
		return c == '{'
	case kindList:
		return c == '['
	case kindText, kindInstant:
		return c == '"'
	case kindInteger, kindCount, kindNumber:
		return c == '-' || c >= '0' && c <= '9'
	case kindBoolean:
		return c == 't' || c == 'f'
	}
	return true
}

// shape is what a JSON value must look like to be decoded into a Go type. It is
// made once from the type, so the two cannot drift apart.
type shape struct {
	kind     kind
	owner    string // what the fields are fields of, for messages
	fields   map[string]*field
	order    []*field
	elem     *shape // of a list or map
	union    []*shape
	nullable bool
	direct   bool          // the Go type has code of its own to write and read it
	usual    reflect.Value // what a struct is before its fields are read, if not zero
	words    string        // instead of the kind's own
	hint     string        // where what has no field of its own belongs
}

func (sh *shape) hinting(hint string) *shape {
	sh.hint = hint
	return sh
}

type field struct {
	name  string
	order int   // among the fields of its object
	index []int // in the Go struct
	shape *shape
	// unwanted: it is read over.
	unwanted bool

	// To write it.
	head  string // its name in quotes, and a colon
	omit  omission
	tells bool // its type says by itself whether it is zero
	usual reflect.Value
}

// newField is a field with the name and the options of its tag.
func newField(f reflect.StructField, order int) *field {
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	known := &field{name: name, order: order, index: f.Index, shape: shapeOf(f.Type), head: `"` + name + `":`}
	switch options {
	case "omitempty":
		known.omit = omitEmpty
	case "omitzero":
		known.omit = omitZero
		known.tells = reflect.PointerTo(f.Type).Implements(reflect.TypeFor[zeroer]())
	case "":
	default:
		panic("protocol: no way to write " + options + " of " + name)
	}
	return known
}

var (
	anything       = &shape{kind: kindAny}
	artifactsType  = reflect.TypeFor[Artifacts]()
	capabilityType = reflect.TypeFor[Capability]()
	policyType     = reflect.TypeFor[Policy]()
	packageShape   = shapeOf(reflect.TypeFor[Package]()).hinting("free data goes into context.metadata")
	resultShape    = shapeOf(reflect.TypeFor[Result]()).hinting("free data goes into body")
	policyShape    = shapeOf(policyType)
	ackShape       = shapeOf(reflect.TypeFor[Ack]())
	answerShape    = shapeOf(reflect.TypeFor[Answer]())
	profileShape   = shapeOf(reflect.TypeFor[Profile]())
	progressShape  = shapeOf(reflect.TypeFor[Progress]())
	gotoShape      = shapeOf(reflect.TypeFor[Goto]())
)

func shapeOf(t reflect.Type) *shape {
	switch t {
	case reflect.TypeFor[json.RawMessage]():
		return anything
	case reflect.TypeFor[time.Time]():
		return &shape{kind: kindInstant, words: "an instant in RFC 3339, such as 2026-01-31T17:00:00Z"}
	case artifactsType:
		paths := &shape{kind: kindMap, elem: &shape{kind: kindText, nullable: true}}
		return &shape{kind: kindUnion, words: "a list of artifacts, or an object of name to path",
			union: []*shape{{kind: kindList, elem: structShape(reflect.TypeFor[Artifact]())}, paths}}
	case reflect.TypeFor[RequiredCapability](), capabilityType:
		return &shape{kind: kindUnion, words: "the id of a capability, or an object with id",
			union: []*shape{{kind: kindText}, structShape(t)}}
	case reflect.TypeFor[FileReference]():
		return &shape{kind: kindUnion, words: "a path, or an object with path and sections",
			union: []*shape{{kind: kindText}, structShape(t)}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return shapeOf(t.Elem())
	case reflect.Struct:
		return structShape(t)
	case reflect.Slice:
		return &shape{kind: kindList, elem: shapeOf(t.Elem())}
	case reflect.Map:
		return &shape{kind: kindMap, elem: shapeOf(t.Elem())}
	case reflect.String:
		return &shape{kind: kindText}
	case reflect.Int, reflect.Int64:
		return &shape{kind: kindInteger}
	case reflect.Uint64:
		return &shape{kind: kindCount}
	case reflect.Float64:
		return &shape{kind: kindNumber}
	case reflect.Bool:
		return &shape{kind: kindBoolean}
	}
	panic("protocol: no shape for " + t.String())
}

func structShape(t reflect.Type) *shape {
	sh := &shape{kind: kindObject, fields: map[string]*field{}, owner: ownerName(t), direct: reflect.PointerTo(t).Implements(directType)}
	for _, f := range reflect.VisibleFields(t) {
		if f.Anonymous || f.Tag.Get("json") == "-" { // what is embedded has its fields here
			continue
		}
		known := newField(f, len(sh.order))
		if t == policyType { // only what is not the default stands in a record
			sh.usual = reflect.ValueOf(usualPolicy)
			known.omit, known.usual = omitUsual, sh.usual.FieldByIndex(f.Index)
		}
		sh.fields[known.name], sh.order = known, append(sh.order, known)
	}
	if t == reflect.TypeFor[Target]() {
		sh.words = `an object: {"agent": NAME}, {"capability": NAME} or {"agents": [NAMES]}`
	}
	return sh
}

// ownerName turns ReturnProtocol into "return protocol".
func ownerName(t reflect.Type) string {
	return strings.ReplaceAll(snake(t.Name()), "_", " ")
}

// wants says in words what the shape accepts.
func (sh *shape) wants() string {
	if sh.words != "" {
		return sh.words
	}
	return [...]string{kindAny: "any JSON", kindObject: "an object", kindMap: "an object", kindList: "a list",
		kindText: "text in quotes", kindInteger: "a whole number", kindCount: "a whole number", kindNumber: "a number", kindBoolean: "true or false",
		kindInstant: "an instant", kindUnion: "one of its forms"}[sh.kind]
}

// elsewhere are names that the five documents and the command line use for
// fields of ours.
var elsewhere = map[string]string{
	"from_agent": "source", "from_agent_id": "source", "source_agent": "source", "from": "source",
	"to_agent": "target.agent", "to_agent_id": "target.agent", "target_agent": "target.agent", "to": "target.agent",
	"session_id": "context.conversation_id", "harness_trace_id": "context.trace_id",
	"context_variables": "context.variables", "completed_work": "context.intermediate_results",
	"return_protocol": "return", "timeout": "expectations.timeout_ms", "output_format": "expectations.output_schema",
	"file_references": "context.relevant_files", "relevant_sections": "sections", "decisions_made": "context.decisions",
	"timestamp": "created_at", "max_execution_time": "max_execution_time_ms", "protocol_version": "version",
	"alternative": "suggested_alternative", "retry_after": "retry_after_ms", "estimate": "estimated_completion_ms",
	"estimated_completion": "estimated_completion_ms", "set": "variables",
	"agent_id": "id", "agent_name": "name", "needs_more_context": "needs_context", "completed_steps": "context.completed_steps",
}

// unknownField says what is wrong with a field that sh does not know, and
// where its content may belong.
func (sh *shape) unknownField(key, hint string) string {
	message := "is no field of a " + sh.owner
	if strings.ContainsAny(sh.owner[:1], "aeio") {
		message = "is no field of an " + sh.owner
	}
	if path := sh.suggest(snake(key)); path != "" && path != key {
		return message + "; did you mean " + path + "?"
	}
	if hint != "" {
		return message + "; " + hint
	}
	return message
}

// suggest finds the field of sh, or below it, that was probably meant.
func (sh *shape) suggest(name string) string {
	if sh.fields[name] != nil {
		return name
	}
	if path := elsewhere[name]; path != "" && sh.fields[strings.Split(path, ".")[0]] != nil {
		return path
	}
	for _, f := range sh.order {
		if len(name) > 3 && near(f.name, name) {
			return f.name
		}
	}
	for _, f := range sh.order {
		if f.shape.kind == kindObject && f.shape.fields[name] != nil {
			return f.name + "." + name
		}
	}
	return ""
}

// near tells whether one insertion, deletion or exchange makes b of a.
func near(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	if len(b)-len(a) > 1 {
		return false
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	if len(a) < len(b) {
		return a[i:] == b[i+1:]
	}
	return i == len(a) || a[i+1:] == b[i+1:]
}

// snake turns conversationId and ConversationID into conversation_id.
func snake(name string) string {
	var b strings.Builder
	upper := func(i int) bool { return i >= 0 && i < len(name) && name[i] >= 'A' && name[i] <= 'Z' }
	for i := range len(name) {
		c := name[i]
		if upper(i) {
			if i > 0 && name[i-1] != '_' && (!upper(i-1) || i+1 < len(name) && !upper(i+1)) {
				b.WriteByte('_')
			}
			c |= 0x20
		}
		b.WriteByte(c)
	}
	return b.String()
}
