package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// workFlags are the flags of work.
type workFlags struct {
	agent, description string
	capabilities       []string
	concurrency        int
	lease, drain       time.Duration
	beat, beatTimeout  time.Duration
	misses             int
	cleanup            string
	cleanupTimeout     time.Duration
	metrics            string
	update, verbose    bool
	gateway            bool
	wait               waitFlag
}

func newWork(a *app) *cobra.Command {
	var flags workFlags
	cmd := &cobra.Command{
		Use:   "work --agent AGENT [flags] -- CMD [ARG…]",
		Short: "Serve an agent: run a program for each handoff",
		Long: `Work serves an agent. For each handoff it runs CMD: the package comes on standard
input as JSON, what CMD writes to standard output is the result (JSON if it
parses, else text), standard error goes to the log here. Start more of it, on any
machine, to work on more at once.

The exit code of CMD says what came of it:

  0   complete
  65  failed for good              75  failed, retry later
  69  rejected: not for this one   77  conditional: something is needed first
  126, 127  CMD cannot run: the worker drains and ends, nobody is charged
  anything else  failed, and worth another attempt

The package has, where there are any: supplements (answers to what was asked, whose
variables are in context.variables, too), trail (who refused, asked and failed before)
and returns (the ends of what was handed off and waited for).

In the environment of CMD are HANDOFF_TICKET, HANDOFF_AGENT, HANDOFF_ATTEMPT,
HANDOFF_FENCE, HANDOFF_LIMIT (when the first clock takes it away), HANDOFF_LIMIT_CLOCK
(work, return or deadline), HANDOFF_PROGRESS_DEADLINE, HANDOFF_DEADLINE, NATS_URL, TRACEPARENT and TRACESTATE (its span, as W3C Trace Context has it); in
HANDOFF_PROGRESS_FILE the name of a file of which every line that is written there is
a report of progress ("40 parsing"); and in HANDOFF_ACK_FILE that of a file in which it
may say more than an exit code can, as a line or as JSON (handoff schema ack):

  rejected: why           conditional: what is needed
  escalated why           passed up to whom the agent escalates to
  answered text           an authority's answer to an escalation
  returned why            back to the source, with what was printed as the partial result

A result with a command hands on, in the manner of LangGraph's: {"command": {"goto":
"tester", "update": {…}}}. A list of names is a broadcast, a list of {"agent",
"update"} a group of different packages, END the end of the chain. It is recorded
with the result, so that a crash neither loses nor doubles it. "handoff submit" inside
CMD submits a handoff of its own at once; source and parent are filled in.

A handoff that is cancelled, is to go back to its source, or whose lease is lost has
CMD's whole process group terminated. Then --cleanup is run, with the same input and
environment and HANDOFF_CLEANUP_REASON: cancelled, returned or lease_lost.

An agent that is not there yet is registered, with --capability and
--description. A profile that is there stays as it is, unless --update adds them.

A worker beats to show that it is there: every --beat, each answered within
--beat-timeout; after --misses missed ones its --lease is over, and its handoffs go to
others. Whichever of them are not given follow from those that are.

` + gatewayHelp + `
CMD has HANDOFF_GATEWAY from it, so that "handoff submit", status, wait and result inside go
through the gateway as well. Where no gateway serves at the start, work ends with exit code 6.

` + waitHelp + `

` + metricsHelp + `

Ctrl-C drains: nothing new is taken, what runs has --drain to finish, the rest is
given back without charge. What has not ended 5 s later is killed with its process group.
The command ends 25 s after --drain at the latest, and a second Ctrl-C ends it at once
(both with 130).`,
		Example: `  handoff work --agent reviewer -- ./agent.sh
  handoff work --agent translator --capability french --capability german:0.6 --concurrency 4 -- python3 translate.py
  handoff work --agent echo -- cat
  handoff work --gateway --creds coder.creds --agent coder -- ./agent.sh`,
		Args: func(_ *cobra.Command, args []string) error {
			if flags.agent == "" {
				return usagef("work needs --agent AGENT")
			}
			if len(args) == 0 {
				return usagef("work needs a program to run: handoff work --agent %s -- CMD", flags.agent)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			// A program that cannot run is refused before anybody is told of a worker.
			redactor, err := a.redactor()
			if err != nil {
				return err
			}
			program := worker.ExecConfig{Command: args, Dir: a.dir, Redactor: redactor}
			if err := worker.CheckCommand(a.dir, args); err != nil {
				return err
			}
			if flags.cleanup != "" {
				program.Cleanup = []string{flags.cleanup}
				if err := worker.CheckCommand(a.dir, program.Cleanup); err != nil {
					return inField(err, "cleanup", "")
				}
			}
			capabilities, err := parseCapabilities("--capability", flags.capabilities)
			if err != nil {
				return err
			}
			cfg := worker.Config{
				Agent: flags.agent, Concurrency: flags.concurrency, DrainTimeout: flags.drain,
				Lease: flags.lease, Beat: flags.beat, BeatTimeout: flags.beatTimeout, Misses: flags.misses, CleanupTimeout: flags.cleanupTimeout,
				Profile: protocol.Profile{ID: flags.agent, Description: flags.description, Capabilities: capabilities},
				Log:     a.log(flags.verbose),
			}
			if cfg.DrainTimeout == 0 {
				cfg.DrainTimeout = -1 // 0 means the default there, and not at all here
			}
			if err := cfg.Validate(); err != nil {
				return err
			}
			a.endWithin(flags.drain + workEnd)
			outside, err := a.throughGateway(cmd, flags.gateway)
			if err != nil {
				return err
			}
			if outside {
				return a.workThroughGateway(cmd.Context(), cfg, &flags, program)
			}
			return a.work(cmd.Context(), cfg, &flags, program)
		},
	}
	fs := cmd.Flags()
	fs.SetInterspersed(false) // what follows CMD is CMD's
	fs.SortFlags = false
	fs.StringVar(&flags.agent, "agent", "", "the `AGENT` to serve")
	fs.StringArrayVar(&flags.capabilities, "capability", nil, "what a new agent can do, `NAME[:0.8]` (repeatable)")
	fs.StringVar(&flags.description, "description", "", "`WHAT` a new agent does")
	fs.BoolVar(&flags.update, "update", false, "add --capability and --description to the profile that is there")
	fs.IntVar(&flags.concurrency, "concurrency", 0, "`N` handoffs at a time, this worker's share of the agent's max_concurrency (default: all of it, else 1)")
	durationVar(fs, &flags.lease, "lease", 0, "how long handoffs stay this worker's without a word from it (default 30s, or the engine's)")
	durationVar(fs, &flags.beat, "beat", 0, "time between two beats (default: a third of the lease, at most 10s)")
	durationVar(fs, &flags.beatTimeout, "beat-timeout", 0, "how long one beat may take (default: until the next one)")
	fs.IntVar(&flags.misses, "misses", 0, "`N` missed beats end the lease (default 3)")
	fs.StringVar(&flags.cleanup, "cleanup", "", "`PROGRAM` that puts away what CMD leaves behind when its handoff is taken from it")
	durationVar(fs, &flags.cleanupTimeout, "cleanup-timeout", 0, "how long --cleanup may take (default 30s)")
	durationVar(fs, &flags.drain, "drain", worker.DrainTimeoutDefault, "how long what runs may go on after Ctrl-C")
	gatewayFlag(cmd, &flags.gateway)
	flags.wait.flag(cmd)
	metricsFlag(fs, &flags.metrics)
	verboseFlag(fs, &flags.verbose)
	a.agentFlags(cmd, "agent")
	return cmd
}

func (a *app) work(ctx context.Context, cfg worker.Config, flags *workFlags, program worker.ExecConfig) error {
	shown, err := a.show(ctx, flags.metrics, cfg.Log)
	if err != nil {
		return err
	}
	defer shown.close()
	b, done, err := a.connectService(ctx, &flags.wait, broker.Config{Log: cfg.Log, Observer: shown.observer()})
	if err != nil {
		return err
	}
	defer done()
	if cfg.Lease == 0 && cfg.Beat == 0 { // else the lease follows from the beat
		cfg.Lease = defaultLease(ctx, a.engine)
	}
	if err := a.meetProfile(ctx, b, cfg.Profile, flags.update); err != nil {
		return err
	}
	program.Env = a.childEnv()
	handler, err := worker.NewExec(program)
	if err != nil {
		return err
	}
	cfg.Trace = a.traces.Work
	w, err := worker.New(b, cfg, handler)
	if err != nil {
		return err
	}
	shown.worker(cfg.Agent, b, w)
	shown.started()
	return w.Run(ctx)
}

// meetProfile adds to the profile that is there what was asked for, if told to,
// and else says what it leaves out: a capability that nobody routes by is a
// surprise better met here.
func (a *app) meetProfile(ctx context.Context, b *broker.Broker, wanted protocol.Profile, update bool) error {
	profile, err := b.Profile(ctx, wanted.ID)
	if errors.Is(err, broker.ErrNotFound) {
		return nil // the worker registers it
	}
	if err != nil {
		return err
	}
	return a.meet(profile, wanted, update, func(p protocol.Profile) error { return b.PutProfile(ctx, p) })
}

// meet is meetProfile with the profile that is there.
func (a *app) meet(profile, wanted protocol.Profile, update bool, put func(protocol.Profile) error) error {
	var lacking []string
	for _, c := range wanted.Capabilities {
		i := slices.IndexFunc(profile.Capabilities, func(has protocol.Capability) bool { return has.ID == c.ID })
		switch {
		case i < 0:
			lacking = append(lacking, c.ID)
			profile.Capabilities = append(profile.Capabilities, c)
		case profile.Capabilities[i] != c:
			lacking = append(lacking, c.ID)
			profile.Capabilities[i] = c
		}
	}
	if wanted.Description != "" && wanted.Description != profile.Description {
		lacking = append(lacking, "the description")
		profile.Description = wanted.Description
	}
	if len(lacking) == 0 {
		return nil
	}
	if !update {
		a.notef("handoff: %s is registered already, without %s; --update adds it\n", wanted.ID, strings.Join(lacking, ", "))
		return nil
	}
	profile.UpdatedAt = time.Now().UTC().Truncate(time.Millisecond)
	if err := profile.Validate(); err != nil {
		return err
	}
	return put(profile)
}

// childEnv lets "handoff submit" inside the program find the engine that its
// worker uses, whichever way that was said.
func (a *app) childEnv() []string {
	return a.connEnv(strings.Join(a.engine.Conn().Opts.Servers, ","))
}

// connEnv is the environment that says where the engine is: at these servers, if
// it is not empty.
func (a *app) connEnv(servers string) []string {
	conn := a.conn.resolve(a.env)
	env := []string{timeoutEnv + "=" + conn.timeout.String(), "NATS_CONTEXT=" + conn.context, "NATS_INBOX_PREFIX=" + conn.inboxPrefix}
	if a.dir != "" { // a program has the environment of the command line, not that of the process
		for _, name := range []string{"PATH", "HOME", "PWD", "TMPDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME"} {
			env = append(env, name+"="+a.env(name))
		}
	}
	if servers != "" {
		env = append(env, "NATS_URL="+servers)
	}
	for name, path := range map[string]string{"NATS_CREDS": conn.creds, "NATS_NKEY": conn.nkey,
		"NATS_CA": conn.tlsCA, "NATS_CERT": conn.tlsCert, "NATS_KEY": conn.tlsKey} {
		if absolute, err := filepath.Abs(path); path != "" && err == nil {
			path = absolute
		}
		env = append(env, name+"="+path)
	}
	return env
}

func newExample(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "example",
		Short: "Print a script to start an agent from",
		Example: `  handoff example > agent.sh && chmod +x agent.sh
  handoff work --agent reviewer -- ./agent.sh`,
		Args: takes(),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(a.out, worker.ExampleScript())
			return err
		},
	}
}
