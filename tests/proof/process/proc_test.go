//go:build proof

package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker/embedded"
	"github.com/agenthandoff/handoff/internal/testworld"
)

// long asks for the long forms of the crash tests.
func long() bool { return os.Getenv("HANDOFF_LONG") != "" }

// child is a process that a test has started. It ends with the test.
type child struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	out  *output
	done chan struct{} // closed when it has ended
}

// launch starts the handoff program.
func launch(t *testing.T, name string, env []string, args ...string) *child {
	t.Helper()
	cmd := exec.Command(testworld.Handoff(t), args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "NATS_CONTEXT=", "NATS_URL=", "HANDOFF_AGENT=", "XDG_CONFIG_HOME="+cmd.Dir, "XDG_DATA_HOME="+cmd.Dir)
	cmd.Env = append(cmd.Env, env...)
	c := &child{t: t, name: name, cmd: cmd, out: newOutput(), done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = c.out, c.out
	cmd.WaitDelay = 5 * time.Second // for the pipe, should a grandchild have it
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() { // joined by kill
		_ = cmd.Wait()
		close(c.done)
	}()
	t.Cleanup(func() {
		c.kill()
		text := c.out.String()
		if strings.Contains(text, "DATA RACE") {
			t.Errorf("%s has a data race", name)
		}
		if t.Failed() {
			t.Logf("%s wrote:\n%s", name, tail(text, 20_000))
		}
	})
	return c
}

// signal sends a signal to this process alone.
func (c *child) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatalf("signal %s: %v", c.name, err)
	}
}

// kill ends it as a crash would, and waits for its end.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // it may have ended
	<-c.done
}

// writes waits until the process has written text, and returns the rest of that line.
func (c *child) writes(ctx context.Context, text string) string {
	c.t.Helper()
	for {
		all, more := c.out.read()
		if _, after, found := strings.Cut(all, text); found && strings.Contains(after, "\n") {
			line, _, _ := strings.Cut(after, "\n")
			return line
		}
		select {
		case <-more:
		case <-c.done:
			c.t.Fatalf("%s ended and did not write %q", c.name, text)
		case <-ctx.Done():
			c.t.Fatalf("%s did not write %q: %v", c.name, text, ctx.Err())
		}
	}
}

// output keeps what a process writes, and tells when there is more.
type output struct {
	mu   sync.Mutex
	text []byte
	more chan struct{}
}

func newOutput() *output { return &output{more: make(chan struct{})} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p...)
	close(o.more)
	o.more = make(chan struct{})
	return len(p), nil
}

func (o *output) read() (text string, more <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text), o.more
}

func (o *output) String() string { text, _ := o.read(); return text }

func tail(text string, most int) string {
	if len(text) > most {
		return "…" + text[len(text)-most:]
	}
	return text
}

// engine is a handoff dev that may be killed and started again on the same
// directory and port.
type engine struct {
	*child
	t    *testing.T
	url  string
	env  []string
	args []string
}

// startDev starts handoff dev with fsync always.
func startDev(t *testing.T, ctx context.Context, args ...string) *engine {
	t.Helper()
	return startDevIn(t, ctx, nil, args...)
}

// startDevIn is startDev with more in the environment.
func startDevIn(t *testing.T, ctx context.Context, env []string, args ...string) *engine {
	t.Helper()
	ports, err := embedded.QuietPorts(1)
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{t: t, env: env, url: fmt.Sprintf("nats://127.0.0.1:%d", ports[0]),
		args: append([]string{"dev", "--data", t.TempDir(), "--port", fmt.Sprint(ports[0])}, args...)}
	e.start(ctx)
	return e
}

func (e *engine) start(ctx context.Context) {
	e.t.Helper()
	e.child = launch(e.t, "dev", e.env, e.args...)
	e.writes(ctx, "ready ")
}

// work starts handoff work and waits until it serves.
func (e *engine) work(ctx context.Context, name, script string, args ...string) *child {
	e.t.Helper()
	args = append([]string{"work"}, args...)
	w := launch(e.t, name, []string{"NATS_URL=" + e.url}, append(args, "--", script)...)
	w.writes(ctx, "worker ready")
	return w
}

// script writes a shell script.
func script(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent.sh")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

const patience = 2 * time.Minute // of these tests with what they wait for

func TestMain(m *testing.M) { testworld.Main(m) }
