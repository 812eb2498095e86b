//go:build unix

package worker_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/worker"
)

// runCommandEnv makes the test program a worker that runs this one command, to
// be killed by a test.
const runCommandEnv = "HANDOFF_TEST_RUN_COMMAND"

func TestMain(m *testing.M) {
	if command := os.Getenv(runCommandEnv); command != "" {
		e, err := worker.NewExec(worker.ExecConfig{Command: []string{command}})
		if err == nil {
			_, err = e.Handle(context.Background(), handoff())
		}
		_, _ = io.WriteString(os.Stderr, "ended: "+err.Error()+"\n")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// lifeline is a pipe with a name that a script and all of its children hold
// open: its end is theirs.
type lifeline struct {
	path  string
	lines chan string // closed at the end
}

func newLifeline(t *testing.T) *lifeline {
	t.Helper()
	l := &lifeline{path: filepath.Join(t.TempDir(), "lifeline"), lines: make(chan string, 10)}
	if err := syscall.Mkfifo(l.path, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(l.lines)
		f, err := os.Open(l.path) // until the script opens it, too
		if err != nil {
			return
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			l.lines <- s.Text()
		}
	}()
	return l
}

// next returns the script's next line, "" at the end of all its processes.
func (l *lifeline) next(t *testing.T) string {
	t.Helper()
	select {
	case line := <-l.lines:
		return line
	case <-time.After(10 * time.Second):
		t.Fatal("neither a word from the script nor the end of its processes")
		return ""
	}
}

// family is a script that holds the lifeline, has a child that ignores
// TERM if stubborn, and waits.
func family(l *lifeline, stubborn bool) string {
	body := "exec 3> " + l.path + "\n"
	if stubborn {
		body += "trap '' TERM\n"
	} else {
		body += "trap 'echo told >&3; exit 0' TERM\n"
	}
	return body + "sleep 1000 &\necho ready >&3\nwait\nwait"
}

func TestGroupEndsWithTheContext(t *testing.T) {
	for name, stubborn := range map[string]bool{"by TERM": false, "by KILL": true} {
		t.Run(name, func(t *testing.T) {
			l := newLifeline(t)
			const grace = 300 * time.Millisecond
			e := execOf(t, worker.ExecConfig{Command: []string{script(t, family(l, stubborn))}, KillGrace: grace})
			ctx, cancel := context.WithCancelCause(t.Context())
			var told time.Time
			go func() {
				if line := l.next(t); line != "ready" {
					t.Errorf("the script said %q", line)
				}
				told = time.Now()
				cancel(worker.ErrCancelled)
			}()
			_, err := e.Handle(ctx, handoff())
			if !errors.Is(err, worker.ErrCancelled) {
				t.Errorf("error %v", err)
			}
			if !stubborn && l.next(t) != "told" {
				t.Error("the program had no time for its last words")
			}
			if line := l.next(t); line != "" {
				t.Errorf("the script said %q", line)
			}
			if took := time.Since(told); stubborn && took < grace || took > grace+2*time.Second {
				t.Errorf("ended after %v", took)
			}
		})
	}
}

// What the program leaves behind when it exits ends with it.
func TestNothingIsLeftBehind(t *testing.T) {
	for name, body := range map[string]string{
		"a child":             "sleep 1000 &",
		"one that ignores it": "(trap '' TERM; sleep 1000) &",
	} {
		l := newLifeline(t)
		e := execOf(t, worker.ExecConfig{Command: []string{script(t, "exec 3> "+l.path+"\n"+body+"\necho result")}, KillGrace: 200 * time.Millisecond})
		result, err := e.Handle(t.Context(), handoff())
		if err != nil || !strings.Contains(string(result.Body), "result") {
			t.Errorf("%s: %s, %v", name, result.Body, err)
		}
		if line := l.next(t); line != "" {
			t.Errorf("%s: %q", name, line)
		}
	}
}

// What a filter of the output, or a background writer, still writes after the program has ended is
// output, up to a second later.
func TestOutputOfWhatIsLeft(t *testing.T) {
	for name, body := range map[string]string{
		"a filter":              "exec > >(sed -u s/x/x/)\necho result",
		"a filter that is slow": "exec > >(sleep 0.3; cat)\necho result",
		"a writer":              "(sleep 0.3; echo result) &",
	} {
		path := script(t, body)
		e := execOf(t, worker.ExecConfig{Command: []string{"bash", path}})
		result, err := e.Handle(t.Context(), handoff())
		if err != nil || !strings.Contains(string(result.Body), "result") {
			t.Errorf("%s: %s, %v", name, result.Body, err)
		}
	}
}

// A worker that is killed with KILL leaves no program behind either.
func TestNoOrphansOfAKilledWorker(t *testing.T) {
	for name, stubborn := range map[string]bool{"willing": false, "stubborn": true} {
		t.Run(name, func(t *testing.T) {
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			l := newLifeline(t)
			cmd := exec.Command(self)
			cmd.Env = append(os.Environ(), runCommandEnv+"="+script(t, family(l, stubborn)), "TMPDIR="+t.TempDir())
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if line := l.next(t); line != "ready" {
				t.Errorf("the script said %q", line)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // its error is our signal
			for line := l.next(t); line != ""; line = l.next(t) {
				t.Logf("last words: %q", line)
			}
		})
	}
}

func TestExecLeavesNoGoroutines(t *testing.T) {
	quick := execOf(t, worker.ExecConfig{Command: []string{script(t, "echo x; sleep 1000 &")}})
	long := execOf(t, worker.ExecConfig{Command: []string{script(t, "sleep 1000")}})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	before := runtime.NumGoroutine()
	for range 5 {
		if _, err := quick.Handle(t.Context(), handoff()); err != nil {
			t.Error(err)
		}
		if _, err := long.Handle(ended, handoff()); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(end) {
			buf := make([]byte, 1<<16)
			t.Fatalf("%d goroutines before, %d after\n%s", before, runtime.NumGoroutine(), buf[:runtime.Stack(buf, true)])
		}
	}
}
