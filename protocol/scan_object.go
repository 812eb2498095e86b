package protocol

import (
	"encoding/json"
	"reflect"
)

func (s *scanner) object(sh *shape, v reflect.Value) bool {
	if sh.kind == kindObject {
		if sh.usual.IsValid() && v.IsValid() {
			v.Set(sh.usual)
		}
		return s.known(sh, v)
	}
	var seen keys
	if v.IsValid() && sh.kind == kindMap {
		v.Set(reflect.MakeMap(v.Type())) // empty is not absent
	}
	return s.members(func(start int, raw []byte, escaped bool) bool {
		return s.member(sh, v, &seen, start, raw, escaped)
	})
}

// members reads an object behind its brace and calls fn at the value of each
// member: start is where its key begins, raw the key in quotes. fn reads the value.
func (s *scanner) members(fn func(start int, raw []byte, escaped bool) bool) bool {
	if s.empty('}') {
		return true
	}
	for {
		start, escaped, ok := s.key()
		if !ok || !fn(start, s.name(start), escaped) {
			return false
		}
		if more, ok := s.next('}'); !ok || !more {
			return ok
		}
	}
}

// key reads the name of a member, which begins at start, and its colon.
func (s *scanner) key() (start int, escaped, ok bool) {
	s.space()
	if start = s.pos; start >= len(s.data) {
		return start, false, s.malformed("the JSON ends too early")
	}
	if s.data[start] != '"' {
		return start, false, s.malformed("expected the name of a field in quotes, found %s", s.found())
	}
	if escaped, ok = s.text(); !ok {
		return start, escaped, false
	}
	s.keyEnd = s.pos
	s.space()
	if s.pos >= len(s.data) || s.data[s.pos] != ':' {
		return start, escaped, s.malformed("expected ':' after the name of a field")
	}
	s.pos++
	return start, escaped, true
}

// name is the key that was just read, in quotes.
func (s *scanner) name(start int) []byte { return s.data[start:s.keyEnd] }

// known reads an object with fields of ours behind its brace. They come in the
// order that we write them in, as a rule: each is looked for behind the one before.
func (s *scanner) known(sh *shape, v reflect.Value) bool {
	if s.empty('}') {
		return true
	}
	var seen keys
	var d direct // v, if it has code of its own
	if sh.direct && v.IsValid() {
		d = v.Addr().Interface().(direct)
	}
	next := 0
	for {
		s.space()
		var ok bool
		if f := sh.expected(s.data[s.pos:], next); f != nil {
			start := s.pos
			next, s.pos = f.order+1, start+len(f.head)
			ok = s.field(f, v, d, &seen, start)
		} else {
			start, escaped, isKey := s.key()
			ok = isKey && s.member(sh, v, &seen, start, s.name(start), escaped)
		}
		if !ok {
			return false
		}
		if more, ok := s.next('}'); !ok || !more {
			return ok
		}
	}
}

// expected is the field, from the next one on, whose name and colon text begins with.
func (sh *shape) expected(text []byte, next int) *field {
	if len(text) < 2 {
		return nil
	}
	for _, f := range sh.order[next:] {
		if f.head[1] == text[1] && len(text) > len(f.head) && string(text[:len(f.head)]) == f.head {
			return f
		}
	}
	return nil
}

// member reads the value of a field whose key, in quotes, is raw.
func (s *scanner) member(sh *shape, v reflect.Value, seen *keys, start int, raw []byte, escaped bool) bool {
	if sh.kind != kindObject && sh.kind != kindMap {
		return s.value(anything, reflect.Value{}, true)
	}
	key := raw[1 : len(raw)-1]
	if escaped {
		if halfCharacter(raw) && !s.lenient {
			s.complain(CodeText, start, "has a field name with half a character in it (a lone surrogate)")
		}
		key = []byte(unquote(raw))
	}
	if sh.kind == kindMap {
		return s.entry(sh, v, seen, start, s.mend(string(key)))
	}
	f := sh.fields[string(key)]
	if f == nil {
		return s.stranger(sh, v, start, key)
	}
	return s.field(f, v, nil, seen, start)
}

// field reads the value of a field of ours, whose key begins at start.
func (s *scanner) field(f *field, v reflect.Value, d direct, seen *keys, start int) bool {
	if f.unwanted {
		return s.value(anything, reflect.Value{}, true)
	}
	fresh := seen.mark(f.order) || s.lenient
	if v.IsValid() {
		s.space()
		if fresh && d != nil && d.read(s, f.order) {
			return true
		}
		if v = v.FieldByIndex(f.index); fresh && d == nil && s.leaf(f.shape, v) {
			return true
		}
	}
	s.path = append(s.path, segment{name: f.name})
	if !fresh {
		s.complain(CodeMalformed, start, "is there twice")
	}
	ok := s.value(f.shape, v, true)
	s.path = s.path[:len(s.path)-1]
	return ok
}

// entry reads the value of a name in free data.
func (s *scanner) entry(sh *shape, v reflect.Value, seen *keys, start int, key string) bool {
	s.path = append(s.path, segment{name: key})
	if v.IsValid() && v.Type() == freeType {
		return s.freeEntry(v.Interface().(map[string]json.RawMessage), sh, start, key)
	}
	if !seen.add(key) && !s.lenient {
		s.complain(CodeMalformed, start, "is there twice")
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

// freeEntry is entry for free data under its name.
func (s *scanner) freeEntry(all map[string]json.RawMessage, sh *shape, start int, key string) bool {
	if _, there := all[key]; there && !s.lenient {
		s.complain(CodeMalformed, start, "is there twice")
	}
	s.space()
	start = s.pos
	ok := s.value(sh.elem, reflect.Value{}, false)
	if ok {
		all[key] = s.keep(start)
	}
	s.path = s.path[:len(s.path)-1]
	return ok
}

// stranger reads a field that the shape does not know.
func (s *scanner) stranger(sh *shape, v reflect.Value, start int, key []byte) bool {
	if s.lenient {
		ok := s.value(anything, reflect.Value{}, true)
		if ok && sh == stateShape && v.IsValid() {
			v.Addr().Interface().(*State).carry(s.data[start:s.pos])
		}
		return ok
	}
	name := string(key)
	m := member{start: start}
	s.path = append(s.path, segment{name: name})
	m.err = Errorf(CodeUnknownField, s.where(), "%s (%s)", sh.unknownField(name, s.hint), s.place(start))
	ok := s.value(anything, reflect.Value{}, true)
	s.path = s.path[:len(s.path)-1]
	s.unknown = append(s.unknown, m)
	return ok
}
