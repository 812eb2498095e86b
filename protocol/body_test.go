package protocol

import (
	"reflect"
	"testing"
)

// Whoever reads, keeps or lets go of bodies asks BodyOf: an event that has one
// and is not in it would be lost to all of them.
func TestBodyOfEveryEvent(t *testing.T) {
	for name, event := range newEvent {
		e := event()
		field := reflect.ValueOf(e).Elem().FieldByName("Blob")
		ref := &BlobRef{Digest: "sha256:x"}
		if field.IsValid() {
			field.Set(reflect.ValueOf(ref))
		}
		inline, blob := BodyOf(e)
		if (inline != nil) != field.IsValid() || field.IsValid() && blob != ref {
			t.Errorf("%s: a body %t, BodyOf has one %t, at %v", name, field.IsValid(), inline != nil, blob)
		}
	}
}
