//go:build proof

package chaos

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/testworld"
)

// TestFullDiskWhileWakeUpsFallDue fills the disk under handoff dev while retries fall due, which hangs
// the server in it, and makes room again. The process is the same afterwards, its port too, and all
// that was acknowledged completes.
func TestFullDiskWhileWakeUpsFallDue(t *testing.T) {
	if testworld.Race {
		t.Skip("the processes under test have no race detector in them: run it without -race")
	}
	dir := filepath.Join(t.TempDir(), "small")
	disk := testworld.SmallDisk(t, dir, 48<<20)
	if disk == nil {
		t.Skip("mount: no file system can be mounted here")
	}
	f := startDiskFixture(t, filepath.Join(dir, "data"))
	once := t.TempDir()
	script := `cat > /dev/null; [ -e ` + once + `/$HANDOFF_TICKET ] && { echo done; exit 0; }; touch ` + once + `/$HANDOFF_TICKET; exit 75`
	testworld.Start(t, "worker of retried", f.env, testworld.Handoff(t), "work", "--env", "all", "--agent", "retried", "--concurrency", "25", "--", "sh", "-c", script).AwaitOutput(t.Context(), "worker ready")
	pid := f.dev.PID()
	var acked []string
	var due time.Time // when the last of the retries is
	for i := range 25 {
		acked = append(acked, f.must("submit", "--to", "retried", "--reason", "r", "--task", fmt.Sprint("retried ", i)))
	}
	for _, ticket := range acked {
		f.until("its first attempt to have ended", func() bool {
			var state struct {
				RetryAt time.Time `json:"retry_at"`
			}
			if err := json.Unmarshal([]byte(f.must("status", ticket, "-o", "json")), &state); err != nil {
				t.Fatal(err)
			}
			if state.RetryAt.After(due) {
				due = state.RetryAt
			}
			return !state.RetryAt.IsZero()
		})
	}
	disk.Fill()
	f.until("/readyz to name the disk", func() bool {
		code, body := f.get("/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "no space left on ")
	})
	testworld.Pause(t.Context(), time.Until(due)+2*time.Second) // the wake-ups fall due
	disk.Free()
	f.until("/readyz to say ok", func() bool { code, _ := f.get("/readyz"); return code == http.StatusOK })
	for _, ticket := range acked {
		if got := f.run("wait", ticket, "--timeout", diskTimeout.String()); got.code != 0 {
			t.Errorf("%s ended with %d: %s%s", ticket, got.code, got.out, got.err)
		}
	}
	f.must("audit", "verify")
	if f.dev.PID() != pid {
		t.Errorf("it is another process: %d, was %d", f.dev.PID(), pid)
	}
}
