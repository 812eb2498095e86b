package protocol

import "encoding/json"

// UnknownEvent is an event of a newer minor version. What it means stands in the state
// after it; it cannot be applied.
type UnknownEvent struct {
	Meta
	Type EventType
	Raw  json.RawMessage // all of it
}

// EventType returns the type, which this version does not know.
func (e *UnknownEvent) EventType() EventType { return e.Type }

// BlobRef points at a body in the object store.
type BlobRef struct {
	Digest string `json:"digest"` // "sha256:" and 64 hex digits
	Size   int64  `json:"size"`   // bytes
}

// BodyOf is where an event keeps a package or a result: in itself, or as a
// reference to the object store. Both are nil for an event that never has any.
func BodyOf(e Event) (inline *json.RawMessage, blob *BlobRef) {
	switch e := e.(type) {
	case *Submitted:
		return &e.Package, e.Blob
	case *HandedOff:
		return &e.Package, e.Blob
	case *Completed:
		return &e.Result, e.Blob
	case *Failed:
		return &e.Result, e.Blob
	case *ResultParked:
		return &e.Result, e.Blob
	case *RolledBack:
		return &e.Result, e.Blob
	}
	return nil, nil
}
