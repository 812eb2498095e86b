package wirejson

import (
	"reflect"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
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

// begins tells whether a value of this kind is such JSON.
func (k kind) begins(json jsontext.Kind) bool {
	switch k {
	case kindObject, kindMap:
		return json == jsontext.KindBeginObject
	case kindList:
		return json == jsontext.KindBeginArray
	case kindText, kindInstant:
		return json == jsontext.KindString
	case kindInteger, kindCount, kindNumber:
		return json == jsontext.KindNumber
	case kindBoolean:
		return json == jsontext.KindTrue || json == jsontext.KindFalse
	}
	return true
}

// Shape is what a JSON value must look like to be decoded into a Go type. Types makes
// it from the type, so the two cannot drift apart.
type Shape struct {
	kind     kind
	owner    string // what the fields are fields of, for messages
	fields   map[string]*Field
	order    []*Field
	elem     *Shape // of a list or map
	forms    []form // of a union
	choose   func(value any) (form int, part any)
	nullable bool
	direct   bool              // the Go type has code of its own to write it
	keeps    bool              // the Go type keeps the fields that the shape does not know
	defaults reflect.Value     // what a struct is before its fields are read, if not zero
	words    string            // instead of the kind's own
	hint     string            // where what has no field of its own belongs
	aliases  map[string]string // of names of fields
}

// form is one form of a union.
type form struct {
	into  Form
	shape *Shape
}

// Field is a field of an object.
type Field struct {
	Name string
	Head string // the name in quotes, and a colon

	order    int   // among the fields of its object
	index    []int // in the Go struct
	shape    *Shape
	unwanted bool // it is read over

	omit       omission
	knowsZero  bool // its type says by itself whether it is zero
	defaultsTo reflect.Value
}

// Field returns the field of this name, or nil.
func (sh *Shape) Field(name string) *Field { return sh.fields[name] }

// FieldAt returns a field by its place among the fields of the object.
func (sh *Shape) FieldAt(order int) *Field { return sh.order[order] }

// Hinting sets where what has no field of its own belongs, for messages.
func (sh *Shape) Hinting(hint string) *Shape {
	sh.hint = hint
	return sh
}

// Only is the shape with these fields alone. The others are read over. It panics at a
// name that does not exist.
func (sh *Shape) Only(names ...string) *Shape {
	for _, name := range names {
		if sh.fields[name] == nil {
			panic("wirejson: a " + sh.owner + " has no field " + name)
		}
	}
	return sh.wanting(func(name string) bool { return slices.Contains(names, name) })
}

// Without is the shape without these fields, which are read over.
func (sh *Shape) Without(names ...string) *Shape {
	return sh.wanting(func(name string) bool { return !slices.Contains(names, name) })
}

func (sh *Shape) wanting(wanted func(name string) bool) *Shape {
	less := *sh
	less.keeps = false
	less.fields, less.order = map[string]*Field{}, make([]*Field, len(sh.order))
	for i, f := range sh.order {
		own := *f
		own.unwanted = !wanted(f.Name)
		less.fields[f.Name], less.order[i] = &own, &own
	}
	return &less
}

// wants says in words what the shape accepts.
func (sh *Shape) wants() string {
	if sh.words != "" {
		return sh.words
	}
	return [...]string{kindAny: "any JSON", kindObject: "an object", kindMap: "an object", kindList: "a list",
		kindText: "text in quotes", kindInteger: "a whole number", kindCount: "a whole number", kindNumber: "a number", kindBoolean: "true or false",
		kindInstant: "an instant", kindUnion: "one of its forms"}[sh.kind]
}
