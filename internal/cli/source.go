package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// gatewayEnv is the variable that does the same as --gateway.
const gatewayEnv = "HANDOFF_GATEWAY"

// gatewayHelp explains --gateway, in the help of every command that has it.
const gatewayHelp = `--gateway (or HANDOFF_GATEWAY=1) goes through a gateway (handoff gateway), for agents
that may not reach the engine itself. Answers come to subjects that begin with _INBOX_
and the agent's name.`

func (a *app) gatewayFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.through, "gateway", false, "go through a gateway instead of to the engine itself ($"+gatewayEnv+")")
}

// throughGateway decides whether a command goes through a gateway, and refuses the flags that need
// the engine itself then.
func (a *app) throughGateway(cmd *cobra.Command, engineFlags ...string) (err error) {
	if text := a.env(gatewayEnv); text != "" && !cmd.Flags().Changed("gateway") {
		if a.through, err = strconv.ParseBool(text); err != nil {
			return usagef("%s=%s: must be 1 or 0", gatewayEnv, text)
		}
	}
	var given []string
	for _, flag := range engineFlags {
		if a.through && cmd.Flags().Changed(flag) {
			given = append(given, "--"+flag)
		}
	}
	if len(given) == 0 {
		return nil
	}
	return usagef("%s does not go through a gateway: it needs the engine itself", strings.Join(given, ", "))
}

// source has the operations of an agent: those of the engine, or of a gateway.
type source struct {
	api.AgentOperations
	b *broker.Broker // nil through a gateway

	session *api.Session                                // the same, and all others; nil through a gateway
	see     func(context.Context, protocol.State) error // is called with each state that a wait reads; see speaker
}

// source connects on behalf of an agent. The caller calls done.
func (a *app) source(ctx context.Context, gateway bool, agent string) (s *source, done func(), err error) {
	return a.sourceWith(ctx, gateway, agent, broker.Config{})
}

func (a *app) sourceWith(ctx context.Context, gateway bool, agent string, cfg broker.Config) (s *source, done func(), err error) {
	if gateway {
		if agent == "" {
			return nil, nil, usagef("--gateway needs to know which agent asks: set HANDOFF_AGENT (handoff work does, for its program)")
		}
		client, done, err := a.dialGateway(ctx, agent)
		return &source{AgentOperations: client}, done, err
	}
	b, done, err := a.connectWith(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	return a.direct(b), done, nil
}

// on does something short over a connection: within one deadline with the connecting.
func (a *app) on(ctx context.Context, gateway bool, agent string, do func(context.Context, *source) error) error {
	return a.ask(ctx, func(ctx context.Context) error {
		s, done, err := a.source(ctx, gateway, agent)
		if err != nil {
			return err
		}
		defer done()
		return do(ctx, s)
	})
}

// onEngine does something short with the engine itself.
func (a *app) onEngine(ctx context.Context, do func(context.Context, *source) error) error {
	return a.on(ctx, false, "", do)
}

// onSource does something short with a ticket.
func (a *app) onSource(ctx context.Context, text string, do func(context.Context, *source, string) error) error {
	ticket, err := a.throughTicket(ctx, text)
	if err != nil {
		return err
	}
	return a.on(ctx, a.through, a.env("HANDOFF_AGENT"), func(ctx context.Context, s *source) error { return do(ctx, s, ticket) })
}

// onTicket is the RunE of a command that does something short with a TICKET and the engine itself.
func (a *app) onTicket(do func(context.Context, *source, string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error { return a.onSource(cmd.Context(), args[0], do) }
}

// direct returns the operations of the engine itself.
func (a *app) direct(b *broker.Broker) *source {
	session := a.session(b)
	return &source{AgentOperations: session, b: b, session: session, see: (&speaker{a: a, b: b}).see}
}

// session returns all operations on behalf of whom this command line acts for.
func (a *app) session(b *broker.Broker) *api.Session {
	return api.New(b, api.Config{CountOn: a.engine.ResumeCount, Index: a.answersOf(b)}).As(api.Local(cmp.Or(a.programOf(), a.from, a.me())))
}

// onSession is the RunE of a command that does something short with all operations, on behalf
// of this command line.
func (a *app) onSession(do func(ctx context.Context, s *api.Session, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return a.onEngine(cmd.Context(), func(ctx context.Context, s *source) error { return do(ctx, s.session, args) })
	}
}

// onNamed is the RunE of a command that does something short with the one that its argument names,
// and prints the answer.
func onNamed[T any](a *app, do func(*api.Session, context.Context, string) (T, error), print func(T) error) func(*cobra.Command, []string) error {
	return a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
		v, err := do(s, ctx, args[0])
		return printed(a, v, err, print)
	})
}

// one is a command about the one thing of a group that its argument names; name is such a name.
func one[T any](a *app, path, name, short, long string, do func(*api.Session, context.Context, string) (T, error), print func(T) error) *cobra.Command {
	_, use, _ := strings.Cut(path, " ")
	return &cobra.Command{
		Use: use + " NAME", Short: short, Long: long, Example: "  handoff " + path + " " + name,
		Args: takes("a NAME"), RunE: onNamed(a, do, print),
	}
}

// onAll is onNamed without a name.
func onAll[T any](a *app, do func(*api.Session, context.Context) (T, error), print func(T) error) func(*cobra.Command, []string) error {
	return a.onSession(func(ctx context.Context, s *api.Session, _ []string) error {
		v, err := do(s, ctx)
		return printed(a, v, err, print)
	})
}

// onList is onAll for a list, of which programs read each value.
func onList[T any](a *app, do func(*api.Session, context.Context) ([]T, error), print func([]T) error) func(*cobra.Command, []string) error {
	return a.onSession(func(ctx context.Context, s *api.Session, _ []string) error {
		all, err := do(s, ctx)
		return printedList(a, all, err, print)
	})
}

// status returns the state of a handoff, or of the last one of its chain.
func (s *source) status(ctx context.Context, ticket string, chain bool) (protocol.State, error) {
	if chain {
		return s.LastOfChain(ctx, ticket)
	}
	return s.Status(ctx, ticket)
}

// result returns the result of a handoff, or of the last one of its chain.
func (s *source) result(ctx context.Context, ticket string, chain bool) (protocol.Result, protocol.State, error) {
	if chain {
		return s.ChainResult(ctx, ticket)
	}
	return s.Result(ctx, ticket)
}

// dialGateway connects as an agent that may do no more than ask a gateway.
func (a *app) dialGateway(ctx context.Context, agent string) (*natsgateway.Client, func(), error) {
	conn := a.conn.resolve(a.env)
	told := a.tellSilence("a gateway at " + conn.where())
	defer told()
	nc, err := conn.dial(ctx, nats.CustomInboxPrefix(natsgateway.InboxPrefix(agent)))
	if err != nil {
		return nil, nil, err
	}
	client, err := natsgateway.NewClient(nc, natsgateway.ClientConfig{Agent: agent, Timeout: conn.timeout})
	if err == nil {
		err = jetstream.MayAsk(ctx, nc, natsgateway.Subject(agent, "Status")) // else it looks as if no gateway was there
	}
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return client, func() { client.Close(); nc.Close() }, nil
}

// lastTicket is the argument for the ticket that this user submitted last.
const lastTicket = "-"

// ticket reads a ticket of the command line: a whole one, the beginning of one, for which an
// index is asked, or - for the last one submitted.
func (a *app) ticket(ctx context.Context, text string) (string, error) {
	text = strings.TrimSpace(text)
	whole, err := protocol.ParseTicket(text)
	switch {
	case err == nil:
		return whole, nil
	case text == lastTicket:
		return a.lastSubmitted()
	}
	if _, err := ask.ParsePrefix(text); err != nil {
		return "", err
	}
	err = a.onEngine(ctx, func(ctx context.Context, s *source) error {
		whole, err = s.session.Find(ctx, text)
		return err
	})
	return whole, err
}

// throughTicket is ticket for a command that may go through a gateway, which finds no tickets.
func (a *app) throughTicket(ctx context.Context, text string) (string, error) {
	if a.through && text != lastTicket {
		return protocol.ParseTicket(text)
	}
	return a.ticket(ctx, text)
}

// tickets reads tickets, in place.
func (a *app) tickets(ctx context.Context, texts ...[]string) error {
	for _, list := range texts {
		for i, text := range list {
			var err error
			if list[i], err = a.ticket(ctx, text); err != nil {
				return err
			}
		}
	}
	return nil
}

// parseTickets reads tickets that may have come from a list, white space and all.
func (a *app) parseTickets(ctx context.Context, args []string) ([]string, error) {
	tickets := slices.Clone(args)
	return tickets, a.tickets(ctx, tickets)
}

// lastFile is where the ticket of the last submission is kept, as the XDG base directories have it.
func (a *app) lastFile() (string, error) {
	dir, err := a.stateHome()
	return filepath.Join(dir, "last-ticket"), err
}

// remember stores the ticket of the user's last submission, which "-" names in later commands. It
// ignores errors, since the ticket was printed, and submissions of a program that a worker runs.
func (a *app) remember(ticket string) {
	file, err := a.lastFile()
	if err != nil || a.env("HANDOFF_TICKET") != "" {
		return
	}
	if os.MkdirAll(filepath.Dir(file), 0o700) == nil {
		_ = os.WriteFile(file, []byte(ticket+"\n"+a.conn.resolve(a.env).where()+"\n"), 0o600)
	}
}

func (a *app) lastSubmitted() (string, error) {
	file, err := a.lastFile()
	if err != nil {
		return "", err
	}
	body, err := os.ReadFile(file)
	if err != nil {
		return "", usagef("- is the last ticket that you submitted, and there is none so far")
	}
	text, engine, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	ticket, err := protocol.ParseTicket(text)
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	if here := a.conn.resolve(a.env).where(); engine != here {
		a.notef("handoff: - is %s, which was submitted to %s, and not to %s\n", ticket, engine, here)
	}
	return ticket, nil
}
