// Package handoff is the one import of a Go program that submits handoffs or works on them.
//
// It connects to the engine and returns the operations of package api. Its types are
// those of the packages below it, under shorter names.
package handoff

import (
	"cmp"
	"context"
	"os"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/jetstream"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// The types that a program submits and gets.
type (
	Package = protocol.Package
	Target  = protocol.Target
	Task    = protocol.Task
	Result  = protocol.Result
	Usage   = protocol.Usage
	State   = protocol.State
	Handoff = worker.Handoff
)

// Client has all operations on behalf of one program. It is safe for concurrent use.
type Client struct {
	*api.Session
	b      *broker.Broker
	engine *jetstream.Engine
}

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
	return &Client{api.New(b, api.Config{}).As(caller), b, engine}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.engine.Close() }

// Do submits a package, waits for the end of its chain and returns the result of that. Without
// a result the error is broker.ErrNotFound.
func (c *Client) Do(ctx context.Context, pkg Package) (Result, error) {
	state, err := c.Submit(ctx, pkg)
	if err == nil {
		state, err = c.WaitChain(ctx, state.Ticket, api.UntilClosed)
	}
	if err != nil {
		return Result{}, err
	}
	result, _, err := c.Session.Result(ctx, state.Ticket)
	return result, err
}

// Work serves an agent with a function until ctx ends, then drains. What the function
// returns is the result, or says what comes instead: see package worker.
func (c *Client) Work(ctx context.Context, agent string, do func(context.Context, Handoff) (Result, error)) error {
	return worker.Run(ctx, c.b, agent, worker.HandlerFunc(do))
}

// Text returns a result whose body is text, or JSON if it parses.
func Text(text string) Result { return protocol.ResultFromOutput([]byte(text)) }
