package broker_test

import (
	"reflect"
	"testing"

	"github.com/agenthandoff/handoff/broker"
)

// partMethodsMax bounds the methods of each part of an engine.
const partMethodsMax = 10

// An engine is small parts, and a Broker hands out none of them: an append that the core has
// not decided has no way in.
func TestPartsOfAnEngine(t *testing.T) {
	total := 0
	for _, part := range []reflect.Type{
		reflect.TypeFor[broker.Clock](), reflect.TypeFor[broker.Ledger](), reflect.TypeFor[broker.Queue](), reflect.TypeFor[broker.Timers](),
		reflect.TypeFor[broker.Directory](), reflect.TypeFor[broker.Healths](), reflect.TypeFor[broker.KeyUses](), reflect.TypeFor[broker.Workspaces](), reflect.TypeFor[broker.Settings](), reflect.TypeFor[broker.Records](), reflect.TypeFor[broker.Signals](), reflect.TypeFor[broker.Blobs](), reflect.TypeFor[broker.Bus](),
	} {
		if total += part.NumMethod(); part.NumMethod() > partMethodsMax {
			t.Errorf("%v has %d methods, at most %d are allowed", part, part.NumMethod(), partMethodsMax)
		}
	}
	if all := reflect.TypeFor[broker.Engine]().NumMethod(); total != all {
		t.Errorf("the parts have %d methods, and an engine has %d", total, all)
	}
	for f := range reflect.TypeFor[broker.Broker]().Fields() {
		if f.IsExported() || f.Anonymous && f.Name != "parts" {
			t.Errorf("Broker has the field %s, which its callers reach", f.Name)
		}
	}
	for _, name := range []string{"Append", "Follow", "Due", "Departures", "PutOffer", "RemoveOffer", "Arm", "PutSlots", "PutHealth", "PutKeyUse", "PutRecord", "PutSignal", "PullSignals", "PutBlob", "Serve"} {
		if _, has := reflect.TypeFor[*broker.Broker]().MethodByName(name); has {
			t.Errorf("Broker.%s goes past the lifecycle; take the part of the engine that has it", name)
		}
	}
}
