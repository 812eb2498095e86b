//go:build proof

package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/testworld"
)

// TestSelf: what a container's health check asks distinguishes a process that is well,
// one that is cut off from its engine, one that does not answer and one that is gone.
func TestSelf(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	dev := startDev(t, ctx)
	for _, role := range []struct {
		args []string
		well string // what it says of itself then
	}{
		{[]string{"supervise"}, "engine"},
		{[]string{"index", "--file", filepath.Join(t.TempDir(), "index.db")}, "index"},
		{[]string{"work", "--env", "all", "--agent", "reviewer", "--lease", "2s", "--", "cat"}, "worker"},
	} {
		t.Run(role.args[0], func(t *testing.T) {
			port := testworld.Ports(t, 1)[0]
			// As in a container: one setting for the process and for who asks it.
			env := []string{"NATS_URL=" + dev.url, fmt.Sprintf("HANDOFF_METRICS=0.0.0.0:%d", port)}
			p := startHandoff(t, role.args[0], env, role.args...)
			until := func(code int, text string) {
				t.Helper()
				for {
					got, said := selfCheck(ctx, t, env)
					if got == code && strings.Contains(said, text) {
						return
					}
					if ctx.Err() != nil {
						t.Fatalf("doctor --self ended with %d, want %d and %q:\n%s", got, code, text, said)
					}
				}
			}
			until(0, role.well)
			dev.Signal(syscall.SIGSTOP) // the engine is cut off: connections stand, no server answers
			until(1, "engine: ")
			dev.Signal(syscall.SIGCONT)
			until(0, role.well)
			p.Signal(syscall.SIGSTOP)
			until(1, "no health report")
			p.Signal(syscall.SIGCONT)
			until(0, role.well)
			p.Kill()
			until(1, "no health report")
		})
	}
}

// selfCheck is a health check.
func selfCheck(ctx context.Context, t *testing.T, env []string) (code int, said string) {
	t.Helper()
	cmd := exec.CommandContext(ctx, testworld.Handoff(t), "doctor", "--self")
	cmd.Env = append(append(os.Environ(), "NATS_CONTEXT="), env...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatalf("doctor --self: %v", err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}
