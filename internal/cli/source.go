package cli

import (
	"cmp"
	"context"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/jetstream"
	"github.com/agenthandoff/handoff/internal/dossier"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
)

// gatewayEnv says the same as --gateway.
const gatewayEnv = "HANDOFF_GATEWAY"

// gatewayHelp is what the help of every command that has --gateway says of it.
const gatewayHelp = `--gateway (or HANDOFF_GATEWAY=1) goes through a gateway (handoff gateway), for agents
that may not reach the engine itself. Answers come to subjects that begin with _INBOX_
and the agent's name.`

func gatewayFlag(cmd *cobra.Command, gateway *bool) {
	cmd.Flags().BoolVar(gateway, "gateway", false, "go through a gateway instead of to the engine itself ($"+gatewayEnv+")")
}

// throughGateway tells whether a command goes through a gateway, and refuses the flags that
// need the engine itself then.
func (a *app) throughGateway(cmd *cobra.Command, through bool, engineFlags ...string) (bool, error) {
	if text := a.env(gatewayEnv); text != "" && !cmd.Flags().Changed("gateway") {
		var err error
		if through, err = strconv.ParseBool(text); err != nil {
			return false, usagef("%s=%s: must be 1 or 0", gatewayEnv, text)
		}
	}
	if !through {
		return false, nil
	}
	return true, notThroughGateway(cmd, engineFlags...)
}

// source has the operations of a source: those of the engine, or of a gateway.
type source struct {
	api.Source
	b *broker.Broker // nil through a gateway
}

// source connects on behalf of an agent. The caller calls done.
func (a *app) source(ctx context.Context, gateway bool, agent string) (s *source, done func(), err error) {
	if gateway {
		if agent == "" {
			return nil, nil, usagef("--gateway needs to know which agent asks: set HANDOFF_AGENT (handoff work does, for its program)")
		}
		client, done, err := a.dialGateway(ctx, agent)
		return &source{Source: client}, done, err
	}
	b, done, err := a.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	return a.direct(b), done, nil
}

// direct returns the operations of the engine itself.
func (a *app) direct(b *broker.Broker) *source {
	return &source{a.session(b, ""), b}
}

// session returns all operations on behalf of an agent; empty is whom this command line
// acts for.
func (a *app) session(b *broker.Broker, from string) *api.Session {
	return api.New(b, api.Config{CountOn: a.engine.ResumeCount, Index: a.answersOf(b)}).As(api.Local(cmp.Or(a.programOf(), from, a.me())))
}

// onSession is the RunE of a command that does something short with all operations, on behalf
// of this command line.
func (a *app) onSession(do func(ctx context.Context, s *api.Session, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return a.onEngine(cmd.Context(), func(ctx context.Context, b *broker.Broker) error { return do(ctx, a.session(b, ""), args) })
	}
}

// reader is what views of handoffs are made of; nil without a broker, which no gateway has.
func (a *app) reader(b *broker.Broker) dossier.Reader {
	if b == nil {
		return nil
	}
	return a.session(b, "")
}

// onSource does something short with a ticket.
func (a *app) onSource(ctx context.Context, gateway bool, text string, do func(context.Context, *source, string) error) error {
	ticket, err := a.throughTicket(ctx, gateway, text)
	if err != nil {
		return err
	}
	return a.ask(ctx, func(ctx context.Context) error {
		s, done, err := a.source(ctx, gateway, a.env("HANDOFF_AGENT"))
		if err != nil {
			return err
		}
		defer done()
		return do(ctx, s, ticket)
	})
}

// dialGateway connects as an agent that may do no more than ask a gateway.
func (a *app) dialGateway(ctx context.Context, agent string) (*natsgateway.Client, func(), error) {
	conn := a.conn.resolve(a.env)
	told := a.tellSilence("a gateway at " + conn.where())
	defer told()
	nc, err := conn.dialWith(ctx, nats.CustomInboxPrefix(natsgateway.InboxPrefix(agent)))
	if err != nil {
		return nil, nil, err
	}
	client, err := natsgateway.NewClient(nc, natsgateway.ClientConfig{Agent: agent, Timeout: conn.timeout})
	if err == nil {
		err = jetstream.MayAsk(ctx, nc, natsgateway.Subject(agent, "profile")) // else it looks as if no gateway was there
	}
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return client, func() { client.Close(); nc.Close() }, nil
}

// notThroughGateway refuses flags that need the engine itself.
func notThroughGateway(cmd *cobra.Command, flags ...string) error {
	var given []string
	for _, flag := range flags {
		if cmd.Flags().Changed(flag) {
			given = append(given, "--"+flag)
		}
	}
	if len(given) == 0 {
		return nil
	}
	return usagef("%s does not go through a gateway: it needs the engine itself", strings.Join(given, ", "))
}
