package brokertest

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"testing"

	"github.com/agenthandoff/handoff/broker"
)

// Serve answers every question of a verb with the same answer until stop.
func Serve(t testing.TB, engine broker.Engine, verb string, answer any) (stop func()) {
	t.Helper()
	body, err := json.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- engine.Serve(ctx, map[string]broker.Answerer{
			verb: func(context.Context, []byte) ([]byte, error) { return body, nil }})
	}()
	for err := broker.ErrNoAnswer; err != nil; _, err = engine.Ask(t.Context(), verb, nil) {
		if !errors.Is(err, broker.ErrNoAnswer) {
			t.Fatal(err)
		}
		runtime.Gosched()
	}
	return func() { cancel(); <-served }
}
