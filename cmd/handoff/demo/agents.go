package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// agent is one of those written in Go. The reviewer is a shell script, and the
// maintainer is nobody.
type agent struct {
	name        string
	description string
	lease       time.Duration // 0 is the default
	asks        func(*shift) protocol.Ack
	does        func(context.Context, *shift) (yield, error)
}

var agents = []agent{
	{name: surveyor, description: "counts files, lines and languages", lease: showLeaseMS * time.Millisecond, does: doSurvey},
	{name: historian, description: "reads the git history", does: doHistory},
	{name: inspector, description: "looks for what needs care in code", asks: askLimits, does: doInspection},
	{name: reporter, description: "writes the report", does: doReport},
}

// Agent serves one agent of the demo until ctx ends: what a separate process
// does. It knows nothing but where the engine is.
func Agent(ctx context.Context, name, url string, log *slog.Logger) error {
	i := slices.IndexFunc(agents, func(a agent) bool { return a.name == name })
	if i < 0 {
		return fmt.Errorf("the demo has no agent %q", name)
	}
	a := agents[i]
	engine, err := broker.Dial(ctx, broker.DialConfig{URL: url, Name: "handoff demo " + name, JetStreamConfig: broker.JetStreamConfig{Log: log}})
	if err != nil {
		return err
	}
	defer engine.Close()
	b, err := broker.New(engine, broker.Config{})
	if err != nil {
		return err
	}
	w, err := worker.New(b, worker.Config{
		Agent: name, Lease: a.lease, DrainTimeout: drainFor, Log: log,
		Profile: protocol.Profile{Name: name, Description: a.description},
	}, &handler{agent: a, b: b})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// drainFor is how long an agent's handler may go on after the demo has asked
// it to end.
const drainFor = 2 * time.Second

// handler is an agent as the worker's runtime calls it.
type handler struct {
	agent agent
	b     *broker.Broker
}

// Acknowledge answers an offer.
func (h *handler) Acknowledge(_ context.Context, in worker.Handoff) (protocol.Ack, error) {
	if h.agent.asks == nil {
		return protocol.Ack{Status: protocol.AckAccepted}, nil
	}
	s, err := newShift(in)
	if err != nil {
		return protocol.Ack{}, err
	}
	return h.agent.asks(s), nil
}

// Handle does the agent's work, hands on to the next one, and completes. In this
// order: a process that dies in between does its step again, and hands on
// under the same key, which is the same handoff.
func (h *handler) Handle(ctx context.Context, in worker.Handoff) (protocol.Result, error) {
	s, err := newShift(in)
	if err != nil {
		return protocol.Result{}, err
	}
	y, err := h.agent.does(ctx, s)
	if err != nil {
		return protocol.Result{}, err
	}
	return s.handOn(ctx, relay{b: h.b, run: s.run}, y)
}

// shift is one handoff in an agent's hands.
type shift struct {
	agent   string
	ticket  string
	attempt int
	step    int
	pkg     protocol.Package
	dir     string // under review
	run     string // where this run's files lie
	report  func(context.Context, protocol.Progress) error
}

func newShift(in worker.Handoff) (*shift, error) {
	s := &shift{agent: in.Agent, ticket: in.Ticket, attempt: in.Attempt, pkg: in.Package, step: stepIndex(in.Package.Task.ID), report: in.Progress}
	if s.step < 0 {
		return nil, worker.Permanent(fmt.Errorf("the demo has no step %q", in.Package.Task.ID))
	}
	if err := errors.Join(s.variable(varDirectory, &s.dir), s.variable(varRun, &s.run)); err != nil {
		return nil, worker.Permanent(err)
	}
	return s, nil
}

// handOn makes the result of a step, and submits the following one.
func (s *shift) handOn(ctx context.Context, r relay, y yield) (protocol.Result, error) {
	body, err := json.Marshal(y.body)
	if err != nil {
		return protocol.Result{}, err
	}
	result := protocol.Result{Body: body, Summary: y.summary, Artifacts: protocol.Artifacts{List: y.artifacts}}
	if s.step+1 == len(steps) {
		return result, nil
	}
	pkg, err := next(s.step, s.agent, s.ticket, s.pkg, y)
	if err != nil {
		return result, err
	}
	ticket, err := r.submit(ctx, pkg)
	result.Notes = "handed on to " + pkg.Target.String() + " with ticket " + ticket
	return result, err
}

func (s *shift) progress(ctx context.Context, percent float64, message string) error {
	return s.report(ctx, protocol.Progress{Percent: percent, Message: message})
}

// variable reads a variable of the context, answers to conditions included.
func (s *shift) variable(name string, into any) error {
	raw, ok := s.pkg.Context.Variables[name]
	if !ok {
		return fmt.Errorf("the context has no variable %q", name)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("variable %s: %w", name, err)
	}
	return nil
}

// earlier reads the result of an earlier step out of the context.
func (s *shift) earlier(id string, into any) error {
	raw, ok := s.pkg.Context.IntermediateResults[id]
	if !ok {
		return fmt.Errorf("the context holds no result of the %s", id)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("result of the %s: %w", id, err)
	}
	return nil
}

// artifact describes a file of this run to those who come after. It names no
// time: a second attempt is to hand on the same package.
func (s *shift) artifact(id, kind, name, description string) []protocol.Artifact {
	return []protocol.Artifact{{ID: id, Type: kind, Path: s.path(name), Status: "final", CreatedBy: s.agent, Description: description}}
}

func (s *shift) path(name string) string { return filepath.Join(s.run, name) }

// save writes a file of this run, whole or not at all: an attempt that is
// killed in the middle leaves the file of the one before.
func (s *shift) save(name string, v any) error {
	body, ok := v.([]byte)
	if !ok {
		var err error
		if body, err = json.Marshal(v); err != nil {
			return err
		}
	}
	return saveFile(s.path(name), body)
}

func saveFile(path string, body []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".saving-*")
	if err != nil {
		return err
	}
	_, err = file.Write(body)
	if err = errors.Join(err, file.Chmod(0o644), file.Close()); err != nil {
		os.Remove(file.Name())
		return err
	}
	return os.Rename(file.Name(), path)
}
