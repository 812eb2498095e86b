package worker_test

import (
	"context"
	"fmt"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/brokertest"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// A worker of the agent reviewer. In a program of yours the broker is over
// broker.Dial, and ctx ends with SIGTERM (signal.NotifyContext).
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	b, _ := broker.New(brokertest.NewMemory(), broker.Config{})

	review := func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
		defer cancel() // one is enough for an example
		fmt.Printf("attempt %d: %s\n", h.Attempt, h.Package.Task.Description)
		return protocol.ResultFromOutput([]byte("looks good")), nil
	}
	w, err := worker.New(b, worker.Config{Agent: "reviewer"}, worker.HandlerFunc(review))
	if err != nil {
		fmt.Println(err)
		return
	}
	submit(ctx, b, "reviewer", "review the parser")
	if err := w.Run(ctx); err != nil { // until ctx ends, then drains
		fmt.Println(err)
	}
	fmt.Println("completed:", w.Stats().Completed)
	// Output:
	// attempt 1: review the parser
	// completed: 1
}

// The coder has its work tested, and passes it on to the reviewer when the tests
// have passed. It runs twice: until it waits, and once more from the beginning
// when the return is there.
func ExampleHandoff_HandOff() {
	code := worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
		test, err := h.HandOff(ctx, protocol.Package{
			Type: protocol.Delegation, Target: protocol.Target{Agent: "tester"}, Reason: "is it right?",
			Task:   protocol.Task{Description: "run the tests"},
			Return: &protocol.ReturnProtocol{TimeoutMS: 600_000, Wait: "block"},
		})
		if err != nil {
			return protocol.Result{}, err
		}
		ret, there := h.Return(test)
		if !there {
			return protocol.Result{}, worker.Await(test) // no slot is held meanwhile
		}
		if ret.Status != protocol.ReturnSuccess {
			return protocol.Result{}, worker.HandBack("the tests fail", nil)
		}

		next := h.Continue("reviewer") // with all variables and artifacts
		next.Task.Description = "review it"
		next.Context.Variables["tests"] = ret.Result.Body
		if _, err := h.HandOff(ctx, next); err != nil {
			return protocol.Result{}, err
		}
		return protocol.ResultFromOutput([]byte("coded and tested")), nil // the reviewer gets it now
	})
	_, _ = worker.New(nil, worker.Config{Agent: "coder"}, code)
}

func submit(ctx context.Context, b *broker.Broker, agent, task string) {
	_ = b.PutProfile(ctx, protocol.Profile{ID: agent})
	prepared, err := b.Prepare(ctx, protocol.Package{Source: "author", Target: protocol.Target{Agent: agent},
		Reason: "ready for review", Task: protocol.Task{Description: task}})
	if err == nil {
		_, err = b.Submit(ctx, prepared)
	}
	if err != nil {
		fmt.Println(err)
	}
}
