package handoff_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/api/handoff"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/embedded"
	"github.com/agenthandoff/handoff/broker/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// work serves the agent reviewer: the ten lines of a worker.
func work(ctx context.Context, url string) error {
	client, err := handoff.Connect(ctx, url, "reviewer")
	if err != nil {
		return err
	}
	defer client.Close()
	return client.Work(ctx, "reviewer", func(ctx context.Context, h handoff.Handoff) (handoff.Result, error) {
		return handoff.Text(h.Package.Task.Description + ": looks good"), nil
	})
}

// A program that submits a handoff and waits for its result, and, as the function work, a
// worker that does what is asked. Both import one package.
func Example() {
	ctx, url, stop := engine()
	defer stop()
	go work(ctx, url)

	client, err := handoff.Connect(ctx, url, "planner")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	result, err := client.Do(ctx, handoff.Package{Target: handoff.Target{Agent: "reviewer"},
		Reason: "the code is ready", Task: handoff.Task{Description: "main.go"}})
	fmt.Println(string(result.Body), err)
	// Output: "main.go: looks good" <nil>
}

// engine starts an engine in this process, as handoff dev does, with the agent reviewer.
func engine() (context.Context, string, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	dir, err := os.MkdirTemp("", "handoff")
	check(err)
	node, err := embedded.Start(ctx, embedded.Config{Dir: dir, Fsync: embedded.FsyncInterval})
	check(err)
	nc, err := nats.Connect(node.ClientURL())
	check(err)
	defer nc.Close()
	check(jetstream.EnsureTopology(ctx, nc, jetstream.Topology{AsyncWork: true}))
	jet, err := jetstream.Dial(ctx, jetstream.DialConfig{URL: node.ClientURL()})
	check(err)
	defer jet.Close()
	b, err := broker.New(jet, broker.Config{})
	check(err)
	check(b.PutProfile(ctx, protocol.Profile{ID: "reviewer"}))
	return ctx, node.ClientURL(), func() { cancel(); _ = node.Stop(); _ = os.RemoveAll(dir) }
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
