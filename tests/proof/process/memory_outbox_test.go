//go:build proof

package process

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/testworld"
)

// TestServerForgetsItsOutbox: a single server that syncs always, by the word of its operator, has offers and wake-ups
// in memory. It is killed and started again; a supervisor makes both streams anew and fills them, and
// all that was acknowledged completes, retries in their time too.
func TestServerForgetsItsOutbox(t *testing.T) {
	if testworld.Race {
		t.Skip("the processes under test have no race detector in them: run it without -race")
	}
	server := testworld.StartServer(t, t.TempDir(), "")
	env := []string{"NATS_URL=" + server.URL, "NATS_CONTEXT=", "XDG_CONFIG_HOME=" + t.TempDir()}
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), testworld.Handoff(t), args...)
		cmd.Env = append(cmd.Environ(), env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("handoff %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("topology", "ensure", "--replicas", "1", "--fsync", "always")
	shown := run("topology", "show", "-o", "jsonl")
	for line := range strings.Lines(shown) {
		outbox := strings.Contains(line, `"HANDOFF_WORK"`) || strings.Contains(line, `"HANDOFF_TIMERS"`)
		if outbox != strings.Contains(line, `"persist":"memory"`) {
			t.Errorf("not as it should be: %s", line)
		}
	}
	run("agents", "put", "coder")
	run("agents", "put", "later")
	testworld.Start(t, "supervisor", env, testworld.Handoff(t), "supervise")
	testworld.Start(t, "index", env, testworld.Handoff(t), "index", "--file", filepath.Join(t.TempDir(), "index.db")).AwaitOutput(t.Context(), "the index is complete")
	once := t.TempDir()
	retry := `cat > /dev/null; [ -e ` + once + `/$HANDOFF_TICKET ] && { echo done; exit 0; }; touch ` + once + `/$HANDOFF_TICKET; exit 75`
	testworld.Start(t, "coder", env, testworld.Handoff(t), "work", "--env", "all", "--agent", "coder", "--concurrency", "8", "--", "sh", "-c", retry).AwaitOutput(t.Context(), "worker ready")
	var tickets []string
	for i := range 8 {
		tickets = append(tickets, run("submit", "--to", "coder", "--reason", "r", "--task", fmt.Sprint("fails once ", i)),
			run("submit", "--to", "later", "--reason", "r", "--task", fmt.Sprint("waits ", i)))
	}
	for i := 0; i < len(tickets); i += 2 {
		for { // on a busy machine some have been retried already
			if status := run("status", tickets[i]); strings.Contains(status, "retrying") || strings.Contains(status, "complete") {
				break
			}
			testworld.Pause(t.Context(), 50*time.Millisecond)
		}
	}
	server.Kill()
	server.Restart()
	testworld.Start(t, "later", env, testworld.Handoff(t), "work", "--env", "all", "--agent", "later", "--concurrency", "8", "--", "sh", "-c", "cat > /dev/null; echo done").AwaitOutput(t.Context(), "worker ready")
	for _, ticket := range tickets {
		run("wait", ticket, "--timeout", "3m")
	}
	run("audit", "verify")
	run("doctor")
}
