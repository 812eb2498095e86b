//go:build proof

package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// roleEnv makes this test binary one of the processes: a role, the engine, and the
// handoffs a second, 0 for as many as go.
const roleEnv = "HANDOFF_SOAK_ROLE"

const agent = "soaked"

func TestMain(m *testing.M) {
	words := strings.Fields(os.Getenv(roleEnv))
	if len(words) == 0 {
		testworld.Main(m)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := runRole(ctx, words); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runRole(ctx context.Context, words []string) error {
	// The last word may come when ctx has ended.
	engine, err := jetstream.Dial(ctx, jetstream.DialConfig{URL: words[1], Name: words[0]})
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }()
	b, err := broker.New(engine, broker.Config{})
	if err != nil {
		return err
	}
	go func() { // for as long as the process lives
		for range time.Tick(time.Second) {
			fmt.Println("goroutines", runtime.NumGoroutine())
		}
	}()
	if words[0] == "worker" {
		w, err := worker.New(api.Direct(b, agent), worker.Config{Agent: agent, Concurrency: 64}, worker.HandlerFunc(
			func(context.Context, worker.Handoff) (protocol.Result, error) {
				return protocol.Result{Body: json.RawMessage(`"done"`)}, nil
			}))
		if err != nil {
			return err
		}
		return w.Run(ctx)
	}
	rate, err := strconv.Atoi(words[2])
	if err != nil {
		return err
	}
	return submit(ctx, b, rate)
}

// submissionsAtOnce is how many submissions a source has under way at most.
const submissionsAtOnce = 64

// submit is a source: so many handoffs a second, or with 0 as many as close, atOnce
// at a time. At its end it says how many were acknowledged.
func submit(ctx context.Context, b *broker.Broker, rate int) error {
	var acked atomic.Int64
	one := func() error {
		in, err := b.Prepare(ctx, protocol.Package{Source: "source", Target: protocol.Target{Agent: agent}, Reason: "soak", Task: protocol.Task{Description: strings.Repeat("x", 1000)}})
		if err != nil {
			return err
		}
		trying, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute) // what has begun is ended
		defer cancel()
		head, err := b.Submit(trying, in)
		if err == nil && rate == 0 {
			_, err = brokertest.Wait(trying, b, head.Ticket, brokertest.Closed)
		}
		if err == nil {
			acked.Add(1)
		}
		return err
	}
	turns := make(chan struct{})
	go func() {
		defer close(turns)
		begun := time.Now()
		for n := 0; ctx.Err() == nil; n++ {
			if rate > 0 {
				testworld.Pause(ctx, time.Until(begun.Add(time.Duration(n)*time.Second/time.Duration(rate))))
			}
			select {
			case turns <- struct{}{}:
			case <-ctx.Done():
			}
		}
	}()
	var group sync.WaitGroup
	errs := make(chan error, submissionsAtOnce)
	for range submissionsAtOnce {
		group.Go(func() {
			for range turns {
				if err := one(); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	group.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	fmt.Println("acknowledged", acked.Load())
	return errors.Join(all...)
}
