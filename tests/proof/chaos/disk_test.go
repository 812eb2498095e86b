//go:build proof

package chaos

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/testworld"
)

// diskTimeout bounds each thing that TestFullDisk waits for.
const diskTimeout = 2 * time.Minute

// TestFullDisk fills the disk under handoff dev while a worker and a source are at work,
// and makes room again. The process is never started anew: clients hear why nothing is
// acknowledged, nothing that was acknowledged is lost, and all of it completes.
func TestFullDisk(t *testing.T) {
	if testworld.Race {
		t.Skip("the processes under test have no race detector in them: run it without -race")
	}
	dir := filepath.Join(t.TempDir(), "small")
	disk := testworld.SmallDisk(t, dir, 64<<20)
	if disk == nil {
		t.Skip("mount: no file system can be mounted here")
	}
	f := startDiskFixture(t, filepath.Join(dir, "data"))
	var acked []string
	for i := range 20 {
		acked = append(acked, f.must("submit", "--to", "a", "--reason", "r", "--task", fmt.Sprint("before ", i)))
	}
	held := f.must("submit", "--to", "slow", "--reason", "r", "--task", "held while the disk is full")
	acked = append(acked, held)
	f.until("the slow worker to have it", func() bool { return strings.Contains(f.run("status", held).out, "working") })

	disk.Fill()
	// A few small writes may still fit into blocks that are there.
	var refused commandResult
	f.until("a submission to be refused", func() bool {
		got := f.run("submit", "--to", "a", "--reason", "r", "--task", strings.Repeat("a", 40<<10))
		if got.code == 0 {
			acked = append(acked, got.out)
		}
		refused = got
		return got.code != 0
	})
	if refused.code != 6 || !strings.Contains(refused.err, "no space left on "+filepath.Join(dir, "data")) {
		t.Errorf("a submission ended with %d and said: %s", refused.code, refused.err)
	}
	if got := f.run("doctor"); got.code == 0 || !strings.Contains(got.out, "no space left on ") {
		t.Errorf("doctor ended with %d and said:\n%s", got.code, got.out)
	}
	if code, body := f.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "no space left on ") {
		t.Errorf("/readyz answers %d: %s", code, body)
	}

	disk.Free()
	f.until("a submission to be taken", func() bool {
		got := f.run("submit", "--to", "a", "--reason", "r", "--task", "after")
		if got.code == 0 {
			acked = append(acked, got.out)
		}
		return got.code == 0
	})
	if err := os.WriteFile(f.gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, ticket := range acked {
		if got := f.run("wait", ticket, "--timeout", diskTimeout.String()); got.code != 0 {
			t.Errorf("%s ended with %d: %s%s", ticket, got.code, got.out, got.err)
		}
	}
	f.until("/readyz to say ok", func() bool { code, _ := f.get("/readyz"); return code == http.StatusOK })
	f.must("audit", "verify") // ends with 0 for a ledger that is whole
	minutes := int(time.Since(f.began)/time.Minute) + 1
	if lines := strings.Count(f.dev.Output(), "no space left on "); lines > minutes {
		t.Errorf("%d lines about the disk in %d minutes:\n%s", lines, minutes, f.dev.Output())
	}
}

// diskFixture is a dev, and two workers beside it.
type diskFixture struct {
	t       *testing.T
	dev     *testworld.Process
	env     []string
	metrics string
	gate    string // the slow worker waits for this file
	began   time.Time
}

func startDiskFixture(t *testing.T, data string) *diskFixture {
	t.Helper()
	f := &diskFixture{t: t, gate: filepath.Join(t.TempDir(), "gate"), began: time.Now()}
	f.env = []string{"NATS_CONTEXT=", "NATS_URL=", "XDG_CONFIG_HOME=" + t.TempDir()}
	f.dev = testworld.Start(t, "dev", f.env, testworld.Handoff(t), "dev", "--data", data, "--port", "0", "--metrics", ":0")
	f.metrics = strings.TrimSuffix(f.dev.AwaitOutput(t.Context(), "metrics "), "/metrics")
	f.env[1] = "NATS_URL=" + f.dev.AwaitOutput(t.Context(), "ready ")
	slow := "cat > /dev/null; while [ ! -e " + f.gate + " ]; do sleep 0.2; done; echo done"
	for _, w := range []struct{ agent, script string }{{"a", "cat > /dev/null; echo done"}, {"slow", slow}} {
		testworld.Start(t, "worker of "+w.agent, f.env, testworld.Handoff(t), "work", "--env", "all", "--agent", w.agent, "--", "sh", "-c", w.script).AwaitOutput(t.Context(), "worker ready")
	}
	return f
}

// until waits until something is true.
func (f *diskFixture) until(what string, is func() bool) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), diskTimeout)
	defer cancel()
	for !is() {
		if ctx.Err() != nil {
			f.t.Fatalf("waited %v for %s; dev said:\n%s", diskTimeout, what, f.dev.Output())
		}
		testworld.Pause(ctx, 50*time.Millisecond)
	}
}

// commandResult is a command that has ended.
type commandResult struct {
	code     int
	out, err string
}

func (f *diskFixture) run(args ...string) commandResult {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), diskTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, testworld.Handoff(f.t), args...)
	cmd.Env = append(os.Environ(), f.env...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run() // its exit code tells
	return commandResult{cmd.ProcessState.ExitCode(), strings.TrimSpace(out.String()), strings.TrimSpace(errs.String())}
}

func (f *diskFixture) must(args ...string) string {
	f.t.Helper()
	got := f.run(args...)
	if got.code != 0 {
		f.t.Fatalf("handoff %s ended with %d: %s", strings.Join(args, " "), got.code, got.err)
	}
	return got.out
}

// get asks dev over HTTP; without an answer the code is 0, and the text is the error.
func (f *diskFixture) get(path string) (int, string) {
	f.t.Helper()
	resp, err := http.Get(f.metrics + path)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(body)
}
