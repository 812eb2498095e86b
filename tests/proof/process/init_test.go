//go:build proof && linux

package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/internal/testworld"
)

// TestProcess1: as process 1 of a container the worker reaps the orphans that its programs leave.
func TestProcess1(t *testing.T) {
	t.Parallel()
	const handoffs, orphans = 8, 2
	in := []string{"--pid", "--fork", "--kill-child", "--mount-proc"}
	if out, err := exec.Command("unshare", append(in, "true")...).CombinedOutput(); err != nil {
		t.Skipf("unshare --pid is not permitted here: %v: %s", err, out)
	}
	e := startDev(t, t.Context())
	env := []string{"NATS_URL=" + e.url}
	counts := filepath.Join(t.TempDir(), "counts")
	program := `for n in 1 2; do setsid sh -c 'sleep 0.01' >/dev/null 2>&1 & done; sleep 0.2
grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l >>` + counts
	testworld.Start(t, "process 1", env, "unshare", append(in, testworld.Handoff(t), "work", "--agent", "z", "--", "sh", "-c", program)...).AwaitOutput(t.Context(), "worker ready")
	for n := range handoffs {
		startHandoff(t, "submit", env, "submit", "--to", "z", "--reason", "r", "--task", strconv.Itoa(n), "--wait").wantEnd(0)
	}
	body, err := os.ReadFile(counts)
	if err != nil {
		t.Fatal(err)
	}
	seen := strings.Fields(string(body))
	t.Log("defunct processes after each handoff:", seen)
	if left, err := strconv.Atoi(seen[len(seen)-1]); err != nil || left >= handoffs*orphans/2 {
		t.Errorf("%d orphans, of which %v are not reaped", handoffs*orphans, seen)
	}
}
