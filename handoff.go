// Package handoff is the one import of a Go program that submits handoffs or works on them.
//
// Connect reaches the engine. A Client submits handoffs and follows them, and serves agents with Go
// functions; Client.Session has every other operation of package api. The errors by which a function
// refuses, asks or waits are those of package worker.
package handoff

import (
	"cmp"
	"context"
	"log/slog"
	"os"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// The types that a program submits and gets.
type (
	Package  = protocol.Package
	Target   = protocol.Target
	Task     = protocol.Task
	Result   = protocol.Result
	Usage    = protocol.Usage
	State    = protocol.State
	Progress = protocol.Progress
	Handoff  = worker.Handoff
)

// Client acts for one program. It is safe for concurrent use.
//
// A ticket in a call is whole. A refusal is a *protocol.Error, whose code is stable; an engine out of
// reach is broker.ErrUnreachable.
type Client struct {
	// ForPerson has Do wait on if only a person can help.
	ForPerson bool
	// Waits is called with each state that Do reads while it waits; nil logs each change of the reason
	// why the handoff waits.
	Waits func(State)

	session *api.Session
	b       *broker.Broker
	engine  *jetstream.Engine
}

// ImpasseError is the error of Do if only a person can help.
type ImpasseError = api.ImpasseError

// Connect reaches the engine at a NATS URL. The name is the source of packages that name
// none; "" is human.
//
// Without a URL it looks where the command line does: at the context that $NATS_CONTEXT names,
// at $NATS_URL, else at nats://127.0.0.1:4222, with the credentials that $NATS_CREDS,
// $NATS_NKEY, $NATS_CA, $NATS_CERT and $NATS_KEY name.
func Connect(ctx context.Context, url, name string) (*Client, error) {
	cfg := jetstream.DialConfig{URL: url}
	if url == "" {
		cfg = cfg.FromEnv(os.Getenv)
	}
	engine, err := jetstream.Dial(ctx, cfg)
	if err != nil {
		return nil, err
	}
	b, err := broker.New(engine, broker.Config{})
	if err != nil {
		_ = engine.Close()
		return nil, err
	}
	caller := api.Local(cmp.Or(name, protocol.Human))
	return &Client{session: api.New(b, api.Config{}).As(caller), b: b, engine: engine}, nil
}

// Close ends the connection. A worker of Work is to have ended before.
func (c *Client) Close() error { return c.engine.Close() }

// Session returns all operations. It is an api.Source and an api.Holder, among others.
func (c *Client) Session() *api.Session { return c.session }

// Submit hands a package over, and returns the state of the new handoff, with its ticket. The handoff
// is durable then. Submitting the same package with the same key again returns the handoff that exists.
func (c *Client) Submit(ctx context.Context, pkg Package) (State, error) {
	return c.session.Submit(ctx, pkg)
}

// Status returns the state of a handoff.
func (c *Client) Status(ctx context.Context, ticket string) (State, error) {
	return c.session.Status(ctx, ticket)
}

// Wait blocks until the chain of a handoff has ended, or ctx has. It returns the last state that it
// read, with the error of ctx if that ended first.
func (c *Client) Wait(ctx context.Context, ticket string) (State, error) {
	return c.session.WaitChain(ctx, ticket, api.UntilClosed)
}

// Result returns the result at the end of the chain of a handoff. Without one the error is
// broker.ErrNotFound.
func (c *Client) Result(ctx context.Context, ticket string) (Result, error) {
	result, _, err := c.session.ChainResult(ctx, ticket)
	return result, err
}

// Cancel asks for the end of a handoff: at once if no worker holds it, else with the next heartbeat of
// its worker, which hands back its partial result.
func (c *Client) Cancel(ctx context.Context, ticket, reason string) (State, error) {
	return c.session.Cancel(ctx, api.Cancel{Ticket: ticket, Reason: reason})
}

// Answer gives a handoff the context that it asks for, in words. asked is the state in which the caller
// has seen the question: an answer to an earlier one is refused (CodeConflict). An answer that permits,
// denies or sets variables is one of Session.
func (c *Client) Answer(ctx context.Context, asked State, text string) (State, error) {
	answer := protocol.Answer{Question: lifecycle.QuestionOf(asked).N, Text: text}
	return c.session.Answer(ctx, asked.Ticket, answer)
}

// Do submits a package, waits for the end of its chain and returns the result of that. Without
// a result the error is broker.ErrNotFound.
//
// It waits for an approval, for an answer and for an agent that is not there yet for as long as that
// takes: give ctx a deadline. If every agent refused the handoff or failed, or a budget is spent, the
// error is an *ImpasseError, unless ForPerson is set. The handoff stays open then.
func (c *Client) Do(ctx context.Context, pkg Package) (Result, error) {
	state, err := c.session.Submit(ctx, pkg)
	if err == nil {
		state, err = c.session.Follow(ctx, state.Ticket, api.UntilClosed, true, c.seer())
	}
	if err != nil {
		return Result{}, err
	}
	result, _, err := c.session.Result(ctx, state.Ticket)
	return result, err
}

// seer returns the function that Do calls with each state that it reads.
func (c *Client) seer() func(State) error {
	last := ""
	return func(s State) error {
		words := explain.WaitingFor(s).Words
		switch {
		case s.Closed:
		case c.Waits != nil:
			c.Waits(s)
		case words != last:
			last = words
			slog.Info("waiting", "ticket", s.Ticket, "for", words)
		}
		if c.ForPerson {
			return nil
		}
		return api.CheckImpasse(s)
	}
}

// Work serves an agent with a function until ctx ends, then drains. The function returns the result, or
// an error of package worker: a refusal, a question, a retry.
func (c *Client) Work(ctx context.Context, agent string, do func(context.Context, Handoff) (Result, error)) error {
	return worker.Run(ctx, c.session, agent, worker.HandlerFunc(do))
}

// Text returns a result whose body is text, or JSON if it parses.
func Text(text string) Result { return protocol.ResultFromOutput([]byte(text)) }
