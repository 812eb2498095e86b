//go:build unix

package worker_test

import (
	"testing"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// TestTraceOfAProgram: a program has the span of its work, and never that which
// its worker was started in.
func TestTraceOfAProgram(t *testing.T) {
	t.Setenv("TRACEPARENT", "00-ffffffffffffffffffffffffffffffff-00f067aa0ba902b7-01")
	t.Setenv("TRACESTATE", "worker=1")
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	e := execOf(t, worker.ExecConfig{Command: []string{script(t, `printf '%s/%s' "$TRACEPARENT" "$TRACESTATE"`)}})
	for state, want := range map[string]string{"rojo=1": `"` + parent + `/rojo=1"`, "": `"` + parent + `/"`} {
		h := handoff()
		h.Trace = protocol.TraceContext{Parent: parent, State: state}
		result, err := e.Handle(t.Context(), h)
		if err != nil || string(result.Body) != want {
			t.Errorf("%s (%v), want %s", result.Body, err, want)
		}
	}
}
