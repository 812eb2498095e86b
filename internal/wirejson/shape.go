package wirejson

import (
	"reflect"
	"slices"
	"unsafe"

	"github.com/go-json-experiment/json/jsontext"
)

// kind is the kind of JSON that a field may hold.
type kind int

const (
	kindAny     kind = iota // free data, unchanged
	kindObject              // known fields
	kindMap                 // names of the sender's choice
	kindList                //
	kindText                //
	kindInteger             //
	kindCount               // not negative
	kindNumber              //
	kindBoolean             //
	kindInstant             // text in RFC 3339
	kindUnion               // one of several shapes, distinguished by their first character
)

// begins reports whether a value of this kind may begin with such JSON.
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

// Shape describes the JSON of a Go type. Types derives it from the type, so the two cannot drift
// apart.
type Shape struct {
	kind     kind
	of       reflect.Type // of a struct
	owner    string       // the object of the fields, for messages
	fields   map[string]*Field
	order    []*Field
	elem     *Shape // of a list or map
	forms    []form // of a union
	choose   func(value any) (form int, part any)
	nullable bool
	keeps    bool              // the Go type keeps unknown fields
	defaults reflect.Value     // a struct's value before its fields are read, if not zero
	words    string            // instead of the kind's own
	hint     string            // the place of unknown fields, for messages
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
	unwanted bool // it is skipped

	of        reflect.Type
	offset    uintptr // in the Go struct
	omit      omission
	knowsZero bool           // its type has IsZero
	usual     unsafe.Pointer // the value that is omitted, of the type of the field
}

// Field returns the field of this name, or nil.
func (sh *Shape) Field(name string) *Field { return sh.fields[name] }

// Only returns the shape with only these fields; others are skipped. It panics at a name that does
// not exist.
func (sh *Shape) Only(names ...string) *Shape {
	for _, name := range names {
		if sh.fields[name] == nil {
			panic("wirejson: a " + sh.owner + " has no field " + name)
		}
	}
	return sh.wanting(func(name string) bool { return slices.Contains(names, name) })
}

// Without returns the shape without these fields, which are skipped.
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

// wants describes the accepted values.
func (sh *Shape) wants() string {
	if sh.words != "" {
		return sh.words
	}
	return [...]string{kindAny: "any JSON", kindObject: "an object", kindMap: "an object", kindList: "a list",
		kindText: "text in quotes", kindInteger: "a whole number", kindCount: "a whole number", kindNumber: "a number", kindBoolean: "true or false",
		kindInstant: "an instant", kindUnion: "one of its forms"}[sh.kind]
}
