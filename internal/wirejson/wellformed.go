package wirejson

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// WellFormed checks all text and free data inside v, a pointer to the Go type of sh: UTF-8 without
// NUL, and valid JSON. Decoded values are well formed, but a value that a program built may not be,
// and Go's encoder would silently replace invalid text. Free data includes the levels around it:
// accepted data is nested no deeper, once encoded, than a reader allows.
func WellFormed(sh *Shape, v any) *Error {
	return checkValue(sh, reflect.ValueOf(v).Elem(), 0)
}

// checkValue checks a value with so many objects and lists around it.
func checkValue(sh *Shape, v reflect.Value, depth int) *Error {
	switch v.Kind() {
	case reflect.String:
		return CheckText(v.String())
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return checkValue(sh, v.Elem(), depth)
	case reflect.Map:
		return checkMap(sh, v, depth+1)
	case reflect.Slice:
		if v.Type() == rawType {
			return CheckRaw(v.Bytes(), depth)
		}
		for i := range v.Len() {
			if err := checkValue(sh.elem, v.Index(i), depth+1); err != nil {
				return err.Below("[" + strconv.Itoa(i) + "]")
			}
		}
	case reflect.Struct:
		return checkStruct(sh, v, depth)
	}
	return nil
}

func checkStruct(sh *Shape, v reflect.Value, depth int) *Error {
	if sh.kind == kindUnion {
		if v.IsZero() {
			return nil
		}
		if sh, v = sh.chosen(v); v.Kind() != reflect.Struct {
			return checkValue(sh, v, depth)
		}
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
			return err.Below(f.Name)
		}
	}
	return nil
}

func checkMap(sh *Shape, v reflect.Value, depth int) *Error {
	if v.Len() == 0 {
		return nil
	}
	if all, ok := v.Interface().(map[string]json.RawMessage); ok {
		for name, raw := range all {
			err := CheckText(name)
			if err == nil {
				err = CheckRaw(raw, depth)
			}
			if err != nil {
				return err.Below(name)
			}
		}
		return nil
	}
	for entries := v.MapRange(); entries.Next(); {
		key := entries.Key().String()
		if err := CheckText(key); err != nil {
			return err.Below(key)
		}
		if err := checkValue(sh.elem, entries.Value(), depth); err != nil {
			return err.Below(key)
		}
	}
	return nil
}

// CheckText checks that a text is UTF-8 without NUL.
func CheckText(s string) *Error {
	if strings.IndexByte(s, 0) >= 0 {
		return errorf(Text, "", "holds a NUL character")
	}
	if !utf8.ValidString(s) {
		return errorf(Text, "", "holds bytes that are no UTF-8")
	}
	return nil
}

// CheckRaw checks free data with so many objects and lists around it.
func CheckRaw(raw json.RawMessage, depth int) *Error {
	if raw == nil {
		return nil
	}
	s := NewReader(raw)
	defer s.Free()
	s.depth, s.outer = depth, depth
	s.Read(anything, nil)
	return s.Err
}

// CheckJSON checks that a body is one JSON value with valid text.
func CheckJSON(body []byte) *Error {
	s := NewReader(body)
	defer s.Free()
	s.Read(anything, nil)
	return s.Err
}
