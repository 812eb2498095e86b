package wirejson

import (
	"bytes"
	"encoding/json"
	"reflect"

	"github.com/go-json-experiment/json/jsontext"
)

func (s *Reader) object(sh *Shape, v reflect.Value) bool {
	if sh.defaults.IsValid() && v.IsValid() {
		v.Set(sh.defaults)
	}
	if v.IsValid() && sh.kind == kindMap {
		v.Set(reflect.MakeMap(v.Type())) // empty is not absent
	}
	var seen keys
	next := 0 // index of the expected field
	return s.Members(func(start int, raw []byte) bool {
		if f := sh.fieldFrom(next, raw[1:len(raw)-1]); f != nil {
			next = f.order + 1
			return s.field(f, v, &seen, start)
		}
		return s.member(sh, v, &seen, start, raw)
	})
}

// Members reads the next object and calls fn at the value of each member: start is the offset of
// its key, raw the key in quotes. fn reads the value.
func (s *Reader) Members(fn func(start int, raw []byte) bool) bool {
	if _, err := s.dec.ReadToken(); err != nil {
		return s.syntax(err)
	}
	for s.dec.PeekKind() != jsontext.KindEndObject {
		raw, start, ok := s.Raw()
		if !ok || !fn(start, raw) {
			return false
		}
	}
	if _, err := s.dec.ReadToken(); err != nil {
		return s.syntax(err)
	}
	return true
}

// fieldFrom returns the field of this name, if it is the next one of the shape or a later one.
// Fields usually come in the order in which they are written.
func (sh *Shape) fieldFrom(next int, name []byte) *Field {
	for _, f := range sh.order[next:] {
		if len(f.Name) == len(name) && f.Name == string(name) {
			return f
		}
	}
	return nil
}

// member reads the value of a member whose key, in quotes, is raw.
func (s *Reader) member(sh *Shape, v reflect.Value, seen *keys, start int, raw []byte) bool {
	key := raw[1 : len(raw)-1]
	if bytes.IndexByte(key, '\\') >= 0 {
		text, err := unquote(raw)
		if err != nil && !s.lenient {
			s.complain(Text, start, "has a field name with half a character in it (a lone surrogate)")
		}
		key = []byte(text)
	}
	if sh.kind == kindMap {
		return s.entry(sh, v, seen, start, s.replaceInvalidUTF8(string(key)))
	}
	if f := sh.fields[string(key)]; f != nil {
		return s.field(f, v, seen, start)
	}
	return s.unknownField(sh, v, start, key)
}

// field reads the value of a field whose key begins at start.
func (s *Reader) field(f *Field, v reflect.Value, seen *keys, start int) bool {
	if f.unwanted {
		return s.Skip()
	}
	if v.IsValid() {
		for _, i := range f.index {
			v = v.Field(i)
		}
	}
	s.path = append(s.path, segment{name: f.Name})
	if !seen.mark(f.order) && !s.lenient {
		s.complain(Malformed, start, "occurs twice")
	}
	ok := s.value(f.shape, v, true)
	s.path = s.path[:len(s.path)-1]
	return ok
}

// entry reads the value of a name in a map.
func (s *Reader) entry(sh *Shape, v reflect.Value, seen *keys, start int, key string) bool {
	s.path = append(s.path, segment{name: key})
	if v.IsValid() && v.Type() == freeType {
		return s.freeEntry(v.Interface().(map[string]json.RawMessage), start, key)
	}
	if !seen.add(key) && !s.lenient {
		s.complain(Malformed, start, "occurs twice")
	}
	var value reflect.Value
	if v.IsValid() {
		value = reflect.New(v.Type().Elem()).Elem()
	}
	ok := s.value(sh.elem, value, false)
	if ok && v.IsValid() {
		v.SetMapIndex(reflect.ValueOf(key), value)
	}
	s.path = s.path[:len(s.path)-1]
	return ok
}

var freeType = reflect.TypeFor[map[string]json.RawMessage]()

// freeEntry is entry for free data.
func (s *Reader) freeEntry(all map[string]json.RawMessage, start int, key string) bool {
	if _, there := all[key]; there && !s.lenient {
		s.complain(Malformed, start, "occurs twice")
	}
	raw, start, ok := s.Raw()
	if ok {
		all[key] = s.Keep(raw, start)
	}
	s.path = s.path[:len(s.path)-1]
	return ok
}

// unknownField reads a field that the shape does not know.
func (s *Reader) unknownField(sh *Shape, v reflect.Value, start int, key []byte) bool {
	if s.lenient {
		ok := s.Skip()
		if ok && sh.keeps && v.IsValid() {
			v.Addr().Interface().(Keeper).KeepUnknown(s.data[start:s.Offset()])
		}
		return ok
	}
	name := string(key)
	m := member{start: start}
	s.path = append(s.path, segment{name: name})
	m.err = errorf(UnknownField, s.where(), "%s (%s)", sh.unknownField(name, s.hint), s.place(start))
	ok := s.Skip()
	s.path = s.path[:len(s.path)-1]
	s.unknown = append(s.unknown, m)
	return ok
}
