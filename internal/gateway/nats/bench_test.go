package natsgateway_test

import (
	"context"
	"testing"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/brokertest"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// BenchmarkLife measures whole handoffs, from the submission to the end, of one
// worker with 16 slots: through a gateway, and beside it without.
func BenchmarkLife(b *testing.B) {
	for _, way := range []string{"direct", "gateway"} {
		b.Run(way, func(b *testing.B) {
			w := newWorld(b)
			w.register("coder")
			ended := make(chan struct{}, 1<<20)
			handle := worker.HandlerFunc(func(context.Context, worker.Handoff) (protocol.Result, error) {
				ended <- struct{}{}
				return protocol.Result{Body: text("done")}, nil
			})
			cfg := worker.Config{Agent: "coder", Concurrency: 16}
			if way == "direct" {
				w.run(worker.New(api.Direct(w.broker(), cfg.Agent), cfg, handle))
			} else {
				w.open(natsgateway.Config{})
				w.run(worker.New(w.client("coder"), cfg, handle))
			}
			w.until(w.submit("coder", nil), brokertest.Closed) // all is there
			<-ended
			b.ResetTimer()
			const ahead = 64
			var last string
			for n := range b.N + ahead {
				if n < b.N {
					last = w.submit("coder", nil)
				}
				if n >= ahead {
					<-ended
				}
			}
			w.until(last, brokertest.Closed)
		})
	}
}
