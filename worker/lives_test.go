//go:build unix

package worker_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/worker"
)

// life is what a program lives through: a script, what happens around it, and what becomes of its
// handoff.
type life struct {
	name, body string
	stop       error  // ends it once it has made the file "up" in its directory
	want       string // the outcome, and its output
}

// lives is a table of what happens to programs. $DIR is a directory of the life's own, in which the
// program runs.
var lives = []life{
	{"ends with 0", `echo done`, nil, `complete: done`},
	{"ends with another code", `echo half; exit 3`, nil, `retry exit_3`},
	{"ends for good", `exit 65`, nil, `permanent exit_65`},
	{"prints nothing", `:`, nil, `complete, the program has printed nothing`},
	{"is killed", `kill -KILL $$`, nil, `retry signal_9`},
	{"crashes", `kill -SEGV $$`, nil, `retry signal_11`},
	{"writes into a pipe without a reader", `yes | head -1`, nil, `complete: y`},
	{"signals its whole group", `kill -TERM 0; sleep 60`, nil, `retry signal_15`},
	{"a filter writes after its end", `(sleep 0.3; echo late) & echo early`, nil, `complete: early late`},
	{"a background writer is too late", `(sleep 60; echo late) & echo early`, nil, `complete: early`},
	{"leaves a daemon that holds its output", `setsid sleep 5 & echo done`, nil, `complete: done`},
	{"leaves a process without output", `sleep 60 >/dev/null 2>&1 & echo done`, nil, `complete: done`},
	{"closes its output", `exec >&- 2>&-; sleep 0.1`, nil, `complete, the program has printed nothing`},
	{"does not read its input", `exec <&-; echo done`, nil, `complete: done`},
	{"floods its standard error", `head -c 3000000 /dev/zero | tr '\0' 'x' >&2; echo done`, nil, `complete: done`},
	{"becomes another program", `exec echo done`, nil, `complete: done`},
	{"removes its own directory", `rm -rf "$DIR"; echo done`, nil, `complete: done`},
	{"removes the directory of its files", `rm -rf "$(dirname "$HANDOFF_ACK_FILE")"; echo done`, nil, `complete: done`},
	{"removes TMPDIR", `rm -rf "$TMPDIR"; echo done`, nil, `complete: done`},
	{"is cancelled", `echo half; touch "$DIR/up"; exec sleep 60`, worker.ErrCancelled, `cancel requested: half`},
	{"prints what it has when it is stopped", `trap 'echo rest; exit 0' TERM; echo half; touch "$DIR/up"; while :; do sleep 0.05; done`, worker.ErrShutdown, `worker shuts down: half rest`},
	{"ignores its end", `trap '' TERM; echo half; touch "$DIR/up"; while :; do sleep 0.05; done`, worker.ErrCancelled, `cancel requested: half`},
	{"stops itself, and is cancelled", `echo half; touch "$DIR/up"; kill -STOP $$`, worker.ErrCancelled, `cancel requested: half`},
	{"is rolled back, and says how far it came", `trap 'echo returned: it is night >"$HANDOFF_ACK_FILE"; exit 1' TERM; touch "$DIR/up"; while :; do sleep 0.05; done`, worker.ErrReturned, `rolled back: it is night`},
	{"is no program", `no_such_command_anywhere`, nil, `stop`},
	{"cannot run", `exit 126`, nil, `stop`},
}

// TestLives lets programs live through all of that, one after the other, in one TMPDIR.
func TestLives(t *testing.T) {
	tmp := filepath.Join(t.TempDir(), "tmp")
	t.Setenv("TMPDIR", tmp) // which is not there
	for _, l := range lives {
		dir := t.TempDir()
		e := execOf(t, worker.ExecConfig{Command: []string{script(t, l.body)}, Dir: dir, Env: []string{"DIR=" + dir}, KillGrace: 500 * time.Millisecond})
		ctx, end := context.WithCancelCause(t.Context())
		if l.stop != nil {
			go func() {
				for ctx.Err() == nil {
					if _, err := os.Stat(filepath.Join(dir, "up")); err == nil {
						end(l.stop)
					}
					time.Sleep(10 * time.Millisecond)
				}
			}()
		}
		result, err := e.Handle(ctx, handoff())
		end(nil)
		got := outcome(t, err)
		if result.SetAside != "" && err == nil {
			got += ", " + result.SetAside
		}
		var printed string
		if json.Unmarshal(result.Body, &printed) == nil && printed != "" {
			got += ": " + strings.Join(strings.Fields(printed), " ")
		}
		t.Logf("| %s | `%s` | %s |", l.name, l.body, got)
		if got != l.want {
			t.Errorf("%s: %s\n got %s\nwant %s", l.name, l.body, got, l.want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A killed worker leaves its directory, which the next one removes; that of a worker that runs stays,
// and so does what is no worker's.
func TestScratchOfKilledWorkers(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	foreign := filepath.Join(tmp, "handoff-notes")
	if err := os.Mkdir(foreign, 0o700); err != nil {
		t.Fatal(err)
	}
	start := func() (*exec.Cmd, string) {
		up := filepath.Join(t.TempDir(), "up")
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), runCommandEnv+"="+script(t, `dirname "$HANDOFF_ACK_FILE" >"`+up+`.tmp"; mv "`+up+`.tmp" "`+up+`"; exec sleep 600`))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		for {
			if dir, err := os.ReadFile(up); err == nil {
				return cmd, strings.TrimSpace(string(dir))
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	killed, left := start()
	_, kept := start()
	if err := killed.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait()
	if _, err := os.Stat(left); err != nil {
		t.Fatalf("the killed worker has left nothing: %v", err)
	}
	execOf(t, worker.ExecConfig{Command: []string{"true"}})
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", left, err)
	}
	for _, dir := range []string{kept, foreign} {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("%s was removed: %v", dir, err)
		}
	}
}

// A program sees what is named, and no key that is not.
func TestProgramsEnvironment(t *testing.T) {
	for name, value := range map[string]string{"ANTHROPIC_API_KEY": "secret-1", "NATS_CREDS": "secret-2", "HANDOFF_LLM_KEY": "secret-3", "LC_TIME": "C", "TZ": "UTC"} {
		t.Setenv(name, value)
	}
	for _, c := range []struct {
		inherit   []string
		has, lack []string
	}{
		{nil, []string{"LC_TIME=", "TZ=", "PATH=", "HANDOFF_TICKET="}, []string{"secret"}},
		{[]string{"ANTHROPIC_API_KEY"}, []string{"secret-1"}, []string{"secret-2", "secret-3"}},
		{[]string{"HANDOFF_LLM_*", "NATS_CREDS"}, []string{"secret-2", "secret-3"}, []string{"secret-1"}},
		{[]string{worker.InheritAll}, []string{"secret-1", "secret-2", "secret-3"}, nil},
	} {
		result, err := execOf(t, worker.ExecConfig{Command: []string{"env"}, Inherit: c.inherit, Output: "text"}).Handle(t.Context(), handoff())
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range c.has {
			if !strings.Contains(string(result.Body), want) {
				t.Errorf("with %v: no %s in %s", c.inherit, want, result.Body)
			}
		}
		for _, not := range c.lack {
			if strings.Contains(string(result.Body), not) {
				t.Errorf("with %v: %s is in it", c.inherit, not)
			}
		}
	}
}
