package protocol

import (
	"encoding/json"
	"slices"
)

// EncodePackage writes a package as it is stored and handed over: compact,
// without escaping <, > and &, the fields of Extra behind those we know. Free
// data that is no JSON is a *protocol.Error with CodeMalformed.
func EncodePackage(p Package) (json.RawMessage, error) {
	w := writers.Get().(*writer)
	defer w.free()
	w.pkg = p
	err := w.object(packageShape, &w.pkg)
	w.pkg = Package{}
	if err != nil {
		return nil, err.below("package")
	}
	if len(p.Extra) > 0 {
		w.buf = w.buf[:len(w.buf)-1]
		if err := w.extra(p.Extra); err != nil {
			return nil, err
		}
		w.raw("}")
	}
	return w.written(), nil
}

// extra writes the fields of a newer version behind those of ours.
func (w *writer) extra(extra map[string]json.RawMessage) *Error {
	names := make([]string, 0, len(extra))
	for name := range extra {
		if packageShape.fields[name] == nil { // else the field itself stands there already
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		w.raw(",")
		w.text(name)
		w.raw(":")
		if err := w.freeData(extra[name]); err != nil {
			return err.below(name)
		}
	}
	return nil
}

// MarshalJSON is EncodePackage, so that a package inside something else keeps
// its Extra.
func (p Package) MarshalJSON() ([]byte, error) { return EncodePackage(p) }

// EncodeResult writes a result as it is stored.
func EncodeResult(r Result) (json.RawMessage, error) {
	w := writers.Get().(*writer)
	defer w.free()
	if err := w.object(resultShape, &r); err != nil {
		return nil, err.below("result")
	}
	return w.written(), nil
}
