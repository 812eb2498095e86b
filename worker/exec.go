package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/internal/brief"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/redact"
	"github.com/agenthandoff/handoff/worker/output"
)

// Exit codes by which a program reports the outcome of its handoff. The numbers are
// those of sysexits.h where it has the meaning. Every other code is a failed
// attempt that is worth a retry, like the death by a signal.
const (
	exitComplete    = 0
	exitPermanent   = 65  // EX_DATAERR: failed, and no retry will mend it
	exitRejected    = 69  // EX_UNAVAILABLE: not for this agent
	exitRetryLater  = 75  // EX_TEMPFAIL: failed, retry later
	exitConditional = 77  // EX_NOPERM: only if
	exitCannotRun   = 126 // of the shell: not executable. The worker drains
	exitNotFound    = 127 // of the shell: no such command. The worker drains
)

const (
	// killGraceDefault is the time between TERM and KILL.
	killGraceDefault = 5 * time.Second
	// retryLater is the least delay after exitRetryLater.
	retryLater = 30 * time.Second
	// outputKeptBytes is the part that is kept of an output over OutputBytesMax.
	outputKeptBytes = 8 << 20
)

// ExecConfig configures an Exec. Only Command must be set.
type ExecConfig struct {
	// Command is the program and its arguments. It is not passed through a shell.
	Command []string
	// Dir is where the program runs; empty is where the worker does.
	Dir string
	// Env is added to the environment of the program, as NAME=value.
	Env []string
	// Inherit names the variables of the worker's own environment that the program sees in addition
	// to Inherited: NAME, NAME* or InheritAll. Keys and credentials are among them only by name.
	Inherit []string
	// OutputBytesMax is how much the program may write to its standard output.
	// Default and maximum protocol.ResultBytesMax (64 MiB), which a slot may then
	// hold in memory. A program that writes more is ended: its result is malformed, with the
	// first outputKeptBytes of it kept.
	OutputBytesMax int64
	// Output selects how its standard output is read. Default output.Auto.
	Output output.Mode
	// Input is the content of its standard input. Default InputPackage.
	Input Input
	// KillGrace is the time between TERM and KILL. Default 5 s.
	KillGrace time.Duration
	// Cleanup is a program, and its arguments, that removes the remains of
	// Command; see Cleaner for when. Empty is none. It has the same
	// standard input and environment, but for an empty HANDOFF_ACK_FILE, and
	// HANDOFF_CLEANUP_REASON. Its standard output is discarded, and an
	// exit code other than 0 is a cleanup that failed.
	Cleanup []string
	// Bid is a program, and its arguments, that answers a call for bids (Bidder). It has the package
	// of the call on its standard input, and prints a protocol.Bid as JSON, or nothing for the
	// default one; exit code 69 makes no bid. Empty is the DefaultBid.
	Bid []string
	// Redactor takes secrets out of the standard error that a failure quotes, before
	// it is cut to its last lines; nil is redact.Default.
	Redactor *redact.Redactor
}

// Input is the content of a program's standard input.
type Input string

const (
	InputPackage Input = "package" // the package, as JSON
	InputBrief   Input = "brief"   // instructions for a model (brief.Markdown); the package is in HANDOFF_PACKAGE_FILE
)

// Inputs are all inputs.
var Inputs = []Input{InputPackage, InputBrief}

// Exec is a Handler that runs a program for each handoff.
//
// The program finds the package on its standard input, as JSON: as it was
// submitted, and at the top level of it, where there is any,
//
//	supplements  the answers to conditions and escalations, oldest first; their
//	             variables are laid over context.variables, too
//	trail        the history of the handoff: refusals, escalations, failures
//	returns      the ends of the handoffs that it has waited for. Results that
//	             are over 16 MiB together are left out, and the notes report it
//
// It need not read any of it. context.previous is the result of the agent that has handed on to
// this one with goto (protocol.Previous).
//
// Its standard output is the result, as output.Read reads it: an object with
// fields of a result, which may be the last block of more, else other JSON or text as the body.
// {"command": {"goto": …, "update": …}} in it hands on (protocol.Continue). An output
// that tries to be a result and is not one is a failed attempt, with the code result_malformed,
// and is kept. Text around a result goes to the worker's log. Standard error goes to the worker's log line
// by line; its last lines are the message of a failure.
//
// In its environment, in addition to Inherited, Inherit and Env of ExecConfig:
//
//	HANDOFF_TICKET, HANDOFF_AGENT
//	HANDOFF_ATTEMPT            from 1
//	HANDOFF_FENCE              grows with every attempt
//	HANDOFF_ACK_FILE           see below
//	HANDOFF_PROGRESS_FILE      each line written there is a report of progress: "40 parsing",
//	                           or a protocol.Progress as JSON. {"extend_ms": 600000, "reason": "…"}
//	                           asks for more time (Extend). It is read once a second, and once more at
//	                           the end: each request is made, and the last report of a second counts
//	HANDOFF_BRIEF_FILE         the handoff as instructions for a model, in Markdown (brief.Markdown)
//	HANDOFF_PACKAGE_FILE       the package, where standard input has the brief (InputBrief)
//	HANDOFF_MAX_ITERATIONS     how many iterations the work may take (brief.Iterations)
//	HANDOFF_USAGE_FILE         the usage of the attempt so far: the last line counts, a
//	                           protocol.Usage as JSON, or the usage of a model's answer (output.Usage)
//	HANDOFF_AWAIT_DIR          packages that its result waits for, as command.await does: JSON in
//	                           files named 1, 2, …, as "handoff submit --await block" leaves them.
//	                           They count where it ends with 0, without an acknowledgement file
//	HANDOFF_CHILDREN           the ordinal of the first of them
//	HANDOFF_LEASE              the lease of the handoff: "handoff submit" hands off under it, so
//	                           that the handoffs of a program are on the account of its own. Not
//	                           through a gateway
//	HANDOFF_WORKSPACE          the workflow that it has a place in, if any
//	HANDOFF_LOCK_FENCE         the number of the grant of the locks that its package declares
//	HANDOFF_LIMIT              RFC 3339, when the first clock takes the handoff away
//	HANDOFF_LIMIT_CLOCK        which one it is: work, return or deadline
//	HANDOFF_PROGRESS_DEADLINE  RFC 3339, when the progress timeout does; may be empty
//	HANDOFF_DEADLINE           RFC 3339, when the handoff as a whole does
//	HANDOFF_CLEANUP_REASON     of Cleanup alone: cancelled, returned or lease_lost
//	TRACEPARENT, TRACESTATE    the span of this attempt (W3C Trace Context); the second may be empty
//
// Its exit code is the outcome; see the Exit constants. For more it
// writes the file that HANDOFF_ACK_FILE names: an acknowledgement as JSON
// (protocol.Ack), or one line of rejected or conditional and, after it, the
// reason or the needs; or one of these, as a line or as JSON:
//
//	answered TEXT        an authority's answer to an escalation (AnswerEscalation):
//	                     {"status":"answered", …} with the fields of protocol.Answer
//	escalated RATIONALE  up the chain of authority (Escalate):
//	                     {"status":"escalated","rationale":"…","assessment":"…"}
//	returned REASON      back to the source (RollBack), with its output
//	                     as the partial result: {"status":"returned","reason":"…"}
//
// Both files are read only where they are regular files: a named pipe, a socket, a
// device, a directory or a symbolic link in the place of the progress file is logged
// and reports nothing, in the place of the acknowledgement file the result is
// malformed, as with one that is over protocol.AckBytesMax or makes no sense; after exit code 75 or the
// death by a signal the attempt has failed as it had without.
//
// The acknowledgement file, but for accepted, counts whatever the exit code is. The
// group of a program whose handoff is to go back to its source gets TERM, like
// that of one that is cancelled; it may still write returned. The output of a
// program that is stopped is kept as a partial result. With exit code 69 and 77 but no such file,
// the last line of standard error is the reason, or the context that is needed. With 75, a file of
// {"retry_after_ms": 60000} sets the delay, and "limit_key": "model:m" in it also pauses that limit.
//
// On unix the program runs in a process group of its own. The group gets TERM,
// and KILL after KillGrace, when the handler's context ends; the same happens to
// processes that run on when it exits, a second after that if they still hold the output
// open: a filter of the output writes the rest of it. If the worker itself is killed
// with KILL, the group is killed by its leader, a small sh that waits for that
// alone; on Linux the kernel kills the program (PR_SET_PDEATHSIG) even where
// there is no sh. Not reached are processes that left the group (setsid). On
// other systems only the program itself is killed, at once.
type Exec struct{ cfg ExecConfig }

// NewExec checks the configuration, and that the command can be run (CheckCommand). It
// removes the files that killed workers have left below TMPDIR. A fault is a *protocol.Error.
func NewExec(cfg ExecConfig) (*Exec, error) {
	if err := CheckCommand(cfg.Dir, cfg.Command); err != nil {
		return nil, err
	}
	switch {
	case cfg.OutputBytesMax < 0 || cfg.OutputBytesMax > protocol.ResultBytesMax:
		return nil, protocol.Errorf(protocol.CodeInvalid, "output_bytes_max", "is %d, must be at most %d", cfg.OutputBytesMax, protocol.ResultBytesMax)
	case cfg.Input != "" && !slices.Contains(Inputs, cfg.Input):
		return nil, protocol.Errorf(protocol.CodeInvalid, "input", "must be one of %v, not %q", Inputs, cfg.Input)
	case cfg.Output != "" && !slices.Contains(output.Modes, cfg.Output):
		return nil, protocol.Errorf(protocol.CodeInvalid, "output", "must be one of %v, not %q", output.Modes, cfg.Output)
	case cfg.KillGrace < 0:
		return nil, protocol.Errorf(protocol.CodeInvalid, "kill_grace", "is %v, must not be negative", cfg.KillGrace)
	}
	for field, command := range map[string][]string{"cleanup": cfg.Cleanup, "bid": cfg.Bid} {
		if len(command) == 0 {
			continue
		}
		if err := CheckCommand(cfg.Dir, command); err != nil {
			var e *protocol.Error
			if errors.As(err, &e) && e.Field == "command" {
				e.Field = field
			}
			return nil, err
		}
	}
	for _, name := range cfg.Inherit {
		if !variableName.MatchString(name) {
			return nil, protocol.Errorf(protocol.CodeInvalid, "inherit", "%q is not the name of a variable: write NAME, NAME* or %s", name, InheritAll)
		}
	}
	for _, entry := range cfg.Env {
		if !strings.Contains(entry, "=") {
			return nil, protocol.Errorf(protocol.CodeInvalid, "env", "%q is not NAME=value", entry)
		}
	}
	if cfg.Redactor == nil {
		var err error
		if cfg.Redactor, err = redact.Default(); err != nil {
			return nil, err
		}
	}
	cfg.Output = cmp.Or(cfg.Output, output.Auto)
	cfg.OutputBytesMax = cmp.Or(cfg.OutputBytesMax, protocol.ResultBytesMax)
	cfg.KillGrace = cmp.Or(cfg.KillGrace, killGraceDefault)
	cfg.Command, cfg.Cleanup, cfg.Bid = slices.Clone(cfg.Command), slices.Clone(cfg.Cleanup), slices.Clone(cfg.Bid)
	cfg.Env, cfg.Inherit = slices.Clone(cfg.Env), slices.Clone(cfg.Inherit)
	sweepScratch()
	return &Exec{cfg: cfg}, nil
}

// Handle runs the program once. It implements Handler.
func (e *Exec) Handle(ctx context.Context, h Handoff) (protocol.Result, error) {
	since, input, err := h.document(ctx)
	if err != nil {
		return protocol.Result{}, err
	}
	dir, done, err := newScratch()
	if err != nil {
		return protocol.Result{}, Stop(fmt.Errorf("no place for the acknowledgement file: %w", err))
	}
	defer done()
	ackFile := filepath.Join(dir, "ack")
	progressFile, usageFile := filepath.Join(dir, "progress"), filepath.Join(dir, "usage")
	awaitDir := filepath.Join(dir, "await")
	if err := os.Mkdir(awaitDir, 0o700); err != nil {
		return protocol.Result{}, Stop(fmt.Errorf("no place for what it waits for: %w", err))
	}
	env := append(environment(e.cfg, h, ackFile), EnvAwaitDir+"="+awaitDir, "HANDOFF_PROGRESS_FILE="+progressFile, "HANDOFF_USAGE_FILE="+usageFile)
	input, env, err = e.brief(h, since, dir, input, env)
	if err != nil {
		return protocol.Result{}, Stop(fmt.Errorf("no place for the brief: %w", err))
	}
	p := &program{cfg: e.cfg, command: e.cfg.Command, log: h.logger(), input: input, env: env}
	watch, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	ended := make(chan struct{})
	reports := growing{path: progressFile}
	watching.Go(func() { h.followProgress(ctx, reports.next, ended) })
	watching.Go(func() { h.followUsage(watch, usageFile) })
	state, err := p.run(ctx)
	close(ended)
	stop()
	watching.Wait()
	result, err := e.ended(h, p, state, err, ackFile, awaitDir)
	return p.withUsage(ctx, h, usageFile, result, err)
}

// ended reads the outcome of a program that has ended, or that did not run to its end.
func (e *Exec) ended(h Handoff, p *program, state *os.ProcessState, err error, ackFile, awaitDir string) (protocol.Result, error) {
	if errors.Is(err, ErrReturned) { // it may have reported how far it came
		if said, unread := readAck(ackFile); unread == nil && said.back != nil {
			return protocol.Result{}, p.rollBack(said.back)
		}
	}
	var failure *Failure
	if err != nil && !errors.As(err, &failure) { // it was ended, and its output is kept
		return p.partial(), err
	}
	if p.stdout.isOver() { // whether or not it ended before it was ended
		return p.tooLarge(), nil
	}
	if err != nil {
		return protocol.Result{}, err
	}
	return e.outcome(h, p, state, ackFile, awaitDir)
}

// Cleanup runs the program that puts away. It implements Cleaner.
func (e *Exec) Cleanup(ctx context.Context, h Handoff, why error) error {
	if len(e.cfg.Cleanup) == 0 {
		return nil
	}
	input, err := brief.Document(h.Raw, brief.Since{Answers: h.Answers, Trail: h.Trail, Returns: h.Returns})
	if err != nil {
		return err
	}
	env := append(environment(e.cfg, h, ""), "HANDOFF_CLEANUP_REASON="+cleanupReason(why), EnvLease+"=") // it is lost
	p := &program{cfg: e.cfg, command: e.cfg.Cleanup, log: h.logger().With("cleanup", true), input: input, env: env}
	state, err := p.run(ctx)
	switch {
	case err != nil:
		return err
	case !state.Success():
		return errors.New(p.message(state))
	}
	return nil
}

func cleanupReason(why error) string {
	switch {
	case errors.Is(why, ErrReturned):
		return "returned"
	case errors.Is(why, ErrCancelled):
		return "cancelled"
	}
	return "lease_lost"
}

func environment(cfg ExecConfig, h Handoff, ackFile string) []string {
	instant := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.UTC().Format(time.RFC3339)
	}
	var trace []string // over the worker's own, which is another's span
	if !h.Trace.IsZero() {
		trace = []string{"TRACEPARENT=" + h.Trace.Parent, "TRACESTATE=" + h.Trace.State}
	}
	if s := h.State(); s.Joined {
		trace = append(trace, "HANDOFF_WORKSPACE="+s.Workspace)
		if s.LockFence > 0 {
			trace = append(trace, "HANDOFF_LOCK_FENCE="+strconv.FormatUint(s.LockFence, 10))
		}
	}
	limit, clock := h.Limit()
	return slices.Concat(inherited(cfg.Inherit), cfg.Env, trace, []string{
		"HANDOFF_TICKET=" + h.Ticket,
		"HANDOFF_AGENT=" + h.Agent,
		"HANDOFF_ATTEMPT=" + strconv.Itoa(h.Attempt),
		"HANDOFF_FENCE=" + strconv.FormatUint(h.Fence, 10),
		"HANDOFF_ACK_FILE=" + ackFile,
		EnvLease + "=" + h.lease(),
		"HANDOFF_LIMIT=" + instant(limit),
		"HANDOFF_LIMIT_CLOCK=" + string(clock),
		"HANDOFF_PROGRESS_DEADLINE=" + instant(h.ProgressDeadline()),
		"HANDOFF_DEADLINE=" + instant(h.Deadline()),
	})
}

// program is one run of the command.
type program struct {
	cfg     ExecConfig
	command []string
	log     *slog.Logger
	input   []byte
	env     []string
	feed    func(io.WriteCloser) // nil writes input
	read    func(io.Reader)      // nil keeps the output in stdout
	stdout  limited
	stderr  lines
}

// drainPipes is how long processes of an ended program may still write its output, in its
// group, and once more out of it.
const drainPipes = time.Second

// run starts the program, feeds it, and returns how it ended. It returns an error
// if it could not be started, wrote too much, or ctx ended first.
func (p *program) run(ctx context.Context) (*os.ProcessState, error) {
	// The kernel sends the parent-death signal when the *thread* that started
	// the program ends. This one lives until the program has ended.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	cmd := exec.Command(p.command[0], p.command[1:]...)
	cmd.Dir, cmd.Env = p.cfg.Dir, p.env
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	stderr, err3 := cmd.StderrPipe()
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return nil, Stop(fmt.Errorf("no pipe for %s: %w", p.command[0], err))
		}
	}
	group := newGroup()
	defer group.dismiss()
	group.add(cmd)
	if err := cmd.Start(); err != nil {
		return nil, Stop(fmt.Errorf("%s cannot be started: %w", p.command[0], err))
	}
	group.added(cmd.Process)

	p.stdout = limited{most: p.cfg.OutputBytesMax, over: make(chan struct{})}
	p.stderr = lines{log: p.log, redactor: p.cfg.Redactor}
	var feed, read sync.WaitGroup
	feed.Go(func() {
		if p.feed != nil {
			p.feed(stdin)
			return
		}
		_, _ = stdin.Write(p.input) // a program that does not read it is fine
		_ = stdin.Close()
	})
	read.Go(func() {
		if p.read != nil {
			p.read(stdout)
			return
		}
		_, _ = io.Copy(&p.stdout, stdout)
	})
	read.Go(func() { p.stderr.readFrom(stderr) })

	silent := make(chan struct{}) // closed when no process holds its output open any more
	go func() {
		read.Wait()
		close(silent)
	}()

	state, err := p.await(ctx, cmd, group, silent)
	_ = stdin.Close()
	late := time.AfterFunc(drainPipes, func() {
		_ = stdout.Close()
		_ = stderr.Close()
	})
	<-silent
	late.Stop()
	_, _ = stdout.Close(), stderr.Close()
	feed.Wait()
	return state, err
}

// await waits for the program's end, and ends it when its time is over.
func (p *program) await(ctx context.Context, cmd *exec.Cmd, group *group, silent <-chan struct{}) (*os.ProcessState, error) {
	type exit struct {
		state *os.ProcessState
		err   error
	}
	ended := make(chan exit, 1)
	go func() {
		state, err := cmd.Process.Wait()
		ended <- exit{state, err}
	}()
	var cut error
	var x exit
	select {
	case x = <-ended:
	case <-ctx.Done():
		cut = context.Cause(ctx)
	case <-p.stdout.over:
		cut = &Failure{Code: "output_too_large", Err: errors.New(p.tooLargeWords())}
	}
	if cut != nil {
		p.log.Info("ending the program", "why", cut)
		group.signalEnd()
		timer := time.NewTimer(p.cfg.KillGrace)
		defer timer.Stop()
		select {
		case x = <-ended:
		case <-timer.C:
			group.kill()
			x = <-ended
		}
	}
	group.endRest(p.cfg.KillGrace, silent, cut == nil)
	if cut != nil {
		return nil, cut
	}
	if x.err != nil {
		return nil, fmt.Errorf("wait for %s: %w", p.command[0], x.err)
	}
	return x.state, nil
}

// openRegular opens a file in whose place a program may have put anything. Only
// a regular file is read: a named pipe would keep its reader for ever, a device may
// have no end. A symbolic link is not followed.
func openRegular(path string) (*os.File, error) {
	info, err := os.Lstat(path) // to open a device can be too much already
	if err != nil {
		return nil, err
	}
	if err := checkRegular(info); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|openAtOnce, 0)
	if err != nil {
		return nil, err
	}
	if info, err = file.Stat(); err == nil { // it may have been replaced since
		err = checkRegular(info)
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// readRegular reads a regular file, and most bytes of it at most.
func readRegular(path string, most int64) ([]byte, error) {
	file, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, most))
}

func checkRegular(info os.FileInfo) error {
	what := "no file"
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return nil
	case mode&os.ModeSymlink != 0:
		what = "a symbolic link"
	case mode&os.ModeNamedPipe != 0:
		what = "a named pipe"
	case mode&os.ModeSocket != 0:
		what = "a socket"
	case mode.IsDir():
		what = "a directory"
	case mode&os.ModeDevice != 0:
		what = "a device"
	}
	return fmt.Errorf("is %s; only a regular file is read", what)
}

// document returns the history of a handoff, and its package with that.
func (h Handoff) document(ctx context.Context) (since brief.Since, document []byte, err error) {
	if since, err = h.since(ctx); err != nil {
		return since, nil, err
	}
	document, err = brief.Document(h.Raw, since)
	return since, document, Permanent(err)
}

// since returns the history of a handoff since it was submitted, with the current variables of its
// workflow. It waits for an engine that does not answer.
func (h Handoff) since(ctx context.Context) (brief.Since, error) {
	since := brief.Since{Answers: h.Answers, Trail: h.Trail, Returns: h.Returns}
	if h.r == nil || h.r.lastState().Workspace == "" {
		return since, nil
	}
	err := h.r.w.retry(ctx, "read the workspace", func(ctx context.Context) error {
		w, err := h.Workspace(ctx)
		if err == nil {
			since.Shared = brief.SharedOf(w)
		}
		return err
	})
	var refused *protocol.Error
	if errors.As(err, &refused) { // there is none to read
		return since, nil
	}
	return since, err
}

// brief leaves the brief of a handoff in a file, and returns the program's input and its
// environment. Where it reads the brief, the package is in a file too.
func (e *Exec) brief(h Handoff, since brief.Since, dir string, input []byte, env []string) ([]byte, []string, error) {
	text := []byte(brief.Markdown(&h.Package, h.State(), since))
	briefFile, packageFile := filepath.Join(dir, "brief.md"), ""
	if err := os.WriteFile(briefFile, text, 0o600); err != nil {
		return nil, nil, err
	}
	if e.cfg.Input == InputBrief {
		packageFile = filepath.Join(dir, "package.json")
		if err := os.WriteFile(packageFile, input, 0o600); err != nil {
			return nil, nil, err
		}
		input = text
	}
	return input, append(env, "HANDOFF_BRIEF_FILE="+briefFile, "HANDOFF_PACKAGE_FILE="+packageFile,
		"HANDOFF_MAX_ITERATIONS="+strconv.Itoa(brief.Iterations(&h.Package))), nil
}

// InheritAll passes the whole environment of the worker on to its program.
const InheritAll = "all"

// Inherited are the variables of the worker's environment that every program sees. They name
// places, the user, and how texts and times are written. A * is any rest of a name.
var Inherited = []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "NO_COLOR", "PWD", "LANG", "LANGUAGE", "LC_*", "TZ",
	"TMPDIR", "TMP", "TEMP", "XDG_*_HOME", "XDG_RUNTIME_DIR",
	// without these few programs of Windows start
	"SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA"}

// variableName is the name of a variable, or the beginning of names.
var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*\*?$`)

// Inherits reports whether a program sees a variable of its worker: one of Inherited, or of names.
// These are NAME, NAME* or InheritAll.
func Inherits(variable string, names []string) bool {
	if runtime.GOOS == "windows" {
		variable = strings.ToUpper(variable)
	}
	if slices.Contains(names, InheritAll) {
		return true
	}
	matches := func(name string) bool {
		ok, err := path.Match(name, variable)
		return err == nil && ok
	}
	return slices.ContainsFunc(Inherited, matches) || slices.ContainsFunc(names, matches)
}

// inherited is the part of the worker's environment that a program sees.
func inherited(names []string) []string {
	return slices.DeleteFunc(os.Environ(), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return !Inherits(name, names)
	})
}
