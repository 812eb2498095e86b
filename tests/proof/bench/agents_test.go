//go:build proof

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/embedded"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

const (
	agentsMax    = 10_000 // that one engine has room for, with four lanes each
	agentsActive = 4      // of them, while throughput is measured
	relayFor     = 8 * time.Second
)

// TestAgentsMost fills an engine with the queues of as many agents as it has
// room for, has a few of them work, restarts it, and does so again.
// HANDOFF_BENCH_AGENTS sets another number than 10,000.
func TestAgentsMost(t *testing.T) {
	if os.Getenv("HANDOFF_BENCH") != "1" {
		t.Skip("set HANDOFF_BENCH=1")
	}
	count := agentsMax
	if text := os.Getenv("HANDOFF_BENCH_AGENTS"); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil || count < agentsActive || count > agentsMax {
			t.Fatalf("HANDOFF_BENCH_AGENTS: %q is no number from %d to %d", text, agentsActive, agentsMax)
		}
	}
	dir := t.TempDir()
	e := startTestEngine(t, dir)
	t.Logf("%d agents: %.0f handoffs/s", agentsActive, e.throughput(agentsActive))
	e.queues(count)
	if count == agentsMax {
		var refused *protocol.Error
		err := e.engine.EnsureQueue(t.Context(), "one-more")
		if !errors.As(err, &refused) || refused.Code != protocol.CodeTooLarge {
			t.Errorf("one agent more: %v", err)
		}
		t.Logf("one agent more: %v", err)
	}
	if got := e.consumers(); got != count*len(protocol.Priorities) {
		t.Errorf("%d consumers for %d agents", got, count)
	}
	t.Logf("%d agents, %d of them active: %.0f handoffs/s", count, agentsActive, e.throughput(agentsActive))
	begun := time.Now()
	e.stop()
	t.Logf("stopped after %v", time.Since(begun).Round(time.Millisecond))
	begun = time.Now()
	e = startTestEngine(t, dir)
	t.Logf("started again after %v, with %d consumers", time.Since(begun).Round(time.Millisecond), e.consumers())
	e.queues(count)
	t.Logf("%d agents, %d of them active: %.0f handoffs/s", count, agentsActive, e.throughput(agentsActive))
	e.stop()
}

// testEngine is an engine in this process, and a connection to it.
type testEngine struct {
	*testing.T
	node   *embedded.Node
	nc     *nats.Conn
	engine *handoffjs.Engine
}

func startTestEngine(t *testing.T, dir string) *testEngine {
	t.Helper()
	prepare := handoffjs.Topology{}.Prepare
	node, err := embedded.Start(t.Context(), embedded.Config{Dir: dir, Fsync: embedded.FsyncInterval, Prepare: prepare})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Stop() }) // it may be stopped
	c := &testEngine{T: t, node: node}
	if c.nc, err = node.Conn(); err != nil {
		t.Fatal(err)
	}
	if c.engine, err = handoffjs.Open(t.Context(), c.nc, handoffjs.Config{}); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *testEngine) stop() {
	_ = c.engine.Close()
	c.nc.Close()
	if err := c.node.Stop(); err != nil {
		c.Error(err)
	}
}

func agentName(n int) string { return fmt.Sprintf("agent-%05d", n) }

// queues makes the queues of so many agents, eight at a time.
func (c *testEngine) queues(count int) {
	c.Helper()
	before, begun := heap(), time.Now()
	for from := 0; from < count; from += 2_000 {
		some := time.Now()
		var group errgroup.Group
		group.SetLimit(8)
		to := min(from+2_000, count)
		for n := from; n < to; n++ {
			group.Go(func() error { return c.engine.EnsureQueue(c.Context(), agentName(n)) })
		}
		if err := group.Wait(); err != nil {
			c.Fatal(err)
		}
		c.Logf("agents %d to %d: %v each", from+1, to, (time.Since(some) / time.Duration(to-from)).Round(time.Microsecond))
	}
	c.Logf("queues of %d agents: %v, %d KiB each", count, time.Since(begun).Round(time.Millisecond), (heap()-before)>>10/int64(count))
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

func (c *testEngine) consumers() int {
	c.Helper()
	js, err := jetstream.New(c.nc)
	if err != nil {
		c.Fatal(err)
	}
	work, err := js.Stream(c.Context(), handoffjs.WorkStream)
	if err != nil {
		c.Fatal(err)
	}
	return work.CachedInfo().State.Consumers
}

// throughput has the first agents work for a while, and tells how many handoffs they
// complete each second.
func (c *testEngine) throughput(active int) float64 {
	c.Helper()
	b := brokertest.Over(c, c.engine)
	ctx, stop := context.WithCancel(c.Context())
	var done atomic.Int64
	room := make(chan struct{}, 128)
	var all sync.WaitGroup
	for n := range active {
		w, err := worker.New(api.Direct(b, agentName(n)), worker.Config{Agent: agentName(n), Concurrency: 16}, worker.HandlerFunc(
			func(context.Context, worker.Handoff) (protocol.Result, error) {
				done.Add(1)
				<-room
				return protocol.Result{Body: json.RawMessage(`"done"`)}, nil
			}))
		if err != nil {
			c.Fatal(err)
		}
		all.Go(func() {
			if err := w.Run(ctx); err != nil {
				c.Error(err)
			}
		})
	}
	text := strings.Repeat("x", 700)
	for n := range 32 {
		all.Go(func() {
			for {
				select {
				case room <- struct{}{}:
				case <-ctx.Done():
					return
				}
				in, err := b.Prepare(ctx, protocol.Package{Source: "source", Target: protocol.Target{Agent: agentName(n % active)},
					Reason: "to measure", Task: protocol.Task{Type: "bench", Description: text}})
				for err == nil {
					if _, err = b.Submit(ctx, in); !errors.Is(err, broker.ErrUnreachable) {
						break
					}
				}
				var refused *protocol.Error
				switch {
				case ctx.Err() != nil:
					return
				case errors.As(err, &refused) && refused.Code == protocol.CodeUnknownAgent: // its worker is about to register it
					<-room
				case err != nil:
					c.Error(err)
					return
				}
			}
		})
	}
	warm := time.NewTimer(4 * time.Second) // a worker learns within 3 s how the streams stand
	<-warm.C
	before, begun := done.Load(), time.Now()
	over := time.NewTimer(relayFor)
	<-over.C
	rate := float64(done.Load()-before) / time.Since(begun).Seconds()
	stop()
	for { // what is in a worker's hands goes on until it has drained
		select {
		case room <- struct{}{}:
			continue
		default:
		}
		break
	}
	all.Wait()
	return rate
}
