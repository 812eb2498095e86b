package worker

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/agenthandoff/handoff/protocol"
)

// Run serves an agent with one handler until ctx ends, then drains. It is New with the
// defaults of Config, and Worker.Run.
func Run(ctx context.Context, b Broker, agent string, h Handler) error {
	w, err := New(b, Config{Agent: agent}, h)
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// Typed makes a Handler of a function with types of its own. The function gets the
// package's variables, answers included, as an In; what it returns is the result's body.
// An Out that is a protocol.Result is the whole result. Variables that are no In fail the
// handoff for good, with the code invalid_input.
func Typed[In, Out any](f func(ctx context.Context, in In, h Handoff) (Out, error)) Handler {
	return HandlerFunc(func(ctx context.Context, h Handoff) (protocol.Result, error) {
		var in In
		if len(h.Package.Context.Variables) > 0 {
			raw, err := protocol.Marshal(h.Package.Context.Variables)
			if err == nil {
				err = json.Unmarshal(raw, &in)
			}
			if err != nil {
				return protocol.Result{}, &Failure{Code: "invalid_input", Permanent: true, Err: fmt.Errorf("variables: %w", err)}
			}
		}
		out, err := f(ctx, in, h)
		if err != nil {
			return protocol.Result{}, err
		}
		if result, isResult := any(out).(protocol.Result); isResult {
			return result, nil
		}
		body, err := protocol.Marshal(out)
		if err != nil {
			return protocol.Result{}, &Failure{Code: "invalid_result", Permanent: true, Err: err}
		}
		return protocol.Result{Body: body}, nil
	})
}
