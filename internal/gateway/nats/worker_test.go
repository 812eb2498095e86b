package natsgateway_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// supervise runs a supervisor until the test ends.
func (w *world) supervise() {
	w.Helper()
	engine := w.engine()
	s, err := supervisor.New(w.brokerOver(engine), engine, supervisor.Config{})
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	w.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			w.Error(err)
		}
	})
}

// run runs a worker until the test ends.
func (w *world) run(it *worker.Worker, err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	ended := make(chan error, 1)
	go func() { ended <- it.Run(ctx) }()
	w.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			w.Error(err)
		}
	})
}

// The lives of handoffs are the same, whichever way their worker goes.
func TestLivesThroughAGateway(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"direct", "through a gateway"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.supervise()
			if way != "direct" {
				w.open(natsgateway.Config{})
			}
			for agent, handle := range map[string]worker.HandlerFunc{
				"coder": lives,
				"boss": func(context.Context, worker.Handoff) (protocol.Result, error) {
					return protocol.Result{}, worker.AnswerEscalation(protocol.Answer{Text: "go on"})
				},
				"helper": func(context.Context, worker.Handoff) (protocol.Result, error) {
					return protocol.Result{Body: text("helped")}, nil
				},
			} {
				cfg := worker.Config{Agent: agent, Concurrency: 8}
				if agent == "coder" {
					cfg.Profile.EscalatesTo = "boss"
				}
				if way == "direct" {
					w.run(worker.New(api.Direct(w.broker(), cfg.Agent), cfg, handle))
				} else {
					w.run(worker.New(w.client(agent), cfg, handle))
				}
				w.registered(agent)
			}
			w.livesEnd(t)
		})
	}
}

// registered waits until a worker has registered its agent.
func (w *world) registered(agent string) {
	w.Helper()
	for {
		_, err := w.b.Profile(w.ctx, agent)
		if err == nil {
			return
		}
		if !errors.Is(err, broker.ErrNotFound) || w.ctx.Err() != nil {
			w.Fatal(err)
		}
	}
}

// lives does what the task says.
func lives(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
	task := h.Package.Task.Description
	switch {
	case task == "fail once" && h.Attempt == 1:
		return protocol.Result{}, worker.RetryAfter(errors.New("not yet\x00"), 1)
	case task == "fail":
		return protocol.Result{}, worker.Permanent(errors.New("never"))
	case task == "reject":
		return protocol.Result{}, worker.Reject("not for me", "")
	case task == "ask" && len(h.Answers) == 0:
		return protocol.Result{}, worker.NeedContext("the branch")
	case task == "escalate" && len(h.Answers) == 0:
		return protocol.Result{}, worker.Escalate("too large", "looked at it")
	case task == "roll back":
		return protocol.Result{}, worker.RollBack("cannot", &protocol.Result{Body: text("half")})
	case task == "panic" && h.Attempt == 1:
		panic("oh")
	case task == "bad result" && h.Attempt == 1:
		return protocol.Result{Body: []byte(`{"broken`)}, nil
	case task == "progress":
		if err := h.Progress(ctx, protocol.Progress{Percent: 50, Message: "half"}); err != nil {
			return protocol.Result{}, err
		}
	case task == "extend":
		return extended(ctx, h)
	case task == "large":
		return protocol.Result{Body: text(h.Package.Context.Summary)}, nil
	case task == "goto":
		return protocol.Result{Body: text("on"), Command: &protocol.Command{Goto: text("helper")}}, nil
	case task == "hand off":
		next := h.Continue("helper")
		if _, err := h.HandOff(ctx, next); err != nil {
			return protocol.Result{}, err
		}
	case task == "await" || task == "wait":
		child := protocol.Package{Type: protocol.Delegation, Return: &protocol.ReturnProtocol{TimeoutMS: 60_000}, Target: protocol.Target{Agent: "helper"}, Reason: "a part", Task: protocol.Task{Description: "help"}}
		ticket, err := h.HandOff(ctx, child)
		if err != nil {
			return protocol.Result{}, err
		}
		ret, there := h.Return(ticket)
		if task == "wait" {
			ret, err = h.Wait(ctx, ticket)
		} else if !there {
			return protocol.Result{}, worker.Await(ticket)
		}
		if err != nil {
			return protocol.Result{}, err
		}
		return protocol.Result{Body: ret.Result.Body}, nil
	}
	return protocol.Result{Body: text(fmt.Sprintf("%s, attempt %d", task, h.Attempt))}, nil
}

// extended asks for more time, twice: the second is refused.
func extended(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
	before, _ := h.Limit()
	if err := h.Extend(ctx, time.Minute, "it takes longer"); err != nil {
		return protocol.Result{}, err
	}
	after, clock := h.Limit()
	again := h.Extend(ctx, time.Minute, "it takes longer")
	said := fmt.Sprintf("%s to the %s, then refused: %t", after.Sub(before), clock, errors.Is(again, &protocol.Error{Code: protocol.CodeIllegal}))
	return protocol.Result{Body: text(said)}, nil
}

// livesEnd submits one handoff of each kind and looks how it ends.
func (w *world) livesEnd(t *testing.T) {
	large := strings.Repeat("a long <story> & more. ", 200_000) // 4.6 MB, in ten parts
	for task, want := range map[string]struct {
		outcome protocol.Outcome
		body    string
		asks    func(protocol.State) bool
	}{
		"plain":      {protocol.OutcomeSuccess, `"plain, attempt 1"`, nil},
		"fail once":  {protocol.OutcomeSuccess, `"fail once, attempt 2"`, nil},
		"fail":       {protocol.OutcomeFailed, "", nil},
		"panic":      {protocol.OutcomeSuccess, `"panic, attempt 2"`, nil},
		"bad result": {protocol.OutcomeSuccess, `"bad result, attempt 2"`, nil},
		"progress":   {protocol.OutcomeSuccess, `"progress, attempt 1"`, nil},
		"extend":     {protocol.OutcomeSuccess, `"1m0s to the work, then refused: true"`, nil},
		"large":      {protocol.OutcomeSuccess, string(mustJSON(large)), nil},
		"goto":       {protocol.OutcomeSuccess, `"on"`, nil},
		"hand off":   {protocol.OutcomeSuccess, `"hand off, attempt 1"`, nil},
		"await":      {protocol.OutcomeSuccess, `"helped"`, nil},
		"wait":       {protocol.OutcomeSuccess, `"helped"`, nil},
		"roll back":  {protocol.OutcomeRolledBack, `"half"`, nil},
		"ask":        {"", "", func(s protocol.State) bool { return s.Conditions != nil }},
		"escalate":   {protocol.OutcomeSuccess, `"escalate, attempt 1"`, nil},
		"reject":     {"", "", func(s protocol.State) bool { return len(s.Refused) == 1 && s.Refused[0] == "coder" }},
	} {
		ticket := w.submit("coder", func(p *protocol.Package) {
			p.Task.Description = task
			if task == "large" {
				p.Context.Summary = large
			}
		})
		t.Run(task, func(t *testing.T) {
			w := w.in(t)
			if want.asks != nil {
				if state := w.until(ticket, func(s protocol.State) bool { return s.Closed || want.asks(s) }); !want.asks(state) {
					t.Errorf("ended %s (%s %s)", state.Outcome, state.Reason, state.Message)
				}
				return
			}
			state := w.until(ticket, brokertest.Closed)
			if state.Outcome != want.outcome {
				t.Errorf("ended %s (%s %s), want %s", state.Outcome, state.Reason, state.Message, want.outcome)
			}
			if want.body == "" {
				return
			}
			result, _, err := w.b.Result(w.ctx, ticket)
			if err != nil || string(result.Body) != want.body {
				t.Errorf("result of %d bytes %.60s, %v; want %d bytes %.60s", len(result.Body), result.Body, err, len(want.body), want.body)
			}
		})
	}
}

func mustJSON(s string) []byte {
	raw, err := protocol.EncodeResult(protocol.Result{Body: text(s)})
	if err != nil {
		panic(err)
	}
	r, err := protocol.DecodeResult(raw)
	if err != nil {
		panic(err)
	}
	return r.Body
}

// A package whose body is gone is refused through a gateway as it is without one.
func TestAPackageThatIsGoneIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder")
	w.supervise()
	w.open(natsgateway.Config{})
	ticket := w.submit("coder", func(p *protocol.Package) { p.Context.Summary = strings.Repeat("a long story. ", 100_000) })
	js, err := natsjs.New(w.nc)
	if err != nil {
		t.Fatal(err)
	}
	bodies, err := js.Stream(w.ctx, "OBJ_"+jetstream.BlobBucket)
	if err == nil {
		err = bodies.Purge(w.ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.run(worker.New(w.client("coder"), worker.Config{Agent: "coder"}, worker.HandlerFunc(
		func(context.Context, worker.Handoff) (protocol.Result, error) {
			t.Error("the handler got a package that is gone")
			return protocol.Result{}, nil
		})))
	w.until(ticket, func(s protocol.State) bool { return s.Agent != "coder" })
}
