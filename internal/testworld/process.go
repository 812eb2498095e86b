// Package testworld runs real processes for tests: clusters of NATS servers, supervisors and
// workers. A test kills, stops and continues them with signals, and cuts their connections. All
// of them listen on loopback and end with the test.
package testworld

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// program is a program that a test process builds once. The environment variable env names one
// that is built already.
type program struct {
	env  string
	once sync.Once
	path string
	err  error
}

var (
	// Dir makes a directory for the programs of a test process. Main removes it.
	Dir      = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "handoff-testworld-") })
	programs = map[string]*program{
		"github.com/agenthandoff/handoff/cmd/handoff": {env: "HANDOFF_BIN"},
		"github.com/nats-io/nats-server/v2":           {env: "NATS_SERVER_BIN"},
		"github.com/nats-io/nkeys/nk":                 {env: "NK_BIN"},
	}
)

// Main runs the tests, removes the programs built for them and exits. TestMain calls it.
func Main(m *testing.M) {
	code := m.Run()
	if made, err := Dir(); err == nil {
		_ = os.RemoveAll(made)
	}
	os.Exit(code)
}

// Handoff returns the path of the handoff program. HANDOFF_BIN names one that is built already.
func Handoff(t testing.TB) string { return build(t, "github.com/agenthandoff/handoff/cmd/handoff") }

// NATSServer returns the path of nats-server in the embedded version. NATS_SERVER_BIN names one
// that is built already.
func NATSServer(t testing.TB) string { return build(t, "github.com/nats-io/nats-server/v2") }

// NK returns the path of nk, which makes keys of NATS users. NK_BIN names one that is built already.
func NK(t testing.TB) string { return build(t, "github.com/nats-io/nkeys/nk") }

func build(t testing.TB, pkg string) string {
	t.Helper()
	p := programs[pkg]
	p.once.Do(func() {
		if p.path = os.Getenv(p.env); p.path != "" {
			return
		}
		var in string
		if in, p.err = Dir(); p.err != nil {
			return
		}
		p.path = filepath.Join(in, filepath.Base(filepath.Dir(pkg+"/x")))
		args := []string{"build", "-o", p.path, pkg}
		if Race {
			args = slices.Insert(args, 1, "-race")
		}
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			p.err = fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
	})
	if p.err != nil {
		t.Fatal(p.err)
	}
	return p.path
}

// Process is a running program. The end of the test kills it.
type Process struct {
	Name string

	t     testing.TB
	dir   string
	path  string
	args  []string
	env   []string
	mu    sync.Mutex
	cmd   *exec.Cmd
	ended chan struct{}
	log   *log
}

// Tee also writes further output of the process to w.
func (p *Process) Tee(w io.Writer) {
	p.log.mu.Lock()
	defer p.log.mu.Unlock()
	p.log.tee = w
}

// log keeps the end of a process's output.
type log struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	tee   io.Writer
	more  chan struct{} // closed by the next write
	raced bool          // the output has a data race
}

const logBytesMax = 64 << 10

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tee != nil {
		_, _ = l.tee.Write(b)
	}
	l.raced = l.raced || bytes.Contains(b, []byte("DATA RACE"))
	defer func() { close(l.more); l.more = make(chan struct{}) }()
	if l.buf.Len() > logBytesMax {
		rest := bytes.Clone(l.buf.Bytes()[l.buf.Len()-logBytesMax/2:])
		l.buf.Reset()
		l.buf.Write(rest)
	}
	return l.buf.Write(b)
}

func (l *log) read() (text string, more <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String(), l.more
}

// Start starts a program. env is added to the environment of the test.
func Start(t testing.TB, name string, env []string, path string, args ...string) *Process {
	t.Helper()
	return StartIn(t, "", name, env, path, args...)
}

// StartIn is Start in a directory.
func StartIn(t testing.TB, dir, name string, env []string, path string, args ...string) *Process {
	t.Helper()
	p := &Process{Name: name, t: t, dir: dir, path: path, args: args, env: env, log: &log{more: make(chan struct{})}}
	p.Restart()
	t.Cleanup(func() {
		p.Kill()
		if p.log.raced { // its writer has ended
			t.Errorf("%s has a data race", p.Name)
		}
		if t.Failed() {
			t.Logf("the last of %s:\n%s", p.Name, tail(p.Output(), 30))
		}
	})
	return p
}

// Restart starts the program again after its end.
func (p *Process) Restart() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd = exec.Command(p.path, p.args...)
	env := os.Environ()
	if filepath.IsAbs(p.dir) { // witnesses of ledgers stay out of the home of who runs the tests
		env = append(env, "XDG_STATE_HOME="+filepath.Join(p.dir, "state"))
	}
	p.cmd.Dir, p.cmd.Env = p.dir, append(env, p.env...)
	p.cmd.WaitDelay = 5 * time.Second // for the output pipe, if a grandchild has it open
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = processAttributes()
	if err := p.cmd.Start(); err != nil {
		p.t.Errorf("start %s: %v", p.Name, err)
		p.cmd = nil
		return
	}
	cmd, ended := p.cmd, make(chan struct{})
	p.ended = ended
	go func() { // joined by Kill and Wait
		defer close(ended)
		_ = cmd.Wait()
	}()
}

// Signal sends a signal, unless the process has ended.
func (p *Process) Signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("signal %v to %s: %v", s, p.Name, err)
	}
}

// Kill ends the process with SIGKILL and waits for its end.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	p.Wait()
}

// Wait returns when the process has ended.
func (p *Process) Wait() {
	if ended := p.Ended(); ended != nil {
		<-ended
	}
}

// Ended is closed when the process has ended; nil before it was started.
func (p *Process) Ended() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// ExitCode is the exit code of a process that has ended; -1 if a signal ended it.
func (p *Process) ExitCode() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.ProcessState.ExitCode()
}

// Freeze stops the process, and Thaw continues it.
func (p *Process) Freeze() { p.Signal(syscall.SIGSTOP) }

// Thaw continues the process after Freeze.
func (p *Process) Thaw() { p.Signal(syscall.SIGCONT) }

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.Ended():
		return false
	default:
		return true
	}
}

// PID is the process id; 0 before the start.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Output is the end of the process's output so far.
func (p *Process) Output() string {
	text, _ := p.log.read()
	return text
}

// outputWaitMax bounds AwaitOutput where its context has no deadline: what never comes fails with the output, not
// with the time of the whole package.
const outputWaitMax = 3 * time.Minute

// AwaitOutput waits until the process has printed text, and returns the rest of that line.
func (p *Process) AwaitOutput(ctx context.Context, text string) string {
	p.t.Helper()
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, outputWaitMax)
		defer cancel()
	}
	for {
		all, more := p.log.read()
		if _, after, found := strings.Cut(all, text); found && strings.Contains(after, "\n") {
			line, _, _ := strings.Cut(after, "\n")
			return line
		}
		if !p.Running() {
			if now := p.Output(); now == all { // else it has printed more before its end
				p.t.Fatalf("%s ended and did not print %q:\n%s", p.Name, text, tail(all, 30))
			}
			continue
		}
		select {
		case <-more:
		case <-p.Ended():
		case <-ctx.Done():
			p.t.Fatalf("%s did not print %q: %v\n%s", p.Name, text, ctx.Err(), tail(all, 30))
		}
	}
}

func tail(text string, lines int) string {
	all := bytes.Split([]byte(text), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}
