package wirejson_test

import (
	"bytes"
	"flag"
	"os"
	"reflect"
	"testing"

	. "github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/internal/wirejson"
)

//go:generate go test -run TestDirect -update .

var rewrite = flag.Bool("update", false, "write the code for the types of directTypes")

// directTypes are the types that every handoff writes.
var directTypes = []any{State{}, Policy{}, PolicyOverrides{}, Target{}, TraceContext{},
	Submitted{}, Offered{}, Accepted{}, Started{}, Completed{},
	Package{}, Task{}, Context{}, Decision{}, Constraints{}, Expectations{}, Audit{}, Result{}, Usage{}, Used{}, AttemptUsage{}, UsedBy{}, Summary{}}

// TestDirect: the code for these types is what is made of them.
func TestDirect(t *testing.T) {
	const file = "../../direct_write.go"
	var all []reflect.Type
	for _, v := range directTypes {
		all = append(all, reflect.TypeOf(v))
	}
	want, err := wirejson.GenerateWriters("protocol", all, ShapeOf, func(t reflect.Type, field string) bool {
		_, isEvent := reflect.New(t).Interface().(Event)
		return isEvent && (field == "package" || field == "result")
	})
	if err != nil {
		t.Fatal(err)
	}
	if *rewrite {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not up to date (%v); go generate ./protocol/internal/wirejson", file, err)
	}
}
