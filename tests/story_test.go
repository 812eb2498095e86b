package tests

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/agenthandoff/handoff/internal/cli"
)

// scriptState is what a script has under way, and what it remembers.
type scriptState struct {
	t         testscript.T
	processes bool   // each command is one
	input     []byte // of the next command

	dev      *process
	work     []*process
	gateways []*process
	ledger   int // entries, when the script last asked

	golden   map[string]bool   // files compared
	standIns map[string]string // of identifiers; see stable
}

type stateKey struct{}

func of(ts *testscript.TestScript) *scriptState { return ts.Value(stateKey{}).(*scriptState) }

// process is a command that runs beside the script: in a process of its own, or within
// the test's. Its log is shown when the script fails.
type process struct {
	cmd    *exec.Cmd          // nil within the test's process
	cancel context.CancelFunc // there, in place of a signal
	done   chan struct{}
	err    error
}

const waitTimeout = 2 * time.Minute // of the whole suite with what it waits for

// start starts a process and returns what find finds in a line of its stdout,
// or stderr.
func start(ts *testscript.TestScript, args []string, onStderr bool, find func(line string) string) (*process, string) {
	found := make(chan string, 1)
	onOut, onErr := find, (func(string) string)(nil)
	if onStderr {
		onOut, onErr = nil, find
	}
	p := spawn(ts, args, onOut, onErr, found)
	select {
	case what := <-found:
		return p, what
	case <-p.done:
		ts.Fatalf("handoff %s ended: %v", strings.Join(args, " "), p.err)
	case <-time.After(waitTimeout):
		ts.Fatalf("handoff %s did not get ready", strings.Join(args, " "))
	}
	return nil, ""
}

// spawn starts a command that runs beside the script, and ends with it. What it wrote is
// shown when the script fails.
func spawn(ts *testscript.TestScript, args []string, onOut, onErr func(string) string, found chan<- string) *process {
	p := &process{done: make(chan struct{})}
	var stdout, stderr io.Reader
	var wait func() error
	if of(ts).processes {
		stdout, stderr, wait = p.exec(ts, args)
	} else {
		stdout, stderr, wait = p.within(ts, args)
	}
	var readers sync.WaitGroup
	log := &lines{}
	readers.Go(func() { log.read(stdout, onOut, found) })
	readers.Go(func() { log.read(stderr, onErr, found) })
	go func() { // joined by stop
		readers.Wait()
		p.err = wait()
		close(p.done)
	}()
	ts.Defer(func() { ts.Logf("%s wrote:\n%s", strings.Join(args, " "), log.String()) })
	ts.Defer(func() { _ = p.stop(os.Kill) })
	return p
}

// inherited are the variables of the script that what it spawns gets.
var inherited = []string{"NATS_URL", "PATH", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"}

func (p *process) exec(ts *testscript.TestScript, args []string) (stdout, stderr io.Reader, wait func() error) {
	bin, _, _ := strings.Cut(ts.Getenv("PATH"), string(os.PathListSeparator))
	p.cmd = exec.Command(filepath.Join(bin, "handoff"), args...)
	p.cmd.Dir = ts.MkAbs(".")
	p.cmd.Env = os.Environ()
	for _, name := range inherited {
		p.cmd.Env = append(p.cmd.Env, name+"="+ts.Getenv(name))
	}
	stdout, err := p.cmd.StdoutPipe()
	ts.Check(err)
	stderr, err = p.cmd.StderrPipe()
	ts.Check(err)
	ts.Check(p.cmd.Start())
	return stdout, stderr, p.cmd.Wait
}

func (p *process) within(ts *testscript.TestScript, args []string) (stdout, stderr io.Reader, wait func() error) {
	if args[0] == "work" { // what hangs in a story cannot be killed with its process
		args = slices.Insert(slices.Clone(args), 1, "--drain=3s")
	}
	set := map[string]string{"PWD": ts.MkAbs(".")}
	for _, name := range inherited {
		set[name] = ts.Getenv(name)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	stdout, out := io.Pipe()
	stderr, err := io.Pipe()
	code := make(chan int, 1)
	go func() { // joined by wait
		code <- cli.Run(ctx, args, strings.NewReader(""), out, err, func(name string) string {
			if value, ok := set[name]; ok {
				return value
			}
			return os.Getenv(name)
		})
		_, _ = out.Close(), err.Close()
	}()
	return stdout, stderr, func() error {
		cancel()
		if code := <-code; code != 0 {
			return fmt.Errorf("exit code %d", code)
		}
		return nil
	}
}

// signal sends a signal. Within the test's process each is a first Ctrl-C.
func (p *process) signal(with os.Signal) {
	if p.cmd == nil {
		p.cancel()
		return
	}
	_ = p.cmd.Process.Signal(with) // it may have ended
}

func (p *process) stop(with os.Signal) error {
	p.signal(with)
	select {
	case <-p.done:
		return p.err
	case <-time.After(waitTimeout):
		if p.cmd != nil {
			_ = p.cmd.Process.Kill()
			<-p.done
		}
		return errors.New("did not stop in time")
	}
}

// lines keeps what a process writes.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) read(from io.Reader, find func(string) string, found chan<- string) {
	scanner := bufio.NewScanner(from)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		l.mu.Lock()
		fmt.Fprintln(&l.text, scanner.Text())
		l.mu.Unlock()
		if find == nil {
			continue
		}
		if what := find(scanner.Text()); what != "" {
			found <- what
			find = nil
		}
	}
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// said is what a command printed, and its exit code.
type said struct {
	code           int
	stdout, stderr string
}

// run runs a command. Until show, the script does not see what one within the test's
// process printed.
func run(ts *testscript.TestScript, args []string) said {
	if len(args) == 0 {
		ts.Fatalf("no command")
	}
	if args[0] == "handoff" && !of(ts).processes {
		return runWithin(ts, args[1:])
	}
	err := ts.Exec(args[0], args[1:]...)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		ts.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
	got := said{stdout: ts.ReadFile("stdout"), stderr: ts.ReadFile("stderr")}
	if exit != nil {
		got.code = exit.ExitCode()
	}
	return got
}

// runWithin runs a command line within the test's process.
func runWithin(ts *testscript.TestScript, args []string) said {
	input := of(ts).input
	of(ts).input = nil
	var stdout, stderr bytes.Buffer
	code := cli.Run(context.Background(), args, bytes.NewReader(input), &stdout, &stderr, func(name string) string {
		if name == "PWD" {
			return ts.MkAbs(".")
		}
		return ts.Getenv(name)
	})
	return said{code: code, stdout: stdout.String(), stderr: stderr.String()}
}

// show lets the script see what a command printed.
func (s said) show(ts *testscript.TestScript) {
	for to, text := range map[io.Writer]string{ts.Stdout(): s.stdout, ts.Stderr(): s.stderr} {
		_, err := io.WriteString(to, text)
		ts.Check(err)
	}
}

// mustExit runs a command, which must exit with want.
func mustExit(ts *testscript.TestScript, want string, args []string) said {
	got := run(ts, args)
	for tries := 0; got.code == 6 && want != "6" && tries < 3 && starved(ts, got.stderr); tries++ {
		got = run(ts, args)
	}
	got.show(ts)
	if fmt.Sprint(got.code) != want {
		ts.Fatalf("exit code %d, want %s\nstdout: %s\nstderr: %s", got.code, want, got.stdout, got.stderr)
	}
	return got
}

// starved tells whether an engine that runs did not get to answer within the
// 3 s that a command gives it: so it may be while the tests of all packages
// share two cores.
func starved(ts *testscript.TestScript, stderr string) bool {
	return strings.Contains(stderr, ts.Getenv("NATS_URL")) && strings.Contains(stderr, "i/o timeout")
}

func cmdHandoff(ts *testscript.TestScript, neg bool, args []string) {
	mustExit(ts, "0", append([]string{"handoff"}, args...))
}

func cmdCode(ts *testscript.TestScript, neg bool, args []string) { mustExit(ts, args[0], args[1:]) }

func cmdEventually(ts *testscript.TestScript, neg bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	want, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	eventually(ctx, ts, args[0], func() bool {
		got := run(ts, args[1:])
		so := got.code == 0 && want.MatchString(got.stdout)
		if so || ctx.Err() != nil {
			got.show(ts)
		}
		return so
	})
}

func cmdLet(ts *testscript.TestScript, neg bool, args []string) {
	ts.Setenv(args[0], strings.TrimSpace(mustExit(ts, "0", args[1:]).stdout))
}

// cmdEach runs a command within the test's process for each line of a file, which is its input.
func cmdEach(ts *testscript.TestScript, neg bool, args []string) {
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		of(ts).input = []byte(line)
		mustExit(ts, "0", args[1:])
	}
}

// cmdInput is the testscript command stdin for commands within the test's process.
func cmdInput(ts *testscript.TestScript, neg bool, args []string) {
	of(ts).input = []byte(ts.ReadFile(args[0]))
}
