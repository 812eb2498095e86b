package worker_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// A worker of the agent reviewer. In a program of yours the broker comes from
// jetstream.Dial and broker.New, and ctx ends with SIGTERM (signal.NotifyContext).
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	b, _ := broker.New(brokertest.NewMemory(), broker.Config{})
	submit(ctx, b, "reviewer", "review the parser")

	err := worker.Run(ctx, api.Direct(b, "reviewer"), "reviewer", worker.HandlerFunc(
		func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			defer cancel() // one is enough for an example
			fmt.Printf("attempt %d: %s\n", h.Attempt, h.Package.Task.Description)
			return protocol.ResultFromOutput([]byte("looks good")), nil
		}))
	fmt.Println("ended:", err) // when ctx has ended, and the drain is over
	// Output:
	// attempt 1: review the parser
	// ended: <nil>
}

// A handler with types of its own: it gets the package's variables as a struct, and
// returns the body of the result as another.
func ExampleTyped() {
	type in struct{ Branch string }
	type out struct {
		Verdict string `json:"verdict"`
	}
	review := worker.Typed(func(ctx context.Context, in in, h worker.Handoff) (out, error) {
		return out{Verdict: in.Branch + " looks good"}, nil
	})

	var h worker.Handoff // as a test makes one
	h.Package.Context.Variables = map[string]json.RawMessage{"branch": json.RawMessage(`"main"`)}
	result, err := review.Handle(context.Background(), h)
	fmt.Println(string(result.Body), err)
	// Output: {"verdict":"main looks good"} <nil>
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
			return protocol.Result{}, worker.RollBack("the tests fail", nil)
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
