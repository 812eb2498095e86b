//go:build unix

package worker_test

import (
	"context"
	"sync"
	"testing"

	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// BenchmarkWorker relays whole handoffs, submitted to complete, over the
// engine in memory: what is measured is broker and worker, not an engine.
func BenchmarkWorker(b *testing.B) {
	m := brokertest.NewMemory()
	defer m.Close()
	relay := brokertest.Over(b, m)
	if err := relay.PutProfile(b.Context(), protocol.Profile{ID: "coder"}); err != nil {
		b.Fatal(err)
	}
	var left sync.WaitGroup
	_, drain := start(b, relay, worker.Config{Agent: "coder", Concurrency: 16}, worker.HandlerFunc(
		func(context.Context, worker.Handoff) (protocol.Result, error) {
			left.Done()
			return protocol.Result{Body: []byte(`"done"`)}, nil
		}))
	b.ReportAllocs()
	for b.Loop() {
		left.Add(1)
		submitTo(b, relay, nil)
	}
	left.Wait()
	if err := drain(); err != nil {
		b.Error(err)
	}
}

// BenchmarkWorkerAlone leaves the submission out of the figure.
func BenchmarkWorkerAlone(b *testing.B) {
	m := brokertest.NewMemory()
	defer m.Close()
	relay := brokertest.Over(b, m)
	if err := relay.PutProfile(b.Context(), protocol.Profile{ID: "coder"}); err != nil {
		b.Fatal(err)
	}
	for range b.N {
		submitTo(b, relay, nil)
	}
	var left sync.WaitGroup
	left.Add(b.N)
	b.ReportAllocs()
	b.ResetTimer()
	_, drain := start(b, relay, worker.Config{Agent: "coder", Concurrency: 16}, worker.HandlerFunc(
		func(context.Context, worker.Handoff) (protocol.Result, error) {
			left.Done()
			return protocol.Result{Body: []byte(`"done"`)}, nil
		}))
	left.Wait()
	b.StopTimer()
	if err := drain(); err != nil {
		b.Error(err)
	}
}

// BenchmarkExec is what running a program costs: two processes, a guard and
// the program itself.
func BenchmarkExec(b *testing.B) {
	e, err := worker.NewExec(worker.ExecConfig{Command: []string{"true"}})
	if err != nil {
		b.Skip(err)
	}
	for b.Loop() {
		if _, err := e.Handle(b.Context(), worker.Handoff{Raw: []byte(`{}`)}); err != nil {
			b.Fatal(err)
		}
	}
}
