package wirejson

import (
	"encoding/json"
	"reflect"
	"strings"
	"time"
)

// Types makes shapes, from Go types and the additions in its fields.
type Types struct {
	// Unions lists the types that have several forms in JSON.
	Unions map[reflect.Type]Union
	// Defaults lists structs of which only the differences are written.
	Defaults map[reflect.Type]any
	// Words describes types in messages, instead of their kind.
	Words map[reflect.Type]string
	// Hints are the places of unknown fields, for messages.
	Hints map[reflect.Type]string
	// Aliases maps other names of fields to the paths that were meant.
	Aliases map[string]string
}

// Union is a type with several forms in JSON, distinguished by their first character.
type Union struct {
	Words string
	Forms []Form
	// Default is the value before it is read, if not zero.
	Default any
	// Choose returns the form in which a value is written, and a pointer to the written part. Without
	// it a value is written in its last form.
	Choose func(value any) (form int, part any)
}

// Form is one form of a union: the index of the struct's field for its value, or Whole.
type Form int

// Whole is the form whose value is the struct itself.
const Whole Form = -1

// keeper is a type that keeps unknown fields unchanged: name, colon and value.
type keeper interface{ KeepUnknown(field []byte) }

// Of returns the shape of a type.
func (ts *Types) Of(t reflect.Type) *Shape {
	if union, ok := ts.Unions[t]; ok {
		return ts.union(t, union)
	}
	switch t {
	case rawType:
		return anything
	case reflect.TypeFor[time.Time]():
		return &Shape{kind: kindInstant, words: "an instant in RFC 3339, such as 2026-01-31T17:00:00Z"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return ts.Of(t.Elem())
	case reflect.Struct:
		return ts.structure(t)
	case reflect.Slice:
		return &Shape{kind: kindList, elem: ts.Of(t.Elem())}
	case reflect.Map:
		elem := *ts.Of(t.Elem())
		elem.nullable = t.Elem().Kind() == reflect.Pointer
		return &Shape{kind: kindMap, elem: &elem}
	}
	if kind, ok := scalarKinds[t.Kind()]; ok {
		return &Shape{kind: kind}
	}
	panic("wirejson: no shape for " + t.String())
}

var scalarKinds = map[reflect.Kind]kind{reflect.String: kindText, reflect.Int: kindInteger, reflect.Int64: kindInteger,
	reflect.Uint64: kindCount, reflect.Float64: kindNumber, reflect.Bool: kindBoolean}

var (
	anything = &Shape{kind: kindAny}
	rawType  = reflect.TypeFor[json.RawMessage]()
)

func (ts *Types) union(t reflect.Type, union Union) *Shape {
	sh := &Shape{kind: kindUnion, words: union.Words, choose: union.Choose}
	for _, f := range union.Forms {
		part := form{into: f}
		if f == Whole {
			part.shape = ts.structure(t)
		} else {
			part.shape = ts.Of(t.Field(int(f)).Type)
		}
		sh.forms = append(sh.forms, part)
	}
	if union.Default != nil {
		sh.defaults = reflect.ValueOf(union.Default)
	}
	return sh
}

func (ts *Types) structure(t reflect.Type) *Shape {
	pointer := reflect.PointerTo(t)
	sh := &Shape{kind: kindObject, of: t, fields: map[string]*Field{}, owner: ownerName(t), words: ts.Words[t], hint: ts.Hints[t], aliases: ts.Aliases,
		keeps: pointer.Implements(reflect.TypeFor[keeper]())}
	usual := reflect.New(t)
	if defaults := ts.Defaults[t]; defaults != nil {
		sh.defaults = reflect.ValueOf(defaults)
		usual.Elem().Set(sh.defaults)
	}
	for _, f := range reflect.VisibleFields(t) {
		if f.Anonymous || f.Tag.Get("json") == "-" { // embedded structs have their fields here
			continue
		}
		made, at := ts.field(f, len(sh.order)), usual.Elem().FieldByIndex(f.Index).Addr()
		made.offset = uintptr(at.UnsafePointer()) - uintptr(usual.UnsafePointer())
		if sh.defaults.IsValid() {
			made.omit, made.usual = omitDefault, at.UnsafePointer()
		}
		sh.fields[made.Name], sh.order = made, append(sh.order, made)
	}
	return sh
}

// field returns a field with the name and the options of its tag.
func (ts *Types) field(f reflect.StructField, order int) *Field {
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	made := &Field{Name: name, Head: `"` + name + `":`, order: order, index: f.Index, of: f.Type, shape: ts.Of(f.Type)}
	switch options {
	case "omitempty":
		made.omit = omitEmpty
	case "omitzero":
		made.omit = omitZero
		made.knowsZero = reflect.PointerTo(f.Type).Implements(reflect.TypeFor[zeroer]())
	case "":
	default:
		panic("wirejson: no way to write " + options + " of " + name)
	}
	return made
}

// ownerName turns ReturnProtocol into "return protocol", and PolicyOverrides into "policy".
func ownerName(t reflect.Type) string {
	return strings.TrimSuffix(strings.ReplaceAll(snake(t.Name()), "_", " "), " overrides")
}
