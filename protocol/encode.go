package protocol

import (
	"encoding/json"
	"slices"
)

// EncodePackage writes a package as it is stored and handed over: compact,
// without escaping <, > and &, the fields of Extra behind those we know. Free
// data that is no JSON is a *protocol.Error with CodeMalformed.
func EncodePackage(p Package) (json.RawMessage, error) {
	body, err := marshal((*plainPackage)(&p))
	if err != nil {
		return nil, Errorf(CodeMalformed, "package", "cannot be written: %v", err)
	}
	if len(p.Extra) == 0 {
		return body, nil
	}
	names := make([]string, 0, len(p.Extra))
	for name := range p.Extra {
		if packageShape.fields[name] == nil { // else the field itself stands there already
			names = append(names, name)
		}
	}
	slices.Sort(names)
	body = body[:len(body)-1]
	for _, name := range names {
		body = append(body, ',')
		if body, err = appendJSON(body, name); err != nil {
			return nil, Errorf(CodeMalformed, name, "cannot be written: %v", err)
		}
		body = append(body, ':')
		if body, err = appendJSON(body, p.Extra[name]); err != nil {
			return nil, Errorf(CodeMalformed, name, "cannot be written: %v", err)
		}
	}
	return append(body, '}'), nil
}

// MarshalJSON is EncodePackage, so that a package inside something else keeps
// its Extra.
func (p Package) MarshalJSON() ([]byte, error) { return EncodePackage(p) }

// EncodeResult writes a result as it is stored.
func EncodeResult(r Result) (json.RawMessage, error) {
	body, err := marshal(&r)
	if err != nil {
		return nil, Errorf(CodeMalformed, "result", "cannot be written: %v", err)
	}
	return body, nil
}
