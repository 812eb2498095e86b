package protocol

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"

	"github.com/agenthandoff/handoff/protocol/internal/wirejson"
)

// Marshal writes JSON of any kind, as Go's own encoder does but without escaping
// <, > and &: bodies are for programs and people, not for HTML.
func Marshal(v any) ([]byte, error) { return wirejson.Marshal(v) }

// packageWriter is a writer and the package that it writes: what reflection is shown
// lies on the heap, here rather than anew each time.
type packageWriter struct {
	wirejson.Writer
	pkg Package
}

var packageWriters = sync.Pool{New: func() any { return new(packageWriter) }}

// EncodePackage writes a package as it is stored and handed off: compact,
// without escaping <, > and &, the fields of Extra behind those we know. Free
// data that is no JSON is a *protocol.Error with CodeMalformed.
func EncodePackage(p Package) (json.RawMessage, error) {
	w := packageWriters.Get().(*packageWriter)
	defer packageWriters.Put(w)
	defer w.Reset()
	w.pkg = p
	err := w.Object(packageShape, &w.pkg)
	w.pkg = Package{}
	if err == nil && len(p.Extra) > 0 {
		w.Reopen()
		err = writeExtra(&w.Writer, p.Extra)
		w.Raw("}")
	}
	if err != nil {
		return nil, WireError(err.Below("package"))
	}
	return w.Written(), nil
}

// writeExtra writes the fields of a newer version behind those of ours.
func writeExtra(w *wirejson.Writer, extra map[string]json.RawMessage) *wirejson.Error {
	for _, name := range slices.Sorted(maps.Keys(extra)) {
		if packageShape.Field(name) != nil { // it stands there already
			continue
		}
		w.Raw(",")
		w.Text(name)
		w.Raw(":")
		if err := w.FreeData(extra[name]); err != nil {
			return err.Below(name)
		}
	}
	return nil
}

// MarshalJSON is EncodePackage, so that a package inside something else keeps
// its Extra.
func (p Package) MarshalJSON() ([]byte, error) { return EncodePackage(p) }

// EncodeResult writes a result as it is stored.
func EncodeResult(r Result) (json.RawMessage, error) {
	w := wirejson.NewWriter()
	defer w.Free()
	if err := w.Object(resultShape, &r); err != nil {
		return nil, WireError(err.Below("result"))
	}
	return w.Written(), nil
}
