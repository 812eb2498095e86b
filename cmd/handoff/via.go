package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/service"
	"github.com/agenthandoff/handoff/worker"
)

// The ways to the engine, as --via has them.
const (
	viaEngine  = "engine"
	viaService = "service"
)

// viaHelp is what the help of every command that has --via says of it.
const viaHelp = `--via service (or HANDOFF_VIA=service) goes through a door (handoff door), for those who
may not reach the engine itself. Answers come to subjects that begin with _INBOX_ and
the agent's name.`

func viaFlag(cmd *cobra.Command, via *string) {
	cmd.Flags().StringVar(via, "via", "", "the way to the engine: engine (itself, the default) or service (a door) ($HANDOFF_VIA)")
	words(cmd, "via", viaEngine, viaService)
}

// throughDoor tells whether a command goes through a door.
func (a *app) throughDoor(via string) (bool, error) {
	switch via = cmp.Or(via, a.env("HANDOFF_VIA"), viaEngine); via {
	case viaEngine:
		return false, nil
	case viaService:
		return true, nil
	}
	return false, usagef("--via %s: the ways are %s and %s", via, viaEngine, viaService)
}

// dialDoor connects as an agent that may do no more than ask a door.
func (a *app) dialDoor(ctx context.Context, agent string) (*service.Client, func(), error) {
	conn := a.conn.resolve(a.env)
	told := a.tellSilence("a door at " + conn.where())
	defer told()
	nc, err := conn.dialWith(ctx, nats.CustomInboxPrefix(service.InboxPrefix(agent)))
	if err != nil {
		return nil, nil, err
	}
	client, err := service.NewClient(nc, service.ClientConfig{Agent: agent, Timeout: conn.timeout})
	if err == nil {
		err = broker.MayAsk(ctx, nc, service.Subject(agent, "profile")) // else it looks as if no door was there
	}
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return client, func() { client.Close(); nc.Close() }, nil
}

// atDoor does something short through a door, as the agent that we are.
func (a *app) atDoor(ctx context.Context, agent string, do func(context.Context, *service.Client) error) error {
	if agent == "" {
		return usagef("--via %s needs to know whose request it is: set HANDOFF_AGENT (handoff work does, for its program)", viaService)
	}
	client, done, err := a.dialDoor(ctx, agent)
	if err != nil {
		return err
	}
	defer done()
	return do(ctx, client)
}

// onDoorTicket does something short with a ticket through a door.
func (a *app) onDoorTicket(ctx context.Context, text string, do func(context.Context, *service.Client, string) error) error {
	ticket, err := protocol.ParseTicket(text)
	if err != nil {
		return err
	}
	return a.ask(ctx, func(ctx context.Context) error {
		return a.atDoor(ctx, a.env("HANDOFF_AGENT"), func(ctx context.Context, c *service.Client) error { return do(ctx, c, ticket) })
	})
}

// notThroughDoor refuses flags that need the engine itself.
func notThroughDoor(cmd *cobra.Command, flags ...string) error {
	var given []string
	for _, flag := range flags {
		if cmd.Flags().Changed(flag) {
			given = append(given, "--"+flag)
		}
	}
	if len(given) == 0 {
		return nil
	}
	return usagef("%s does not go through a door: it needs the engine itself", strings.Join(given, ", "))
}

// workThroughDoor is work for a worker that may not reach the engine.
func (a *app) workThroughDoor(ctx context.Context, cfg worker.Config, flags *workFlags, program worker.ExecConfig) error {
	shown, err := a.show(ctx, flags.metrics, cfg.Log)
	if err != nil {
		return err
	}
	defer shown.close()
	client, profile, done, err := a.meetDoor(ctx, cfg, flags)
	if err != nil {
		return err
	}
	defer done()
	traces := a.startTraces(ctx, cfg.Log)
	defer traces.Stop()
	if cfg.Lease == 0 && cfg.Beat == 0 { // else the lease follows from the beat
		cfg.Lease = client.Lease()
	}
	err = a.meet(profile, cfg.Profile, flags.update, func(p protocol.Profile) error {
		_, err := client.ReplaceProfile(ctx, p)
		return err
	})
	if err != nil {
		return err
	}
	program.Env = append(a.connEnv(strings.Join(client.Servers(), ",")), "HANDOFF_VIA="+viaService)
	handler, err := worker.NewExec(program)
	if err != nil {
		return err
	}
	cfg.Trace = traces.Work
	w, err := worker.NewOver(client, cfg, handler)
	if err != nil {
		return err
	}
	shown.worker(cfg.Agent, nil, w)
	shown.started()
	return w.Run(ctx)
}

// meetDoor connects and registers the agent, and waits for a door if told to.
func (a *app) meetDoor(ctx context.Context, cfg worker.Config, flags *workFlags) (client *service.Client, profile protocol.Profile, done func(), err error) {
	meet := func(ctx context.Context) error {
		if client, done, err = a.dialDoor(ctx, cfg.Agent); err != nil {
			return err
		}
		if profile, err = a.registerAtDoor(ctx, client, cfg.Profile); err != nil {
			done()
		}
		return err
	}
	if !flags.wait.waits(a) {
		err = meet(ctx)
		return client, profile, done, err
	}
	a.waiting = true
	defer func() { a.waiting = false }()
	err = a.waitFor(ctx, broker.Config{Log: cfg.Log}, func(ctx context.Context) error {
		err := meet(ctx)
		if errors.Is(err, service.ErrNobody) {
			err = &broker.SilenceError{After: a.timeout(), Last: err}
		}
		return err
	})
	return client, profile, done, err
}

// registerAtDoor registers the agent, or reads its profile, and says what to start
// where nobody answers: a worker would wait for a door for ever.
func (a *app) registerAtDoor(ctx context.Context, client *service.Client, wanted protocol.Profile) (protocol.Profile, error) {
	ctx, cancel := a.asking(ctx)
	defer cancel()
	return client.Register(ctx, wanted)
}

// submitOutside builds the package of a command line and submits it through a door.
func (a *app) submitOutside(cmd *cobra.Command, flags packageFlags, lines linesFlags, limit *time.Duration) error {
	if err := notThroughDoor(cmd, "under", "await", "lines", "keep-going", "dry-run"); err != nil {
		return err
	}
	if lines.of(flags.file) {
		return usagef("a file of lines does not go through a door: submit its packages one by one")
	}
	pkg, err := flags.build(cmd.Flags().Changed, a, time.Now())
	if err != nil {
		return err
	}
	if pkg.Source == "" {
		return usagef("--via %s needs to know whose request it is: set HANDOFF_AGENT, or give --from", viaService)
	}
	return a.submitThroughDoor(cmd.Context(), pkg, flags, limit)
}

// submitThroughDoor submits as the source of the package, which is the agent that we are.
func (a *app) submitThroughDoor(ctx context.Context, pkg protocol.Package, flags packageFlags, limit *time.Duration) error {
	agent, given := pkg.Source, pkg.CreatedAt
	pkg.Key = cmp.Or(pkg.Key, uuid.NewString()) // so that it may be sent again
	prepared, err := a.prepare(ctx, pkg)
	if err != nil {
		return flags.hint(err)
	}
	if prepared.Redacted > 0 {
		a.notef("handoff: secrets taken out of the package before it is sent: %d\n", prepared.Redacted)
	}
	sent, err := protocol.DecodePackage(prepared.Body)
	if err != nil {
		return err
	}
	// The same package sent again later is the same: its time is the door's to set, and
	// so is a priority that it takes over from its parent.
	sent.Priority = pkg.Priority
	sent.CreatedAt, sent.TraceParent, sent.TraceState = given, pkg.TraceParent, pkg.TraceState
	return a.atDoor(ctx, agent, func(ctx context.Context, c *service.Client) error {
		limited, cancel := a.asking(ctx)
		defer cancel()
		state, err := a.submitAgain(limited, c, sent)
		if err != nil {
			return flags.hint(err)
		}
		if a.text() {
			a.printf("%s\n", state.Ticket)
		}
		if limit == nil {
			if a.text() {
				return nil
			}
			return a.value(view(state))
		}
		state, err = waitAtDoor(ctx, c, state.Ticket, *limit, "closed")
		if !a.text() {
			return errors.Join(a.value(view(state)), err)
		}
		if err == nil {
			a.notef("%s: %s\n", state.Ticket, ending(state))
		}
		return err
	})
}

// submitAgain submits until a door has answered, or ctx ends: the key makes that
// harmless. Only where nobody is there at all it is said at once.
func (a *app) submitAgain(ctx context.Context, c *service.Client, pkg protocol.Package) (protocol.State, error) {
	for {
		state, err := c.Submit(ctx, pkg)
		if !errors.Is(err, broker.ErrUnreachable) || errors.Is(err, service.ErrNobody) || ctx.Err() != nil {
			return state, err
		}
	}
}

func (a *app) statusThroughDoor(ctx context.Context, ticket string) error {
	return a.onDoorTicket(ctx, ticket, func(ctx context.Context, c *service.Client, ticket string) error {
		state, err := c.Status(ctx, ticket)
		if err != nil {
			return err
		}
		return a.state(state)
	})
}

func (a *app) waitThroughDoor(ctx context.Context, text string, limit time.Duration, until string) error {
	if !slices.Contains([]string{"closed", "accepted"}, until) {
		return usagef("--until %s does not go through a door: closed and accepted do", until)
	}
	ticket, err := protocol.ParseTicket(text)
	if err != nil {
		return err
	}
	return a.atDoor(ctx, a.env("HANDOFF_AGENT"), func(ctx context.Context, c *service.Client) error {
		state, err := waitAtDoor(ctx, c, ticket, limit, until)
		if state.Ticket == "" {
			return err
		}
		if !a.text() {
			return errors.Join(a.value(view(state)), err)
		}
		a.printf("%s  %s\n", state.Ticket, a.phase(state))
		return err
	})
}

// waitAtDoor is waitFor through a door.
func waitAtDoor(ctx context.Context, c *service.Client, ticket string, limit time.Duration, until string) (protocol.State, error) {
	state, err := c.Status(ctx, ticket) // which finds out at once whether there is one
	switch {
	case err != nil:
		return state, err
	case untils[until](state):
		return finish(state, nil)
	case limit == 0:
		return state, &openError{state}
	case limit > 0:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, errWaited)
		defer cancel()
	}
	for {
		last, err := c.Wait(ctx, ticket, until)
		if last.Ticket != "" {
			state = last
		}
		switch {
		case err == nil:
			return finish(state, nil)
		case context.Cause(ctx) == errWaited:
			return state, &openError{state}
		case !errors.Is(err, broker.ErrUnreachable) || errors.Is(err, service.ErrNobody) || ctx.Err() != nil:
			return state, err
		}
	}
}

func (a *app) resultThroughDoor(ctx context.Context, ticket string, asReturn bool) error {
	return a.onDoorTicket(ctx, ticket, func(ctx context.Context, c *service.Client, ticket string) error {
		if asReturn {
			return a.returnOf(ctx, c, ticket)
		}
		result, state, err := c.Result(ctx, ticket)
		switch {
		case errors.Is(err, broker.ErrNotFound) && state.Ticket != "":
			return failed(state)
		case err != nil:
			return err
		case !a.text():
			return a.value(result)
		}
		return a.result(result)
	})
}
