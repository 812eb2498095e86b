package cli

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
	"github.com/agenthandoff/handoff/worker/output"
)

// workFlags are the flags of work.
type workFlags struct {
	Agent          string               `flag:"agent" doc:"the {AGENT} to serve"`
	Capabilities   []string             `flag:"capability,,each" doc:"a capability of a new agent, {NAME[:0.8]} (repeatable)"`
	Description    string               `flag:"description" doc:"{TEXT} about a new agent"`
	Handoffs       protocol.HandoffMode `flag:"handoffs" doc:"whether a new agent may hand off: on (default), off, or simple (to one agent: sequential and delegation)"`
	EnableHandoffs bool                 `flag:"enable-handoffs" doc:"the same as --handoffs on"`
	Update         bool                 `flag:"update" doc:"add --capability, --description and --handoffs to the profile that is there"`
	Person         bool                 `flag:"yes-i-am-a-person" doc:"serve human: CMD puts each handoff before a person, who decides"`
	Concurrency    int                  `flag:"concurrency" doc:"{N} handoffs at a time, this worker's share of the agent's max_concurrency (default: all of it, else 1)"`
	Lease          time.Duration        `flag:"lease" doc:"how long handoffs stay this worker's without a word from it (default 30s, or the engine's)"`
	Beat           time.Duration        `flag:"beat" doc:"time between two beats (default: a third of the lease, at most 10s)"`
	BeatTimeout    time.Duration        `flag:"beat-timeout" doc:"how long one beat may take (default: until the next one)"`
	Misses         int                  `flag:"misses" doc:"{N} missed beats end the lease (default 3)"`
	Input          worker.Input         `flag:"input" doc:"the input of CMD: package (JSON) or brief (instructions for a model; the package is in HANDOFF_PACKAGE_FILE)"`
	Result         output.Mode          `flag:"result" doc:"how CMD's output is read: auto, json (it is a result, or the attempt has failed) or text (nothing in it is read)"`
	Stay           bool                 `flag:"stay" doc:"start CMD once for each slot: it reads handoffs and writes results as lines of JSON"`
	Env            []string             `flag:"env,,commas" doc:"{NAME,…} of variables that CMD sees too, such as ANTHROPIC_API_KEY or AWS_*; all: every one"`
	Cleanup        string               `flag:"cleanup" doc:"{PROGRAM} that cleans up after CMD when its handoff is taken from it"`
	Bids           bool                 `flag:"bids" doc:"a new agent makes bids when it is called for one (see handoff submit --bids)"`
	Bid            string               `flag:"bid" doc:"{PROGRAM} that prints the bid for a call on its input; the same as --bids without it"`
	CleanupTimeout time.Duration        `flag:"cleanup-timeout" doc:"how long --cleanup may take (default 30s)"`
	Drain          time.Duration        `flag:"drain" doc:"how long running handoffs may go on after Ctrl-C"`
	serviceFlags
}

func newWork(a *app) *cobra.Command {
	flags := workFlags{Input: worker.InputPackage, Result: output.Auto, Drain: worker.DrainTimeoutDefault}
	cmd := &cobra.Command{
		Use:   "work --agent AGENT [flags] -- CMD [ARG…]",
		Short: "Serve an agent: run a program for each handoff",
		Long:  workHelp,
		Example: `  handoff work --agent reviewer -- ./agent.sh
  handoff work --agent translator --capability french --capability german:0.6 --concurrency 4 -- python3 translate.py
  handoff work --agent echo -- cat
  handoff work --agent coder --env ANTHROPIC_API_KEY -- ./coder.sh
  handoff work --agent summarizer --concurrency 2 --stay -- python3 summarize.py
  handoff work --gateway --creds coder.creds --agent coder -- ./agent.sh`,
		Args: flags.args,
		RunE: func(cmd *cobra.Command, args []string) error { return a.runWork(cmd, &flags, args) },
	}
	fs := cmd.Flags()
	fs.SetInterspersed(false) // flags after CMD are CMD's
	fs.SortFlags = false
	bind(fs, &flags)
	a.gatewayFlag(cmd)
	bind(fs, &flags.serviceFlags)
	return cmd
}

// program returns the program of the worker. One that cannot run is refused before the worker
// exists.
func (flags *workFlags) program(a *app, args []string) (worker.ExecConfig, error) {
	redactor, err := a.redactor()
	program := worker.ExecConfig{Command: args, Dir: a.dir, Redactor: redactor, Output: flags.Result, Input: flags.Input, Inherit: flags.Env}
	if err == nil {
		err = worker.CheckCommand(a.dir, args)
	}
	if err == nil && flags.Cleanup != "" {
		program.Cleanup = []string{flags.Cleanup}
		err = inField(worker.CheckCommand(a.dir, program.Cleanup), "cleanup", "")
	}
	if err == nil && flags.Bid != "" {
		program.Bid = []string{flags.Bid}
		err = inField(worker.CheckCommand(a.dir, program.Bid), "bid", "")
	}
	return program, err
}

// config is the worker that the flags describe.
func (flags *workFlags) config(a *app) (worker.Config, error) {
	capabilities, err := parseCapabilities("--capability", flags.Capabilities)
	if err != nil {
		return worker.Config{}, err
	}
	cfg := worker.Config{
		Agent: flags.Agent, Concurrency: flags.Concurrency, DrainTimeout: flags.Drain,
		Lease: flags.Lease, Beat: flags.Beat, BeatTimeout: flags.BeatTimeout, Misses: flags.Misses, CleanupTimeout: flags.CleanupTimeout,
		Profile: protocol.Profile{ID: flags.Agent, Description: flags.Description, Capabilities: capabilities, Handoffs: flags.handoffMode(), Bids: flags.Bids || flags.Bid != ""},
		Log:     a.log(flags.Verbose),
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
	a.noteUnset(flags.Env)
	a.endWithin(flags.Drain + workEnd)
	if err := a.throughGateway(cmd); err != nil {
		return err
	}
	reach := a.reachEngine
	if a.through {
		reach = a.reachGateway
	}
	return a.serveOver(cmd.Context(), &flags.serviceFlags, func(ctx context.Context, log *slog.Logger, shown *showing) (func() error, func(), error) {
		cfg.Log = log
		at, done, err := reach(ctx, cfg, flags, shown)
		return func() error { return a.work(cmd.Context(), at, cfg, flags, program, shown) }, done, err
	})
}

// workplace is where a worker gets its work: the engine, or a gateway.
type workplace struct {
	b       *broker.Broker // nil at a gateway
	servers []string
	env     []string      // for the programs, in addition
	lease   time.Duration // the engine's default; 0 if it has none
	profile *protocol.Profile
	session worker.Session
}

// work runs a program for each handoff until ctx ends.
func (a *app) work(ctx context.Context, at *workplace, cfg worker.Config, flags *workFlags, program worker.ExecConfig, shown *showing) error {
	if cfg.Trace = a.traces.WorkContext; cfg.Lease == 0 && cfg.Beat == 0 { // else the lease follows from the beat
		cfg.Lease = at.lease
	}
	if at.profile != nil { // else the worker registers it
		if err := a.meetProfile(ctx, at, cfg.Profile, flags.Update); err != nil {
			return err
		}
	}
	// "handoff submit" inside the program finds the engine of its worker, however that was configured.
	program.Env = append(a.connEnv(strings.Join(at.servers, ","), flags.Env), at.env...)
	handler, done, err := flags.handler(program, cfg.Log)
	if err != nil {
		return err
	}
	defer done()
	w, err := worker.New(at.session, cfg, handler)
	if err != nil {
		return err
	}
	a.hurry.Store(w.Hurry)
	shown.worker(cfg.Agent, at.b, w)
	shown.started()
	return w.Run(ctx)
}

// handler returns the handler of the program, and the function that ends it.
func (flags *workFlags) handler(program worker.ExecConfig, log *slog.Logger) (worker.Handler, func(), error) {
	if flags.Stay {
		handler, err := worker.NewStay(program, log)
		if err != nil {
			return nil, nil, err
		}
		return handler, handler.Close, nil
	}
	handler, err := worker.NewExec(program)
	return handler, func() {}, err
}

// reachEngine connects to the engine and reads the agent's profile.
func (a *app) reachEngine(ctx context.Context, cfg worker.Config, _ *workFlags, shown *showing) (*workplace, func(), error) {
	b, done, err := a.connectWith(ctx, broker.Config{Log: cfg.Log, Observer: shown.observer()})
	if err != nil {
		return nil, nil, err
	}
	at := &workplace{b: b, servers: a.engine.Conn().Opts.Servers, lease: defaultLease(ctx, a.engine), session: api.Direct(b, cfg.Agent)}
	profile, err := b.Profile(ctx, cfg.Agent)
	switch {
	case err == nil:
		at.profile = &profile
	case !errors.Is(err, broker.ErrNotFound):
		done()
		return nil, nil, err
	}
	return at, done, nil
}

// reachGateway connects to a gateway, and registers the agent or reads its profile. If no gateway
// answers, the error names the command to start; a worker would wait for one for ever.
func (a *app) reachGateway(ctx context.Context, cfg worker.Config, flags *workFlags, _ *showing) (*workplace, func(), error) {
	client, done, err := a.dialGateway(ctx, cfg.Agent)
	if err != nil {
		return nil, nil, err
	}
	asking, cancel := a.asking(ctx)
	defer cancel()
	registered, err := client.Register(asking, api.Registration{Profile: cfg.Profile})
	if err != nil {
		done()
		if flags.waits(a) && errors.Is(err, natsgateway.ErrNobody) {
			err = &broker.SilenceError{After: a.timeout(), Last: err}
		}
		return nil, nil, err
	}
	a.traces = a.startTraces(ctx, cfg.Log)
	return &workplace{servers: client.Servers(), env: []string{gatewayEnv + "=1"}, lease: time.Duration(registered.LeaseMS) * time.Millisecond,
		profile: &registered.Profile, session: client}, func() { a.traces.Stop(); done() }, nil
}

// args checks the arguments of work, and its flags in combination.
func (flags *workFlags) args(_ *cobra.Command, args []string) error {
	if flags.Agent == "" {
		return usagef("work needs --agent AGENT")
	}
	if flags.Agent == protocol.Human && !flags.Person {
		return usagef("--agent human: handoffs for a person are not for a program (handoff inbox lists them); --yes-i-am-a-person confirms that a person reads each")
	}
	if !slices.Contains(output.Modes, flags.Result) {
		return usagef("--result %s: an output is read as %s", flags.Result, strings.Join(asWords(output.Modes), ", "))
	}
	if !slices.Contains(worker.Inputs, flags.Input) {
		return usagef("--input %s: the input of a program is one of %s", flags.Input, strings.Join(asWords(worker.Inputs), ", "))
	}
	if flags.Stay && (flags.Result != output.Auto || flags.Input != worker.InputPackage) {
		return usagef("--stay has lines for input and output of its own: leave out --input and --result")
	}
	if err := checkEnv(flags.Env); err != nil {
		return err
	}
	if flags.EnableHandoffs && flags.Handoffs != "" && flags.handoffMode() != protocol.HandoffsOn {
		return usagef("--enable-handoffs is --handoffs on, and --handoffs %s is given", flags.Handoffs)
	}
	if len(args) == 0 {
		return usagef("work needs a program to run: handoff work --agent %s -- CMD", flags.Agent)
	}
	return nil
}

// handoffMode returns the agent's right to hand off, from the flags; empty without one.
func (flags *workFlags) handoffMode() protocol.HandoffMode {
	if flags.EnableHandoffs && flags.Handoffs == "" {
		return protocol.HandoffsOn
	}
	return flags.Handoffs
}

// variable is a name that --env takes.
var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*\*?$`)

// checkEnv refuses names that no variable can have.
func checkEnv(names []string) error {
	for _, name := range names {
		if !variable.MatchString(name) {
			return usagef("--env %s: names variables of the worker, as in --env ANTHROPIC_API_KEY,AWS_*; all is every one", name)
		}
	}
	return nil
}

// noteUnset warns of a variable that CMD is to see and that is not set: a slip, as a rule.
func (a *app) noteUnset(names []string) {
	for _, name := range names {
		if name != worker.InheritAll && !strings.HasSuffix(name, "*") && !strings.HasPrefix(name, "NATS_") && a.env(name) == "" {
			a.notef("handoff: --env %s: it is not set here\n", name)
		}
	}
}

// connEnv returns the environment by which a program finds the engine: at these servers, unless empty.
// Credentials are in it only if names has their variable: a program acts by its lease.
func (a *app) connEnv(servers string, names []string) []string {
	conn := a.conn.resolve(a.env)
	env := []string{timeoutEnv + "=" + conn.timeout.String(), "NATS_INBOX_PREFIX=" + conn.InboxPrefix}
	if rules := a.env("HANDOFF_REDACT"); rules != "" { // its handoffs have the same secrets
		env = append(env, "HANDOFF_REDACT="+rules)
	}
	if a.dir != "" { // a program has the environment of the command line, not that of the process
		for _, name := range []string{"PATH", "HOME", "PWD", "TMPDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME"} {
			env = append(env, name+"="+a.env(name))
		}
	}
	if servers != "" {
		if !worker.Inherits("NATS_URL", names) {
			servers = withoutUsers(servers)
		}
		env = append(env, "NATS_URL="+servers)
	}
	secret := func(name, value string) {
		if !worker.Inherits(name, names) {
			value = ""
		}
		env = append(env, name+"="+value)
	}
	secret("NATS_CONTEXT", conn.Context)
	for name, path := range map[string]string{"NATS_CREDS": conn.Creds, "NATS_NKEY": conn.NKey,
		"NATS_CERT": conn.TLSCert, "NATS_KEY": conn.TLSKey} {
		secret(name, absolute(path))
	}
	return append(env, "NATS_CA="+absolute(conn.TLSCA)) // which is no secret
}

func absolute(path string) string {
	if whole, err := filepath.Abs(path); path != "" && err == nil {
		return whole
	}
	return path
}

// withoutUsers takes the names and passwords out of the URLs of servers.
func withoutUsers(servers string) string {
	all := strings.Split(servers, ",")
	for i, server := range all {
		if u, err := url.Parse(server); err == nil && u.User != nil {
			u.User = nil
			all[i] = u.String()
		}
	}
	return strings.Join(all, ",")
}

const workHelp = `Work serves an agent. For each handoff it runs CMD: the package comes on standard input
as JSON, standard output is the result, standard error goes to the log here. Start more
of it, on any machine, to work on more at once.

--result sets how the output is parsed. With auto, a JSON object that is all of the output or
its last block (in a fence, too) is the result if it has fields of a result (handoff schema
result); text around it goes to the log, with a warning. Any other JSON is the body, and
any other output is the body as text. Output that looks like a result but is invalid (bad
JSON, a misspelled field, an invalid goto) fails the attempt with result_malformed: it is
not repeated, unless the policy has on_malformed=retry, and "handoff result" prints it.

The exit code of CMD is the outcome:

  0   complete
  65  failed for good              75  failed, retry later
  69  rejected: not for this one   77  conditional: something is needed first
  126, 127  CMD cannot run: the worker drains and ends, no attempt is charged
  anything else  failed, and worth another attempt

The package may have: context.previous (the result of the agent before this one in the
chain), supplements (answers to questions; their variables are in context.variables, too),
trail (who refused, asked and failed before), returns (the ends of children that were
waited for) and shared (the shared values of the workflow).

The environment of CMD has HANDOFF_TICKET, HANDOFF_LEASE, HANDOFF_AGENT, HANDOFF_ATTEMPT,
HANDOFF_FENCE, NATS_URL, TRACEPARENT and TRACESTATE (its span, W3C Trace Context), and

  HANDOFF_LIMIT              the time at which the first timeout ends this attempt
  HANDOFF_LIMIT_CLOCK        which timeout that is: work, return or deadline
  HANDOFF_PROGRESS_DEADLINE  the time by which progress is due
  HANDOFF_DEADLINE           the deadline of the handoff
  HANDOFF_PROGRESS_FILE      a file: each line written to it reports progress ("40 parsing")
  HANDOFF_USAGE_FILE         a file: its last line is the use so far, {"tokens": 1200,
                             "cost_micros": 30000} or the usage of a model's answer
  HANDOFF_BRIEF_FILE         a file with the handoff as instructions for a model (handoff
                             show --brief); --input brief puts them on standard input, too
  HANDOFF_ACK_FILE           a file where CMD can explain its exit code, as a line or as
                             JSON (handoff schema ack):

  rejected: why           conditional: what is needed
  escalated why           passed up to whom the agent escalates to
  answered text           an authority's answer to an escalation
  returned why            back to the source, with the output as the partial result

CMD sees no other variable of the worker than PATH, HOME, the user's, the locale's, those of
temporary files, and those that --env names: keys of models (--env ANTHROPIC_API_KEY), and the
worker's own credentials (--env NATS_CREDS), which "handoff submit" inside CMD needs if the engine
asks for any. NATS_URL has no password. --env all passes everything.

A result with a command hands off, in the manner of LangGraph's: {"command": {"goto":
"tester", "update": {…}}}. A list of names is a broadcast, a list of {"agent",
"update"} a group of different packages, END the end of the chain. It is recorded
with the result, so that a crash neither loses nor doubles it. "handoff submit" inside
CMD submits a handoff of its own at once; source and parent are filled in.

A result may wait: {"command": {"await": [{"agent": "coder", "task": "its index"}, …],
"for": "all"}} delegates, lets go of the slot, and has CMD run again when all of them
(any, a majority) have ended, with returns on its input. "handoff submit --await block"
inside CMD adds to these; it needs no output. Other output goes to the log then.

With --stay CMD is started once for each slot and kept, so that a model is loaded once. Each
line of its input is a handoff as JSON (ticket, attempt, lease, limit, deadline, brief,
package), or {"cancel": TICKET, "why": …} when the handoff is to stop. CMD writes lines:

  {"progress": "40 parsing"}           any number of them
  {"result": {"body": …}}              complete, and ready for the next
  {"ack": {"status": "rejected", …}}   as HANDOFF_ACK_FILE without --stay
  {"fail": {"code": …, "message": …, "retryable": true}}

A CMD that dies fails only the handoff that it has, and is started again, after a pause that
grows up to 30 s. It ends when its input does. handoff.py and handoff.mjs speak these lines
("handoff client python").

A handoff that is cancelled, is to go back to its source, or whose lease is lost has
CMD's whole process group terminated. Then --cleanup is run, with the same input and
environment and HANDOFF_CLEANUP_REASON: cancelled, returned or lease_lost.

An agent that does not exist yet is registered, with --capability and
--description. An existing profile stays as it is, unless --update adds them.

A worker sends a heartbeat every --beat, each answered within --beat-timeout; after
--misses missed ones its --lease is over, and its handoffs go to other workers. Values
you leave out are derived from the ones you set.

` + gatewayHelp + `
CMD has HANDOFF_GATEWAY from it, so that "handoff submit", status, wait and result inside go
through the gateway as well; with --env NATS_CREDS (or NATS_NKEY) if it asks for credentials.
If no gateway serves at the start, work ends with exit code 6.

` + waitHelp + `

` + metricsHelp + `

Ctrl-C drains: nothing new is taken, running handoffs have --drain to finish, the rest
is released without charge. A CMD that has not ended 5 s later is killed with its
process group. The command ends 25 s after --drain at the latest, with 130. A second
Ctrl-C ends CMD and releases its handoffs at once, with 130 too; a third waits for
nothing. A closed terminal (SIGHUP) drains as Ctrl-C does.`

// meetProfile adds the wanted settings to the existing profile, if asked to, and else names those
// that it lacks: a capability that no handoff is routed by is a surprise better met here.
func (a *app) meetProfile(ctx context.Context, at *workplace, wanted protocol.Profile, update bool) error {
	profile := *at.profile
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
	if is := cmp.Or(profile.Handoffs, protocol.HandoffsOn); wanted.Handoffs != "" && wanted.Handoffs != is {
		if !update { // it would hand off against the profile's setting
			return protocol.Errorf(protocol.CodeConflict, "handoffs", "%s is registered with handoffs %s, not %s; --update changes that, for all of its workers", wanted.ID, is, wanted.Handoffs)
		}
		lacking = append(lacking, "handoffs "+string(wanted.Handoffs))
		profile.Handoffs = wanted.Handoffs
	}
	if wanted.Bids && !profile.Bids {
		lacking = append(lacking, "bids")
		profile.Bids = true
	}
	if len(lacking) == 0 {
		return nil
	}
	if !update {
		a.notef("handoff: %s is registered already, without %s; --update adds it\n", wanted.ID, strings.Join(lacking, ", "))
		return nil
	}
	_, err := at.session.Register(ctx, api.Registration{Profile: profile, Replace: true})
	return err
}
