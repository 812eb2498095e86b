//go:build proof

package process

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/testworld"
)

// long asks for the long forms of the crash tests.
func long() bool { return os.Getenv("HANDOFF_LONG") != "" }

// startedProcess is a handoff that a test has started. It ends with the test.
type startedProcess struct {
	*testworld.Process
	t *testing.T
}

// startHandoff starts the handoff program, in a directory and with a configuration of its own.
func startHandoff(t *testing.T, name string, env []string, args ...string) *startedProcess {
	t.Helper()
	dir := t.TempDir()
	env = append([]string{"NATS_CONTEXT=", "NATS_URL=", "HANDOFF_AGENT=", "XDG_CONFIG_HOME=" + dir, "XDG_DATA_HOME=" + dir}, env...)
	return &startedProcess{testworld.StartIn(t, dir, name, env, testworld.Handoff(t), args...), t}
}

// engine is a handoff dev that may be killed and started again on the same
// directory and port.
type engine struct {
	*startedProcess
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
	ports, err := embedded.FreePorts(1)
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
	e.startedProcess = startHandoff(e.t, "dev", e.env, e.args...)
	e.AwaitOutput(ctx, "ready ")
}

// work starts handoff work and waits until it serves.
func (e *engine) work(ctx context.Context, name, script string, args ...string) *startedProcess {
	e.t.Helper()
	args = append([]string{"work", "--env", "all"}, args...)
	w := startHandoff(e.t, name, []string{"NATS_URL=" + e.url}, append(args, "--", script)...)
	w.AwaitOutput(ctx, "worker ready")
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

const testTimeout = 2 * time.Minute // of these tests with what they wait for

func TestMain(m *testing.M) { testworld.Main(m) }
