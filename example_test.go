package handoff_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff"
	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
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

// A program that submits, goes away, and looks for the result later by the ticket.
func ExampleClient_Submit() {
	ctx, client, stop := connected()
	defer stop()
	state, err := client.Submit(ctx, handoff.Package{Target: handoff.Target{Agent: "reviewer"},
		Reason: "the code is ready", Task: handoff.Task{Description: "main.go"}, Key: "review of commit 64c2928"})
	check(err)
	fmt.Println(state.Phase, state.Closed)

	go serve(ctx, client, "reviewer", func(ctx context.Context, h handoff.Handoff) (handoff.Result, error) {
		return handoff.Text("looks good"), nil
	})
	for !state.Closed { // in another process, say
		time.Sleep(10 * time.Millisecond)
		state, err = client.Status(ctx, state.Ticket)
		check(err)
	}
	result, err := client.Result(ctx, state.Ticket)
	fmt.Println(state.Outcome, string(result.Body), err)
	// Output:
	// pending false
	// success "looks good" <nil>
}

// A worker that refuses, and names the agent that should have it.
func ExampleClient_Work_refuse() {
	ctx, client, stop := connected("tester")
	defer stop()
	go serve(ctx, client, "reviewer", func(ctx context.Context, h handoff.Handoff) (handoff.Result, error) {
		return handoff.Result{}, worker.Reject("I do not run tests", "tester")
	})
	go serve(ctx, client, "tester", func(ctx context.Context, h handoff.Handoff) (handoff.Result, error) {
		return handoff.Text("12 tests passed, as " + h.Agent), nil
	})
	result, err := client.Do(ctx, task("reviewer", "run the tests"))
	fmt.Println(string(result.Body), err)
	// Output: "12 tests passed, as tester" <nil>
}

// A worker that needs more context before it accepts. Its program ends meanwhile: it runs again with
// the answer.
func ExampleClient_Work_ask() {
	ctx, client, stop := connected()
	defer stop()
	go serve(ctx, client, "reviewer", func(ctx context.Context, h handoff.Handoff) (handoff.Result, error) {
		if len(h.Answers) == 0 {
			return handoff.Result{}, worker.NeedContext("which branch?")
		}
		return handoff.Text("reviewed " + h.Answers[0].Text), nil
	})
	state, err := client.Submit(ctx, task("reviewer", "review it"))
	check(err)
	asked, err := client.Session().Wait(ctx, state.Ticket, api.UntilAsked)
	check(err)
	fmt.Println(asked.Conditions.NeedsContext[0])
	_, err = client.Answer(ctx, asked, "main")
	check(err)
	_, err = client.Wait(ctx, state.Ticket)
	check(err)
	result, err := client.Result(ctx, state.Ticket)
	fmt.Println(string(result.Body), err)
	// Output:
	// which branch?
	// "reviewed main" <nil>
}

// A worker that reports how far it is, and a program that watches it.
func ExampleClient_Work_progress() {
	ctx, client, stop := connected()
	defer stop()
	go serve(ctx, client, "reviewer", func(ctx context.Context, h handoff.Handoff) (handoff.Result, error) {
		err := h.Progress(ctx, handoff.Progress{Percent: 50, Message: "half of the files"})
		return handoff.Text("done"), err
	})
	state, err := client.Submit(ctx, task("reviewer", "review it"))
	check(err)
	_, err = client.Wait(ctx, state.Ticket)
	check(err)
	history, err := client.Session().History(ctx, state.Ticket)
	check(err)
	for _, change := range history {
		for _, event := range change.Record.Events {
			if progress, is := event.(*protocol.Progressed); is {
				fmt.Println(progress.Progress.Percent, progress.Progress.Message)
			}
		}
	}
	// Output: 50 half of the files
}

// A worker that delegates parts of its work, and joins their results. It takes no slot while it waits,
// and runs from its beginning when all parts have ended.
func ExampleClient_Work_delegate() {
	ctx, client, stop := connected("front", "back")
	defer stop()
	for _, agent := range []string{"front", "back"} {
		go serve(ctx, client, agent, func(ctx context.Context, h handoff.Handoff) (handoff.Result, error) {
			return handoff.Text(agent), nil
		})
	}
	go serve(ctx, client, "reviewer", func(ctx context.Context, h handoff.Handoff) (handoff.Result, error) {
		for _, agent := range []string{"front", "back"} {
			part := task(agent, "a part")
			part.Type, part.Return = protocol.Delegation, &protocol.ReturnProtocol{TimeoutMS: 60_000}
			if _, err := h.HandOff(ctx, part); err != nil {
				return handoff.Result{}, err
			}
		}
		if len(h.Returns) == 0 {
			return handoff.Result{}, worker.Await()
		}
		parts := ""
		for _, end := range h.Returns {
			parts += string(end.Result.Body)
		}
		return handoff.Text("joined: " + parts), nil
	})
	result, err := client.Do(ctx, task("reviewer", "both"))
	fmt.Println(string(result.Body), err)
	// Output: "joined: \"front\"\"back\"" <nil>
}

// A worker that passes its work on: the chain ends with the result of the last agent.
func ExampleClient_Work_chain() {
	ctx, client, stop := connected("deployer")
	defer stop()
	go serve(ctx, client, "reviewer", func(ctx context.Context, h handoff.Handoff) (handoff.Result, error) {
		result := handoff.Text("looks good")
		result.Command = &protocol.Command{Goto: []byte(`"deployer"`)}
		return result, nil
	})
	go serve(ctx, client, "deployer", func(ctx context.Context, h handoff.Handoff) (handoff.Result, error) {
		return handoff.Text("deployed, after " + h.Package.Source), nil
	})
	result, err := client.Do(ctx, task("reviewer", "release it"))
	fmt.Println(string(result.Body), err)
	// Output: "deployed, after reviewer" <nil>
}

// A worker whose first attempt fails. The second one reads why in its trail.
func ExampleClient_Work_retry() {
	ctx, client, stop := connected()
	defer stop()
	go serve(ctx, client, "reviewer", func(ctx context.Context, h handoff.Handoff) (handoff.Result, error) {
		if h.Attempt == 1 {
			return handoff.Result{}, worker.RetryAfter(errors.New("the model is overloaded"), time.Millisecond)
		}
		return handoff.Text("done, after: " + h.Trail[0].Words), nil
	})
	result, err := client.Do(ctx, task("reviewer", "review it"))
	fmt.Println(string(result.Body), err)
	// Output: "done, after: the model is overloaded" <nil>
}

// A program that ends what it no longer needs: at once, since no worker has it yet.
func ExampleClient_Cancel() {
	ctx, client, stop := connected()
	defer stop()
	state, err := client.Submit(ctx, task("reviewer", "review it"))
	check(err)
	state, err = client.Cancel(ctx, state.Ticket, "no longer needed")
	fmt.Println(state.Outcome, err)
	// Output: cancelled <nil>
}

// A program that watches a handoff. Session has every operation.
func ExampleClient_Session() {
	ctx, client, stop := connected()
	defer stop()
	state, err := client.Submit(ctx, task("reviewer", "review it"))
	check(err)
	go serve(ctx, client, "reviewer", func(ctx context.Context, h handoff.Handoff) (handoff.Result, error) {
		return handoff.Text("done"), nil
	})
	state, err = client.Session().Follow(ctx, state.Ticket, api.UntilClosed, true, func(s handoff.State) error {
		return nil // called with each state: the place for a line on a screen
	})
	fmt.Println(state.Outcome, err)
	// Output: success <nil>
}

func task(agent, description string) handoff.Package {
	return handoff.Package{Target: handoff.Target{Agent: agent}, Reason: "as an example", Task: handoff.Task{Description: description}}
}

// serve works for an agent until the example ends.
func serve(ctx context.Context, client *handoff.Client, agent string, do func(context.Context, handoff.Handoff) (handoff.Result, error)) {
	check(client.Work(ctx, agent, do))
}

// connected starts an engine with these agents and reviewer, and connects the source planner.
func connected(agents ...string) (context.Context, *handoff.Client, func()) {
	ctx, url, stop := engine(agents...)
	client, err := handoff.Connect(ctx, url, "planner")
	check(err)
	return ctx, client, func() { stop(); _ = client.Close() }
}

// engine starts an engine in this process, as handoff dev does, with the agent reviewer and others.
func engine(agents ...string) (context.Context, string, func()) {
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
	b, err := broker.New(jet, broker.Config{})
	check(err)
	for _, agent := range append(agents, "reviewer") {
		check(b.PutProfile(ctx, protocol.Profile{ID: agent}))
	}
	s, err := supervisor.New(b, jet, supervisor.Config{})
	check(err)
	go func() { _ = s.Run(ctx) }()
	return ctx, node.ClientURL(), func() { cancel(); _ = jet.Close(); _ = node.Stop(); _ = os.RemoveAll(dir) }
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
