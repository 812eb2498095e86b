package protocol

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// wellFormed checks all text and free data inside v, a pointer to the Go type
// that sh was made from: UTF-8 without NUL, and JSON that parses. What was
// decoded is well formed; what a program put together need not be, and Go's
// encoder would replace broken text without a word. Free data counts the levels
// around it: what passes is nested no deeper, once encoded, than a reader allows.
func wellFormed(sh *shape, v any) *Error {
	return checkValue(sh, reflect.ValueOf(v).Elem(), 0)
}

var rawType = reflect.TypeFor[json.RawMessage]()

// checkValue checks a value with so many objects and lists around it.
func checkValue(sh *shape, v reflect.Value, depth int) *Error {
	switch v.Kind() {
	case reflect.String:
		return checkString(v.String())
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return checkValue(sh, v.Elem(), depth)
	case reflect.Map:
		return checkMap(sh, v, depth+1)
	case reflect.Slice:
		if v.Type() == rawType {
			return checkRaw(v.Bytes(), depth)
		}
		for i := range v.Len() {
			if err := checkValue(sh.elem, v.Index(i), depth+1); err != nil {
				return err.below("[" + strconv.Itoa(i) + "]")
			}
		}
	case reflect.Struct:
		return checkStruct(sh, v, depth)
	}
	return nil
}

func checkStruct(sh *shape, v reflect.Value, depth int) *Error {
	if sh.kind == kindUnion {
		if v.Type() == artifactsType {
			if v.IsZero() {
				return nil
			}
			a := v.Interface().(Artifacts)
			if a.ByName != nil {
				return checkValue(sh.union[1], reflect.ValueOf(a.ByName), depth)
			}
			return checkValue(sh.union[0], reflect.ValueOf(a.List), depth)
		}
		sh = sh.union[1]
	}
	for _, f := range sh.order {
		switch f.shape.kind {
		case kindInteger, kindCount, kindNumber, kindBoolean, kindInstant:
			continue
		}
		value := v.FieldByIndex(f.index)
		if kind := value.Kind(); kind == reflect.String && value.Len() == 0 || kind == reflect.Slice && value.IsNil() {
			continue
		}
		if err := checkValue(f.shape, value, depth+1); err != nil {
			return err.below(f.name)
		}
	}
	return nil
}

func checkMap(sh *shape, v reflect.Value, depth int) *Error {
	if v.Len() == 0 {
		return nil
	}
	if all, ok := v.Interface().(map[string]json.RawMessage); ok {
		for name, raw := range all {
			err := checkString(name)
			if err == nil {
				err = checkRaw(raw, depth)
			}
			if err != nil {
				return err.below(name)
			}
		}
		return nil
	}
	for entries := v.MapRange(); entries.Next(); {
		key := entries.Key().String()
		if err := checkString(key); err != nil {
			return err.below(key)
		}
		if err := checkValue(sh.elem, entries.Value(), depth); err != nil {
			return err.below(key)
		}
	}
	return nil
}

func checkString(s string) *Error {
	if strings.IndexByte(s, 0) >= 0 {
		return Errorf(CodeText, "", "holds a NUL character")
	}
	if !utf8.ValidString(s) {
		return Errorf(CodeText, "", "holds bytes that are no UTF-8")
	}
	return nil
}

func checkRaw(raw json.RawMessage, depth int) *Error {
	if raw == nil {
		return nil
	}
	k := skimmer{data: raw}
	if end := k.value(0, min(skimDepthMax, DepthMax-depth)); end >= 0 && k.space(end) == len(raw) && !k.nul && isText(raw) {
		return nil
	}
	return checkOddRaw(raw, depth)
}

// checkOddRaw says what is wrong with free data that the skimmer does not get through.
func checkOddRaw(raw json.RawMessage, depth int) *Error {
	s := scanner{data: raw, hint: anything.hint, depth: depth}
	if s.checkText() && s.value(anything, reflect.Value{}, false) {
		s.end()
	}
	return s.err
}

// below puts a step in front of the path of an error.
func (e *Error) below(step string) *Error {
	switch {
	case e.Field == "" || e.Field[0] == '[':
		e.Field = clip(step) + e.Field
	default:
		e.Field = clip(step) + "." + e.Field
	}
	return e
}
