package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/assist"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// waitForever is the value of --wait if none is given.
const waitForever = "forever"

type submitOptions struct {
	packageFlags `flag:""`
	Under        string `flag:"under" doc:"hand it off from the work that this {LEASE} is for, which keeps track of it (handoff await)"`
	DryRun       bool   `flag:"dry-run" doc:"check everything, write nothing, print the package as it would be stored"`
	NoLease      bool   `flag:"no-lease" doc:"inside a worker: submit beside the handoff being worked on, and not under its lease ($HANDOFF_LEASE)"`
	Wait         string `flag:"wait" doc:"wait for the end of the chain, at most {DURATION}, and print its result; it is written with =, as in --wait=30s"`
	Gateway      bool   `flag:"gateway" doc:"go through a gateway instead of to the engine itself ($HANDOFF_GATEWAY)"`
	ForPerson    bool   `flag:"for-person" doc:"wait on if every agent refused or failed, or a budget is spent"`
	OrRun        orRun  `flag:""`

	limit   *time.Duration // of the wait: nil is not to wait, negative is to wait without end
	changed func(flag string) bool
	env     func(string) string
}

func newSubmit(a *app) *cobra.Command {
	o := submitOptions{env: a.env}
	cmd := &cobra.Command{
		Use:     "submit [-f FILE|-] --to AGENT --reason WHY --task WHAT",
		Short:   "Hand a package to an agent, or to several; prints the ticket",
		Long:    submitHelp,
		Example: submitExamples,
		Args:    o.noArgs,
		PreRunE: o.check,
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runSubmit(cmd, &o, args) },
	}
	o.flags(a, cmd)
	a.addTopics(cmd, submitTopics)
	return cmd
}

func (o *submitOptions) flags(a *app, cmd *cobra.Command) {
	fs := cmd.Flags()
	o.declare(fs, o)
	fs.Lookup("wait").NoOptDefVal = waitForever
	a.words(cmd, "complexity", append([]string{complexityAuto}, protocol.Complexities...)...)
	a.words(cmd, "await", protocol.Waits...)
}

func (o *submitOptions) noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 || o.OrRun.Given && cmd.ArgsLenAtDash() == 0 {
		return nil
	}
	if _, err := parseDuration(args[0]); err == nil && o.Wait == waitForever {
		return usagef("--wait takes its value after an equals sign: write --wait=%s", args[0])
	}
	return usagef("submit does not take %q; the work goes into --task", args[0])
}

// check refuses flags that do not go together.
func (o *submitOptions) check(cmd *cobra.Command, _ []string) (err error) {
	o.changed = cmd.Flags().Changed
	if o.limit, err = waitLimit(o.Wait); err != nil {
		return err
	}
	if err := o.checkChild(o.leaves(o.env)); err != nil {
		return err
	}
	return o.checkFor()
}

// runSubmit submits one package, in the way of the flags.
func (a *app) runSubmit(cmd *cobra.Command, o *submitOptions, args []string) error {
	if err := o.OrRun.check(cmd, args, a.dir); err != nil {
		return err
	}
	if o.leaves(a.env) {
		return a.submitPackage(cmd.Context(), o)
	}
	a.people, a.through = o.ForPerson, o.Gateway
	err := a.throughGateway(cmd, "for", "under", "await", "dry-run")
	if err == nil && o.changed("parent") && o.Parent != "" {
		o.Parent, err = a.throughTicket(cmd.Context(), o.Parent)
		err = inField(err, "parent", "")
	}
	if err != nil {
		return err
	}
	err = a.submitPackage(cmd.Context(), o)
	if o.OrRun.takes(err) {
		return o.OrRun.instead(cmd.Context(), a, err)
	}
	return err
}

// submitPackage submits one package.
func (a *app) submitPackage(ctx context.Context, o *submitOptions) error {
	leaves := o.leaves(a.env)
	pkg, err := o.buildFor(ctx, a)
	if err == nil && !leaves {
		err = o.OrRun.keep(ctx, a, pkg)
	}
	if err != nil {
		return err
	}
	a.warnArtifacts(o.Artifacts)
	if leaves {
		return o.hint(a.submitAwaited(ctx, pkg))
	}
	return o.hint(a.submit(ctx, pkg, o))
}

// offline is a broker without an engine, which prepares packages.
func (a *app) offline() (*broker.Broker, error) {
	redactor, err := a.redactor()
	if err != nil {
		return nil, err
	}
	return broker.New(nil, broker.Config{Redactor: redactor})
}

// prepare checks a package as Submit would, without an engine: invalid input is reported even where
// no engine answers.
func (a *app) prepare(ctx context.Context, pkg protocol.Package) (broker.Prepared, error) {
	offline, err := a.offline()
	if err != nil {
		return broker.Prepared{}, err
	}
	return offline.Prepare(ctx, pkg)
}

// submit submits a package to the engine, or through a gateway; to the engine also under a lease.
func (a *app) submit(ctx context.Context, pkg protocol.Package, o *submitOptions) (err error) {
	lease := o.Under
	switch {
	case a.through && pkg.Source == "":
		return usagef("--gateway needs to know which agent asks: set HANDOFF_AGENT, or give --from")
	case a.through:
		pkg.Key = cmp.Or(pkg.Key, uuid.NewString()) // so that it may be sent again
	case lease == "":
		lease = o.leaseOf(pkg)
	}
	var prepared broker.Prepared
	if o.Under == "" { // else the lease adds the rest
		if prepared, err = a.prepare(ctx, pkg); err != nil {
			return err
		}
	}
	s, done, err := a.source(ctx, a.through, pkg.Source)
	if err != nil {
		return err
	}
	defer done()
	if pkg.Parent != "" && lease == "" && !a.through {
		if prepared, err = a.inherited(ctx, s.b, pkg); err != nil {
			return err
		}
	}
	if prepared.Redacted > 0 {
		a.notef("handoff: secrets taken out of the package before anything is written: %d\n", prepared.Redacted)
	}
	switch {
	case lease != "":
		return a.handOff(ctx, s, lease, pkg, o)
	case o.DryRun:
		if err = a.dryRun(ctx, s.b, prepared); err == nil {
			a.warnSource(ctx, s.b, prepared.Package.Source)
		}
		return err
	}
	state, err := a.submitOnce(ctx, s, pkg, prepared, newcomerLimit(o.limit))
	if err != nil {
		return err
	}
	o.OrRun.placed = true
	a.warnSource(ctx, s.b, prepared.Package.Source)
	return a.submitted(ctx, s, state, o.limit)
}

// inherited is prepare for a package with a parent, from which it inherits the values that it
// lacks.
func (a *app) inherited(ctx context.Context, b *broker.Broker, pkg protocol.Package) (broker.Prepared, error) {
	err := a.ask(ctx, func(ctx context.Context) (err error) {
		pkg, err = b.Inherit(ctx, pkg)
		return err
	})
	if err != nil {
		return broker.Prepared{}, fmt.Errorf("read the parent; nothing was submitted: %w", err)
	}
	return a.prepare(ctx, pkg)
}

// How long a submission waits for the first worker of an agent that nothing knows: newcomerWait, or with
// --wait as long as that, at most newcomerWaitMax.
const (
	newcomerWait    = 3 * time.Second
	newcomerWaitMax = 30 * time.Second
	newcomerPoll    = 100 * time.Millisecond
)

func newcomerLimit(wait *time.Duration) time.Duration {
	switch {
	case wait == nil:
		return newcomerWait
	case *wait < 0: // without end
		return newcomerWaitMax
	}
	return min(*wait, newcomerWaitMax)
}

// mayCome reports whether a submission was refused because of an agent whose worker may be starting:
// no agent has its name, nor one like it.
func (a *app) mayCome(ctx context.Context, b *broker.Broker, err error) bool {
	if b == nil || ctx.Err() != nil || !errors.Is(err, &protocol.Error{Code: protocol.CodeUnknownAgent}) {
		return false
	}
	name := noAgent.FindStringSubmatch(err.Error())
	return name != nil && didYouMean(name[1], a.agentNames(ctx, b)) == ""
}

// submitOnce submits, and names the next step if it is not known whether it happened. It waits for the
// first worker of an agent up to newcomer.
func (a *app) submitOnce(ctx context.Context, s *source, given protocol.Package, prepared broker.Prepared, newcomer time.Duration) (state protocol.State, err error) {
	status := "handoff status "
	submit := func(ctx context.Context) error {
		head, err := s.b.Submit(ctx, prepared)
		state = head.State
		return err
	}
	if s.b == nil {
		status += "--gateway "
		sent, err := protocol.DecodePackage(prepared.Whole)
		if err != nil {
			return state, err
		}
		// The same package sent again later is the same: a gateway sets its time, and a priority that it
		// takes over from its parent.
		sent.Priority, sent.CreatedAt, sent.TraceParent, sent.TraceState = given.Priority, given.CreatedAt, given.TraceParent, given.TraceState
		submit = func(ctx context.Context) (err error) {
			state, err = s.Submit(ctx, sent)
			return err
		}
	}
	err = a.ask(ctx, submit)
	for name, until := "", time.Now().Add(newcomer); a.mayCome(ctx, s.b, err) && time.Now().Before(until); {
		if now := noAgent.FindStringSubmatch(err.Error())[1]; now != name && a.text() {
			name = now
			a.notef("handoff: no agent is called %s yet; waiting %v for its first worker\n", name, newcomer)
		}
		time.Sleep(newcomerPoll)
		err = a.ask(ctx, submit)
	}
	if err != nil && !is[*protocol.Error](err) && !errors.Is(err, broker.ErrNotAllowed) && !errors.Is(err, natsgateway.ErrNobody) {
		err = &unknownError{fmt.Errorf("whether it was submitted is not known; ask with: %s%s: %w", status, prepared.Ticket, err)}
	}
	return state, err
}

// besideLease are the flags of a submission that is made beside the handoff which a program works
// on, and not under its lease: its source, parent, ticket or time differ.
var besideLease = []string{"no-lease", "from", "parent", "key", "under", "dry-run"}

// leaseOf is the lease of the handoff that this program works on, where a package goes under it:
// so that it is on the account of that handoff. Empty is that it does not.
func (o *submitOptions) leaseOf(pkg protocol.Package) string {
	for _, flag := range besideLease {
		if o.changed(flag) {
			return ""
		}
	}
	agent, ticket := workedOn(o.env)
	if pkg.Key != "" || pkg.Source != cmp.Or(agent, protocol.Human) || pkg.Parent != ticket {
		return ""
	}
	return o.env(worker.EnvLease)
}

// workedOn returns the agent and the ticket of the work here: the environment names them, or its
// lease does. Both are empty outside of the work.
func workedOn(env func(string) string) (agent, ticket string) {
	agent, ticket = env("HANDOFF_AGENT"), env("HANDOFF_TICKET")
	if held, err := broker.ParseLease(env(worker.EnvLease)); err == nil {
		agent, ticket = cmp.Or(agent, held.Agent), cmp.Or(ticket, held.Ticket)
	}
	return agent, ticket
}

// leaves reports whether a submission is one that the result of a program of "handoff work" waits
// for: it is handed off as the program ends.
func (o *submitOptions) leaves(env func(string) string) bool {
	return o.packageFlags.awaits() && o.Under == "" && env(worker.EnvAwaitDir) != ""
}

// submitAwaited leaves a package for the worker that runs this program, and prints the ticket
// that it will have.
func (a *app) submitAwaited(ctx context.Context, pkg protocol.Package) error {
	agent, parent := a.env("HANDOFF_AGENT"), a.env("HANDOFF_TICKET")
	pkg.Source, pkg.Parent = "", ""
	entry, err := protocol.EncodePackage(pkg)
	if err != nil {
		return err
	}
	list, err := json.Marshal([]json.RawMessage{entry})
	if err != nil {
		return err
	}
	made, err := protocol.Await(protocol.Package{}, agent, protocol.Result{Command: &protocol.Command{Await: list}})
	if err != nil {
		return ofEntry(err)
	}
	key, err := protocol.ChildKeyOf(made[0])
	if err != nil {
		return err
	}
	made[0].Source, made[0].Parent = agent, parent
	if _, err := a.prepare(ctx, made[0]); err != nil { // the worker would refuse it
		return err
	}
	equal, err := leaveEntry(a.env(worker.EnvAwaitDir), entry)
	if err != nil {
		return err
	}
	if key.Given != "" {
		equal = 0
	}
	ticket := protocol.ChildTicket(parent, key.Cell(equal))
	if !a.text() {
		return a.value(struct {
			Ticket  string          `json:"ticket"`
			Package json.RawMessage `json:"package"`
		}{ticket, entry})
	}
	a.printf("%s\n", ticket)
	return nil
}

// ofEntry names a field as the package has it, and not the list that it is in.
func ofEntry(err error) error {
	return amended(err, func(e *protocol.Error) {
		e.Field = strings.TrimPrefix(strings.TrimPrefix(e.Field, "command.await[0]"), ".")
	})
}

// leaveEntry writes a file under the first name that is free, whole, and returns how many equal ones
// there were before it.
func leaveEntry(dir string, entry []byte) (equal int, err error) {
	file, err := os.CreateTemp(dir, ".entry-*")
	if err != nil {
		return 0, err
	}
	defer os.Remove(file.Name())
	_, err = file.Write(entry)
	if err = errors.Join(err, file.Close()); err != nil {
		return 0, err
	}
	for n := range protocol.AwaitMax {
		name := filepath.Join(dir, strconv.Itoa(n+1))
		err := os.Link(file.Name(), name)
		if !errors.Is(err, os.ErrExist) {
			return equal, err
		}
		if other, err := os.ReadFile(name); err == nil && bytes.Equal(other, entry) {
			equal++
		}
	}
	return 0, protocol.Errorf(protocol.CodeTooLarge, "await", "a result waits for at most %d handoffs", protocol.AwaitMax)
}

// submitted prints the ticket of a submission. Where there is a limit it waits for the end first,
// and prints that: the ticket goes to stderr then, so that stdout has the result alone.
func (a *app) submitted(ctx context.Context, s *source, state protocol.State, limit *time.Duration) error {
	a.remember(state.Ticket)
	switch {
	case limit != nil && a.text():
		a.notef("handoff: submitted as %s\n", state.Ticket)
	case a.text():
		a.printf("%s\n", state.Ticket)
	}
	if limit == nil {
		if a.text() {
			return nil
		}
		return a.valueWithMembers(ctx, s, state)
	}
	chain := state.EndOf != protocol.ReturnOfHandoff
	last, err := waitFor(ctx, s, state.Ticket, chain, *limit, string(api.UntilClosed))
	if last.Ticket == "" { // interrupted before the first read
		last = state
	}
	if !a.text() {
		return errors.Join(a.endValue(ctx, s, state.Ticket, chain, last), err)
	}
	return a.endText(ctx, s, state.Ticket, chain, last, err)
}

// endText prints the result of a closed handoff, as "handoff result" does. waited is the error of
// the wait.
func (a *app) endText(ctx context.Context, s *source, submitted string, chain bool, last protocol.State, waited error) error {
	switch {
	case !last.Closed || is[*openError](waited) || is[*api.ImpasseError](waited) || errors.Is(waited, errInterrupted):
		a.warn(last)
		return waited
	case waited == nil:
		a.notef("%s: %s\n", last.Ticket, explain.Ending(last))
	default:
		a.warn(last) // a result of success has its warning with it
	}
	err := a.ask(ctx, func(ctx context.Context) error { return a.printResult(ctx, s, submitted, chain) })
	if waited != nil {
		return waited
	}
	return err
}

// endView is the output of "submit --wait" for programs: the status of the handoff that ended,
// which is the last of its chain, with its result.
type endView struct {
	dossier.StateView
	Submitted string `json:"submitted"` // the ticket of the submission
	Result    any    `json:"result,omitempty"`
}

// endValue prints an end for programs, as one document.
func (a *app) endValue(ctx context.Context, s *source, submitted string, chain bool, last protocol.State) error {
	ctx, cancel := a.asking(context.WithoutCancel(ctx)) // Ctrl-C may have ended the wait
	defer cancel()
	v := endView{Submitted: submitted}
	var err error
	if v.StateView, err = a.viewOf(ctx, s, last); err != nil {
		return err
	}
	switch result, _, err := s.result(ctx, submitted, chain); {
	case err == nil:
		v.Result = result
	case !errors.Is(err, broker.ErrNotFound):
		return err
	case last.Aggregate != nil && s.b != nil:
		if v.Result, err = s.b.Members(ctx, last); err != nil {
			return err
		}
	}
	return a.value(v)
}

// waitLimit reads --wait: nil is not to wait, negative is to wait without end.
func waitLimit(text string) (*time.Duration, error) {
	limit := time.Duration(-1)
	switch text {
	case "":
		return nil, nil
	case waitForever:
		return &limit, nil
	}
	limit, err := parseDuration(text)
	if err != nil {
		return nil, usagef("--wait: %v", err)
	}
	if limit < 0 {
		return nil, usagef("--wait: %q is negative", text)
	}
	return &limit, nil
}

// checkFor refuses flags that do not go with --for.
func (o *submitOptions) checkFor() error {
	if !o.changed("for") {
		return nil
	}
	for _, flag := range []string{"to", "capability", "group"} {
		if o.changed(flag) {
			return usagef("--for finds the target: --%s does not go with it", flag)
		}
	}
	return nil
}

// buildFor makes the package, and finds its target where only words are given for that.
func (o *submitOptions) buildFor(ctx context.Context, a *app) (protocol.Package, error) {
	pkg, err := o.build(ctx, a, time.Now())
	if err == nil {
		err = o.classify(ctx, a, &pkg)
	}
	if err != nil || !o.changed("for") {
		return pkg, err
	}
	if pkg.Type == protocol.Escalation {
		return pkg, usagef("--for finds the target: an escalation goes to the authority of its source")
	}
	pkg.Task.Description = cmp.Or(pkg.Task.Description, o.For)
	pkg.Target = protocol.Target{Agent: "found"} // other errors are reported first
	if _, err := a.prepare(ctx, pkg); err != nil {
		return pkg, err
	}
	pkg.Target = protocol.Target{}
	if err := o.OrRun.keep(ctx, a, pkg); err != nil {
		return pkg, err
	}
	m, err := o.findFor(ctx, a, pkg.Source)
	if err != nil {
		return pkg, err
	}
	pkg.Target.Agent = m.Found[0].Agent
	if others := m.Others(pkg.Source); len(others) > 0 && pkg.Key == "" && !o.changed("ranked") {
		if pkg.Routing == nil {
			pkg.Routing = new(protocol.RoutingRules)
		}
		pkg.Routing.Ranked = others
	}
	return pkg, nil
}

// findFor finds the agent for a task, where one is certain or chosen, and is not the one that asks.
func (o *submitOptions) findFor(ctx context.Context, a *app, source string) (lifecycle.Matches, error) {
	m, err := a.find(ctx, o.For, 1+protocol.RankedMax, o.Assist)
	if err != nil {
		return m, inField(err, "target", "")
	}
	switch best := m.Found[0]; {
	case best.Agent == source:
		return m, protocol.Errorf(protocol.CodeNoMatch, "target", "the agent for it is %s itself; handle it yourself, or name another", source)
	case m.ChosenBy != "":
		a.notef("handoff: found %s, chosen by a %s\n", best.Agent, m.ChosenBy)
	default:
		a.notef("handoff: found %s, by %s\n", best.Agent, strings.Join(best.Words, ", "))
	}
	return m, nil
}

// complexityAuto has the assistant classify a task; without one, or without its answer, the rules of
// the fleet do.
const complexityAuto = "auto"

// classify gives a package whose complexity is auto its class.
func (o *submitOptions) classify(ctx context.Context, a *app, pkg *protocol.Package) error {
	c := &pkg.Constraints
	if c.Complexity != complexityAuto {
		return nil
	}
	if pkg.Key != "" {
		return usagef("--complexity auto does not go with --key: another answer would make it another package")
	}
	c.Complexity = ""
	asker, err := a.assistant(o.Assist)
	if err != nil || asker == nil {
		return err
	}
	class, err := assist.Classify(ctx, asker, pkg.Task.Description)
	if err != nil {
		a.notef("handoff: not classified by a %s (%v); the rules of the fleet do it\n", asker.By(), err)
		return nil
	}
	c.Complexity, c.ComplexityBy = class, protocol.Classifier(asker.By())
	a.notef("handoff: %s, classified by a %s\n", class, asker.By())
	return nil
}

// sourceWithin is how long a submission waits to learn whether its source is registered.
const sourceWithin = 2 * time.Second

// warnSource prints, for people, the consequence of a source that is not registered. A directory
// that cannot be read is passed over: the handoff is valid without it.
func (a *app) warnSource(ctx context.Context, b *broker.Broker, source string) {
	if b == nil || !a.text() || source == "" || source == protocol.Human {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sourceWithin)
	defer cancel()
	if _, err := b.Profile(ctx, source); !errors.Is(err, broker.ErrNotFound) {
		return
	}
	a.notef("handoff: %s is no agent of the directory: questions and returns for it go to the inbox of people "+
		"(handoff inbox), and its other returns are read by ticket (handoff result TICKET --return); to register it: handoff agents put %s\n", source, source)
}

// dryRun prints the event that would be written, and the agent that would get it.
func (a *app) dryRun(ctx context.Context, b *broker.Broker, prepared broker.Prepared) error {
	agent, err := b.CheckTarget(ctx, prepared)
	if err != nil {
		return err
	}
	members, err := dossier.PlannedMembers(prepared.Ticket, &prepared.Package)
	if err != nil {
		return err
	}
	if !a.text() {
		return a.value(struct {
			Ticket  string                `json:"ticket"`
			Agent   string                `json:"agent"` // empty for a group, and before a start
			DryRun  bool                  `json:"dry_run"`
			Members []dossier.MemberState `json:"members,omitempty"`
			Package json.RawMessage       `json:"package"`
		}{prepared.Ticket, agent, true, members, prepared.Body})
	}
	switch {
	case len(members) > 0:
		agent = fmt.Sprintf("a group of %d", len(members))
	case agent == "": // it is chosen at the start
		agent = prepared.Package.TargetWords() + ", from " + explain.Instant(prepared.Package.StartAt) + " on,"
	}
	a.notef("handoff: nothing was written; %s would get this:\n", agent)
	return a.document(prepared.Body)
}

// orRun is --or-run: the command that does the work where a package cannot be handed off.
type orRun struct {
	Given   bool `flag:"or-run" doc:"where the package is refused, or the engine not reached: run the command behind --, with the package on its standard input"`
	command []string
	// pkg is the package, once it is known to be in order; placed is set when it is, or may be,
	// handed off.
	pkg    json.RawMessage
	placed bool
}

// ranError is how the command of --or-run has ended, with its exit code.
type ranError struct{ code int }

func (e *ranError) Error() string { return "the command of --or-run has ended without success" }

// unknownError reports that a submission may or may not have happened.
type unknownError struct{ error }

func (e *unknownError) Unwrap() error { return e.error }

// check reads the command behind --, and refuses flags that do not go with it.
func (r *orRun) check(cmd *cobra.Command, args []string, dir string) error {
	if !r.Given {
		return nil
	}
	if len(args) == 0 {
		return usagef("--or-run needs a command: handoff submit … --or-run -- CMD")
	}
	if cmd.Flags().Changed("dry-run") {
		return usagef("--dry-run does not go with --or-run")
	}
	r.command = args
	return inField(worker.CheckCommand(dir, args), "or_run", "")
}

// keep remembers a package that is in order. Without a target, none was found.
func (r *orRun) keep(ctx context.Context, a *app, pkg protocol.Package) error {
	if !r.Given {
		return nil
	}
	target := pkg.Target
	if target.Agent == "" && target.Capability == "" && pkg.GroupSize() == 0 && pkg.Type != protocol.Escalation {
		pkg.Target.Capability = "unknown" // the rest is checked, and cleared of secrets
	}
	prepared, err := a.prepare(ctx, pkg)
	if err != nil {
		return err
	}
	stored, err := protocol.DecodePackage(prepared.Body)
	if err != nil {
		return err
	}
	stored.Target = target
	r.pkg, err = protocol.EncodePackage(stored)
	return err
}

// takes reports whether the command does the work instead: the package was refused, or the engine
// was not reached, and nothing is handed off for certain.
func (r *orRun) takes(err error) bool {
	if !r.Given || r.placed || r.pkg == nil || err == nil || is[*unknownError](err) {
		return false
	}
	code := exitFor(err).code
	return code == exitRefused || code == exitUnreachable
}

// instead runs the command with the package on its standard input.
func (r *orRun) instead(ctx context.Context, a *app, why error) error {
	a.notef("handoff: not handed off, %s does it: %s\n", r.command[0], protocol.Printable(why.Error()))
	cmd := exec.CommandContext(ctx, r.command[0], r.command[1:]...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = a.dir, bytes.NewReader(r.pkg), a.out, a.err
	cmd.Env = append(os.Environ(), a.connEnv("", []string{worker.InheritAll})...)
	err := cmd.Run()
	var ended *exec.ExitError
	if ctx.Err() == nil && errors.As(err, &ended) && ended.ExitCode() > 0 {
		return &ranError{ended.ExitCode()}
	}
	return err
}
