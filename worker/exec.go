package worker

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// Exit codes by which a program says what came of its handoff. The numbers are
// those of sysexits.h where it has the meaning. Every other code is a failed
// attempt that is worth a retry, like the death by a signal.
const (
	ExitComplete    = 0
	ExitPermanent   = 65  // EX_DATAERR: failed, and no retry will mend it
	ExitRejected    = 69  // EX_UNAVAILABLE: not for this agent
	ExitRetryLater  = 75  // EX_TEMPFAIL: failed, retry later
	ExitConditional = 77  // EX_NOPERM: only if
	ExitCannotRun   = 126 // of the shell: not executable. The worker drains
	ExitNotFound    = 127 // of the shell: no such command. The worker drains
)

const (
	// KillGraceDefault is the time between TERM and KILL.
	KillGraceDefault = 5 * time.Second
	// RetryLaterDefault is the least delay after ExitRetryLater.
	RetryLaterDefault = 30 * time.Second
)

// ExecConfig configures an Exec. Only Command must be set.
type ExecConfig struct {
	// Command is the program and its arguments. It is not passed through a shell.
	Command []string
	// Dir is where the program runs; empty is where the worker does.
	Dir string
	// Env is added to the worker's own environment, NAME=value: NATS_URL, say.
	Env []string
	// OutputBytesMax is how much the program may write to its standard output.
	// Default and maximum protocol.ResultBytesMax (64 MiB), which a slot may then
	// hold in memory. A program that writes more is ended, and has failed.
	OutputBytesMax int64
	// KillGrace is the time between TERM and KILL. Default 5 s.
	KillGrace time.Duration
	// RetryLater is the least delay after exit code 75. Default 30 s.
	RetryLater time.Duration
}

// Exec is a Handler that runs a program for each handoff.
//
// The program finds the package on its standard input, as JSON: as it was
// submitted, or, once conditions were answered, with the variables of
// the answers laid over context.variables, and the answers themselves in
// a top-level field supplements, oldest first. It need not read any of it.
//
// What it writes to standard output is the result (protocol.ResultFromOutput:
// JSON if it parses, else text). Standard error goes to the worker's log line
// by line; its last lines are the message of a failure.
//
// In its environment, beside what the worker's own holds and ExecConfig.Env:
//
//	HANDOFF_TICKET, HANDOFF_AGENT
//	HANDOFF_ATTEMPT        from 1
//	HANDOFF_FENCE          grows with every attempt
//	HANDOFF_ACK_FILE       see below
//	HANDOFF_WORK_DEADLINE  RFC 3339, when the work timeout runs out; may be empty
//	HANDOFF_DEADLINE       RFC 3339, when the handoff as a whole does
//
// Its exit code says what came of it; see the Exit constants. To say more it
// writes the file that HANDOFF_ACK_FILE names: an acknowledgement as JSON
// (protocol.Ack), or one line of rejected or conditional and, after it, the
// reason or what is needed. A refusal in that file counts whatever the exit code
// is. With exit code 69 and 77 but no such file, the last line of standard error
// is the reason, or the context that is needed. With 75, a file of
// {"retry_after_ms": 60000} sets the delay.
//
// On unix the program runs in a process group of its own. The group gets TERM,
// and KILL after KillGrace, when the handler's context ends; the same happens to
// what the program leaves running when it exits. If the worker itself is killed
// with KILL, the group is killed by its leader, a small sh that waits for that
// alone; on Linux the kernel kills the program (PR_SET_PDEATHSIG) even where
// there is no sh. Not reached are processes that left the group (setsid). On
// other systems only the program itself is killed, at once.
type Exec struct{ cfg ExecConfig }

// NewExec checks the configuration, and that the command can be run
// (CheckCommand). A *protocol.Error says what is wrong.
func NewExec(cfg ExecConfig) (*Exec, error) {
	if err := CheckCommand(cfg.Dir, cfg.Command); err != nil {
		return nil, err
	}
	switch {
	case cfg.OutputBytesMax < 0 || cfg.OutputBytesMax > protocol.ResultBytesMax:
		return nil, protocol.Errorf(protocol.CodeInvalid, "output_bytes_max", "is %d, must be at most %d", cfg.OutputBytesMax, protocol.ResultBytesMax)
	case cfg.KillGrace < 0 || cfg.RetryLater < 0:
		return nil, protocol.Errorf(protocol.CodeInvalid, "kill_grace", "%v, and the delay of a retry %v, must not be negative", cfg.KillGrace, cfg.RetryLater)
	}
	for _, entry := range cfg.Env {
		if !strings.Contains(entry, "=") {
			return nil, protocol.Errorf(protocol.CodeInvalid, "env", "%q is not NAME=value", entry)
		}
	}
	if cfg.OutputBytesMax == 0 {
		cfg.OutputBytesMax = protocol.ResultBytesMax
	}
	if cfg.KillGrace == 0 {
		cfg.KillGrace = KillGraceDefault
	}
	if cfg.RetryLater == 0 {
		cfg.RetryLater = RetryLaterDefault
	}
	cfg.Command, cfg.Env = slices.Clone(cfg.Command), slices.Clone(cfg.Env)
	return &Exec{cfg: cfg}, nil
}

// Handle runs the program once. It implements Handler.
func (e *Exec) Handle(ctx context.Context, h Handoff) (protocol.Result, error) {
	input, err := e.input(h)
	if err != nil {
		return protocol.Result{}, Permanent(err)
	}
	dir, err := os.MkdirTemp("", "handoff-")
	if err != nil {
		return protocol.Result{}, Stop(fmt.Errorf("no place for the acknowledgement file: %w", err))
	}
	defer os.RemoveAll(dir)
	ackFile := filepath.Join(dir, "ack")
	p := &program{cfg: e.cfg, log: h.logger(), input: input, env: environment(e.cfg, h, ackFile)}
	state, err := p.run(ctx)
	if err != nil {
		return protocol.Result{}, err
	}
	return e.outcome(p, state, ackFile)
}

func environment(cfg ExecConfig, h Handoff, ackFile string) []string {
	instant := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.UTC().Format(time.RFC3339)
	}
	return slices.Concat(os.Environ(), cfg.Env, []string{
		"HANDOFF_TICKET=" + h.Ticket,
		"HANDOFF_AGENT=" + h.Agent,
		"HANDOFF_ATTEMPT=" + strconv.Itoa(h.Attempt),
		"HANDOFF_FENCE=" + strconv.FormatUint(h.Fence, 10),
		"HANDOFF_ACK_FILE=" + ackFile,
		"HANDOFF_WORK_DEADLINE=" + instant(h.WorkDeadline()),
		"HANDOFF_DEADLINE=" + instant(h.Deadline()),
	})
}

// program is one run of the command.
type program struct {
	cfg    ExecConfig
	log    *slog.Logger
	input  []byte
	env    []string
	stdout limited
	stderr lines
}

// drainPipes is how long the output of a program that has ended may still
// be read: only a process that left its group can hold it open for longer.
const drainPipes = time.Second

// run starts the program, feeds it, and returns how it ended. It returns an error
// if it could not be started, wrote too much, or ctx ended first.
func (p *program) run(ctx context.Context) (*os.ProcessState, error) {
	// The kernel sends the parent-death signal when the *thread* that started
	// the program ends. This one lives until the program has ended.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	cmd := exec.Command(p.cfg.Command[0], p.cfg.Command[1:]...)
	cmd.Dir, cmd.Env = p.cfg.Dir, p.env
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	stderr, err3 := cmd.StderrPipe()
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return nil, Stop(fmt.Errorf("no pipe for %s: %w", p.cfg.Command[0], err))
		}
	}
	group := newGroup()
	defer group.dismiss()
	group.add(cmd)
	if err := cmd.Start(); err != nil {
		return nil, Stop(fmt.Errorf("%s cannot be started: %w", p.cfg.Command[0], err))
	}
	group.added(cmd.Process)

	p.stdout = limited{most: p.cfg.OutputBytesMax, over: make(chan struct{})}
	p.stderr = lines{log: p.log}
	var feed, read sync.WaitGroup
	feed.Go(func() { // a program that does not read it is fine
		_, _ = stdin.Write(p.input)
		_ = stdin.Close()
	})
	read.Go(func() { _, _ = io.Copy(&p.stdout, stdout) })
	read.Go(func() { p.stderr.readFrom(stderr) })

	silent := make(chan struct{}) // closed when nobody holds its output open any more
	go func() {
		read.Wait()
		close(silent)
	}()

	state, err := p.await(ctx, cmd, group, silent)
	_ = stdin.Close()
	feed.Wait()
	late := time.AfterFunc(drainPipes, func() {
		_ = stdout.Close()
		_ = stderr.Close()
	})
	<-silent
	late.Stop()
	_, _ = stdout.Close(), stderr.Close()
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
		cut = &Failure{Code: "output_too_large", Err: fmt.Errorf("wrote more than %d bytes to its standard output; large output is better handed over as an artifact", p.cfg.OutputBytesMax)}
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
	group.endRest(p.cfg.KillGrace, silent)
	if cut != nil {
		return nil, cut
	}
	if x.err != nil {
		return nil, fmt.Errorf("wait for %s: %w", p.cfg.Command[0], x.err)
	}
	return x.state, nil
}
