package notify_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/testworld"
)

// TestRestored: behind a restore the ledger is shorter than the place of the consumer. Occurrences from then on are
// notified of, by the process that runs and by the next one.
func TestRestored(t *testing.T) {
	t.Parallel()
	dir, port, handoff := t.TempDir(), fmt.Sprint(testworld.Ports(t, 1)[0]), testworld.Handoff(t)
	env := []string{"NATS_URL=nats://127.0.0.1:" + port}
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), handoff, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), append(env, "XDG_STATE_HOME="+dir)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("handoff %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	engine := func(data string) *testworld.Process {
		p := testworld.StartIn(t, dir, "engine", nil, handoff, "dev", "--data", data, "--port", port, "--no-http")
		p.AwaitOutput(t.Context(), "ready")
		return p
	}
	notifies := func() *testworld.Process {
		p := testworld.StartIn(t, dir, "notify", env, handoff, "notify", "--on", "closed", "--exec", "echo $HANDOFF_TICKET >>got")
		p.AwaitOutput(t.Context(), "ready")
		return p
	}
	closed := func() {
		t.Helper()
		ticket := run("submit", "--to", "reviewer", "--reason", "a test", "--task", "review it")
		run("cancel", ticket)
		for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
			got, _ := os.ReadFile(filepath.Join(dir, "got")) // none yet
			if strings.Contains(string(got), ticket) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s is not notified of; got\n%s", ticket, got)
			}
		}
	}
	old := engine("old")
	run("agents", "put", "reviewer")
	notify := notifies()
	closed()
	run("backup", "backup")
	for range 5 {
		closed()
	}
	old.Kill()
	run("restore", "backup", "--data", "new")
	engine("new")
	closed()
	notify.Kill()
	notifies()
	closed()
}
