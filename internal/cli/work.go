package cli

import (
	"context"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
	"github.com/agenthandoff/handoff/worker/output"
)

// workFlags are the flags of work.
type workFlags struct {
	agent, description string
	capabilities       []string
	concurrency        int
	lease, drain       time.Duration
	beat, beatTimeout  time.Duration
	misses             int
	cleanup, bid       string
	result, input      string
	bids               bool
	cleanupTimeout     time.Duration
	handoffs           string
	enableHandoffs     bool
	update, gateway    bool
	person             bool
	serviceFlags
}

func newWork(a *app) *cobra.Command {
	var flags workFlags
	cmd := &cobra.Command{
		Use:   "work --agent AGENT [flags] -- CMD [ARG…]",
		Short: "Serve an agent: run a program for each handoff",
		Long:  workHelp,
		Example: `  handoff work --agent reviewer -- ./agent.sh
  handoff work --agent translator --capability french --capability german:0.6 --concurrency 4 -- python3 translate.py
  handoff work --agent echo -- cat
  handoff work --gateway --creds coder.creds --agent coder -- ./agent.sh`,
		Args: flags.args,
		RunE: func(cmd *cobra.Command, args []string) error { return a.runWork(cmd, &flags, args) },
	}
	flags.declare(a, cmd)
	return cmd
}

func (flags *workFlags) declare(a *app, cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.SetInterspersed(false) // what follows CMD is CMD's
	fs.SortFlags = false
	fs.StringVar(&flags.agent, "agent", "", "the `AGENT` to serve")
	fs.StringArrayVar(&flags.capabilities, "capability", nil, "what a new agent can do, `NAME[:0.8]` (repeatable)")
	fs.StringVar(&flags.description, "description", "", "`WHAT` a new agent does")
	fs.StringVar(&flags.handoffs, "handoffs", "", "what a new agent may hand off: on (default), off, or simple (to one agent: sequential and delegation)")
	fs.BoolVar(&flags.enableHandoffs, "enable-handoffs", false, "the same as --handoffs on")
	fs.BoolVar(&flags.update, "update", false, "add --capability, --description and --handoffs to the profile that is there")
	fs.BoolVar(&flags.person, "yes-i-am-a-person", false, "serve human: CMD puts each handoff before a person, who decides")
	fs.IntVar(&flags.concurrency, "concurrency", 0, "`N` handoffs at a time, this worker's share of the agent's max_concurrency (default: all of it, else 1)")
	durationVar(fs, &flags.lease, "lease", 0, "how long handoffs stay this worker's without a word from it (default 30s, or the engine's)")
	durationVar(fs, &flags.beat, "beat", 0, "time between two beats (default: a third of the lease, at most 10s)")
	durationVar(fs, &flags.beatTimeout, "beat-timeout", 0, "how long one beat may take (default: until the next one)")
	fs.IntVar(&flags.misses, "misses", 0, "`N` missed beats end the lease (default 3)")
	fs.StringVar(&flags.input, "input", string(worker.InputPackage), "what CMD reads: package (JSON) or brief (instructions for a model; the package is in HANDOFF_PACKAGE_FILE)")
	fs.StringVar(&flags.result, "result", string(output.Auto), "how CMD's output is read: auto, json (it is a result, or the attempt has failed) or text (nothing in it is read)")
	fs.StringVar(&flags.cleanup, "cleanup", "", "`PROGRAM` that puts away what CMD leaves behind when its handoff is taken from it")
	fs.BoolVar(&flags.bids, "bids", false, "a new agent makes bids, where it is asked what it would do the work for (see handoff submit --bids)")
	fs.StringVar(&flags.bid, "bid", "", "`PROGRAM` that prints the bid for a call on its input; the same as --bids without it")
	durationVar(fs, &flags.cleanupTimeout, "cleanup-timeout", 0, "how long --cleanup may take (default 30s)")
	durationVar(fs, &flags.drain, "drain", worker.DrainTimeoutDefault, "how long what runs may go on after Ctrl-C")
	gatewayFlag(cmd, &flags.gateway)
	flags.serviceFlags.declare(cmd)
	a.agentFlags(cmd, "agent")
	a.words(cmd, "handoffs", asWords(protocol.HandoffModes)...)
	a.words(cmd, "result", asWords(output.Modes)...)
}

// program is what the worker runs. One that cannot run is refused before the worker is there.
func (flags *workFlags) program(a *app, args []string) (worker.ExecConfig, error) {
	redactor, err := a.redactor()
	program := worker.ExecConfig{Command: args, Dir: a.dir, Redactor: redactor, Output: output.Mode(flags.result), Input: worker.Input(flags.input)}
	if err == nil {
		err = worker.CheckCommand(a.dir, args)
	}
	if err == nil && flags.cleanup != "" {
		program.Cleanup = []string{flags.cleanup}
		err = inField(worker.CheckCommand(a.dir, program.Cleanup), "cleanup", "")
	}
	if err == nil && flags.bid != "" {
		program.Bid = []string{flags.bid}
		err = inField(worker.CheckCommand(a.dir, program.Bid), "bid", "")
	}
	return program, err
}

// config is the worker that the flags describe.
func (flags *workFlags) config(a *app) (worker.Config, error) {
	capabilities, err := parseCapabilities("--capability", flags.capabilities)
	if err != nil {
		return worker.Config{}, err
	}
	cfg := worker.Config{
		Agent: flags.agent, Concurrency: flags.concurrency, DrainTimeout: flags.drain,
		Lease: flags.lease, Beat: flags.beat, BeatTimeout: flags.beatTimeout, Misses: flags.misses, CleanupTimeout: flags.cleanupTimeout,
		Profile: protocol.Profile{ID: flags.agent, Description: flags.description, Capabilities: capabilities, Handoffs: flags.handoffMode(), Bids: flags.bids || flags.bid != ""},
		Log:     a.log(flags.verbose),
	}
	if cfg.DrainTimeout == 0 {
		cfg.DrainTimeout = -1 // 0 means the default there, and not at all here
	}
	return cfg, cfg.Validate()
}

func (a *app) runWork(cmd *cobra.Command, flags *workFlags, args []string) error {
	program, err := flags.program(a, args)
	if err != nil {
		return err
	}
	cfg, err := flags.config(a)
	if err != nil {
		return err
	}
	a.endWithin(flags.drain + workEnd)
	through, err := a.throughGateway(cmd, flags.gateway)
	switch {
	case err != nil:
		return err
	case through:
		return a.workThroughGateway(cmd.Context(), cfg, flags, program)
	}
	return a.work(cmd.Context(), cfg, flags, program)
}

func (a *app) work(ctx context.Context, cfg worker.Config, flags *workFlags, program worker.ExecConfig) error {
	return a.serve(ctx, &flags.serviceFlags, func(b *broker.Broker, log *slog.Logger, shown *showing) error {
		cfg.Log, cfg.Trace = log, a.traces.WorkContext
		if cfg.Lease == 0 && cfg.Beat == 0 { // else the lease follows from the beat
			cfg.Lease = defaultLease(ctx, a.engine)
		}
		if err := a.meetProfile(ctx, b, cfg.Profile, flags.update); err != nil {
			return err
		}
		program.Env = a.childEnv()
		return a.runWorker(ctx, shown, b, cfg, program, func(handler worker.Handler) (*worker.Worker, error) { return worker.New(b, cfg, handler) })
	})
}
