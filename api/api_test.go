package api_test

import (
	"context"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/api/apitest"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/index"
	"github.com/agenthandoff/handoff/internal/testworld"
)

// TestOperations: every method of an interface has a row, and every row a method.
func TestOperations(t *testing.T) {
	interfaces := []reflect.Type{reflect.TypeFor[api.Source](), reflect.TypeFor[api.Holder](), reflect.TypeFor[api.Directory](), reflect.TypeFor[api.Reader](), reflect.TypeFor[api.Operator](), reflect.TypeFor[api.Workspaces](), reflect.TypeFor[api.Approver](), reflect.TypeFor[api.Decider](), reflect.TypeFor[api.Finder](), reflect.TypeFor[api.Breakers](), reflect.TypeFor[api.Sharer]()}
	rows := map[string]bool{}
	for _, op := range api.Operations {
		if rows[op.Interface+"."+op.Name] = true; op.Roles == 0 || op.Repeat == "" || op.RequestBytesMax == 0 || op.Doc == "" {
			t.Errorf("the row of %s has an empty column", op.Name)
		}
	}
	methods := 0
	for _, of := range interfaces {
		if of.NumMethod() > 12 {
			t.Errorf("%s has %d methods, at most 12 are allowed", of.Name(), of.NumMethod())
		}
		for i := range of.NumMethod() {
			methods++
			if name := of.Name() + "." + of.Method(i).Name; !rows[name] {
				t.Errorf("%s has no row in Operations", name)
			}
		}
	}
	if methods != len(api.Operations) {
		t.Errorf("%d methods and %d rows", methods, len(api.Operations))
	}
}

func TestService(t *testing.T) {
	engines := map[string]func(*testing.T) broker.Engine{
		"memory":    func(*testing.T) broker.Engine { return brokertest.NewMemory() },
		"jetstream": jetStream,
	}
	for name, engine := range engines {
		t.Run(name, func(t *testing.T) {
			apitest.Run(t, func(t *testing.T) apitest.Fixture {
				b := brokertest.Over(t, engine(t))
				s := api.New(b, api.Config{KeyRequired: true, Index: indexOf(t, b)})
				return apitest.Fixture{
					Broker: b,
					Source: func(_ *testing.T, agent string) api.Source { return s.As(api.Agent(agent)) },
					Holder: func(_ *testing.T, agent string) api.Holder { return s.As(api.Agent(agent)) },
					All:    func(_ *testing.T, caller api.Caller) apitest.All { return s.As(caller) },
				}
			})
		})
	}
}

// indexOf keeps an index of a broker until the test ends.
func indexOf(t *testing.T, b *broker.Broker) *index.Index {
	ix, err := index.Open(filepath.Join(t.TempDir(), "index.db"), index.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = ix.Run(ctx, b)
	}()
	t.Cleanup(func() { cancel(); <-ended; _ = ix.Close() })
	return ix
}

func jetStream(t *testing.T) broker.Engine {
	_, engine := testworld.Engine(t)
	return engine
}
