//go:build proof

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// roleEnv makes this test binary one of the processes of the fleet: a role, the address of the
// engine, and a name.
const roleEnv = "HANDOFF_CHAOS_ROLE"

var roles = map[string]func(ctx context.Context, b *broker.Broker, name string) error{"worker": runWorker, "source": runSource, stumblingAgent: runStumbler, delegatingAgent: runDelegator}

func TestMain(m *testing.M) {
	words := strings.Fields(os.Getenv(roleEnv))
	if len(words) == 0 {
		testworld.Main(m)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	b, err := connect(ctx, words[1], words[2])
	if err == nil {
		err = roles[words[0]](ctx, b, words[2])
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// connect connects, and retries until a server answers.
func connect(ctx context.Context, url, name string) (*broker.Broker, error) {
	for {
		engine, err := jetstream.Dial(ctx, jetstream.DialConfig{URL: url, Name: name})
		if err == nil {
			return broker.New(engine, broker.Config{})
		}
		if !errors.Is(err, broker.ErrUnreachable) || ctx.Err() != nil {
			return nil, err
		}
	}
}

// The relay: each agent hands off to the next.
var relay = []string{"first", "second", "third", "fourth"}

// lease is short, so that supervisors soon find dead workers, and many workers lose their lease.
const lease = 4 * time.Second

// runWorker is a worker: its name is its agent's, and a number behind a dot.
func runWorker(ctx context.Context, b *broker.Broker, name string) error {
	agent, _, _ := strings.Cut(name, ".")
	w, err := worker.New(api.Direct(b, agent), worker.Config{Agent: agent, Concurrency: 4, Lease: lease, DrainTimeout: 5 * time.Second,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}, worker.HandlerFunc(handle))
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// handle works for a moment, fails now and then, and hands off.
func handle(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
	sum := fnv.New64a()
	_, _ = fmt.Fprint(sum, h.Ticket, h.Attempt)
	n := sum.Sum64()
	work := time.Duration(n%150) * time.Millisecond
	if n>>8%12 == 0 { // so that a frozen or killed worker holds a handoff
		work = time.Duration(n>>16%6000) * time.Millisecond
	}
	select {
	case <-time.After(work):
	case <-ctx.Done():
		if n>>32%2 == 0 {
			return protocol.Result{}, context.Cause(ctx)
		} // else it reports a result under a lost lease
	}
	if n>>40%40 == 0 && h.Attempt < 3 {
		return protocol.Result{}, errors.New("no luck")
	}
	result := protocol.Result{Body: json.RawMessage(`"done"`)}
	for i, agent := range relay[:len(relay)-1] {
		if agent == h.Agent {
			to, err := json.Marshal(relay[i+1])
			if err != nil {
				return result, err
			}
			result.Command = &protocol.Command{Goto: to}
		}
	}
	return result, nil
}

// runStumbler is a worker that fails once, so that a timer brings the handoff back.
func runStumbler(ctx context.Context, b *broker.Broker, name string) error {
	agent, _, _ := strings.Cut(name, ".")
	w, err := worker.New(api.Direct(b, agent), worker.Config{Agent: agent, Concurrency: 32}, worker.HandlerFunc(func(_ context.Context, h worker.Handoff) (protocol.Result, error) {
		if h.Attempt == 1 {
			return protocol.Result{}, errors.New("no luck")
		}
		return protocol.Result{Body: json.RawMessage(`"done"`)}, nil
	}))
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// runSource is a source. It prints the result of each submission.
func runSource(ctx context.Context, b *broker.Broker, name string) error {
	return testworld.Submit(ctx, b, fmt.Sprint(name, " ", os.Getpid()), relay[0], func(a testworld.Ack) { fmt.Println(a) })
}
