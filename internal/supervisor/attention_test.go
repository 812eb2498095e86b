package supervisor_test

import (
	"context"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// saying is an engine whose writer says the same of every append.
type saying struct {
	broker.Engine
	says lifecycle.Attention
}

func (e *saying) Append(ctx context.Context, ticket string, after uint64, id string, _ lifecycle.Attention, body []byte) (uint64, error) {
	return e.Engine.Append(ctx, ticket, after, id, e.says, body)
}

// saying replaces the test's own broker, which plays source and worker.
func (w *world) saying(says lifecycle.Attention) {
	w.Helper()
	b := brokertest.Over(w, &saying{w.m, says})
	w.b = b
}

// What a writer says of its appends is a hint. One that says nothing, or an unknown
// word, is served at once; one that says too little waits: for the end of
// the hold, or for the next sweep, here the one half a minute after the start.
func TestWriterThatSaysOtherwise(t *testing.T) {
	for says, late := range map[lifecycle.Attention]string{
		"": "0s", "of a later version": "0s", lifecycle.AttentionNow: "0s",
		lifecycle.AttentionLater: "1s", lifecycle.AttentionNone: "31s",
	} {
		t.Run(string(says), func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.supervise(supervisor.Config{})
				w.saying(says)
				w.agent("coder", nil)
				coder := w.holder("coder", staying)
				ticket := w.submit(nil)
				w.fail(w.work(coder))
				state := w.until(ticket, func(s protocol.State) bool { return s.Phase != protocol.PhaseFailed })
				if got := state.UpdatedAt.Sub(w.begun).String(); got != late {
					t.Errorf("retried after %s, want %s", got, late)
				}
				w.complete(w.work(coder))
				if state := w.closed(ticket); state.Outcome != protocol.OutcomeSuccess {
					t.Errorf("closed as %s", state.Outcome)
				}
			})
		})
	}
}
