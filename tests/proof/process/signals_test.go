//go:build proof

package process

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/testworld"
)

// signalPatience is how long a process is given that should end by itself: longer than
// any end that is promised.
const signalPatience = 3 * time.Minute

// ends waits until a process has ended by itself, and returns its exit code.
func (c *startedProcess) ends() int {
	c.t.Helper()
	select {
	case <-c.Ended():
	case <-time.After(signalPatience):
		c.t.Fatalf("%s does not end", c.Name)
	}
	return c.ExitCode()
}

// computes waits until a process has used so many ticks of the processor, of which there
// are 100 in a second: it does what takes long by then.
func (c *startedProcess) computes(ticks int) {
	c.t.Helper()
	for end := time.Now().Add(signalPatience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(c.PID()) + "/stat")
		if err != nil {
			c.t.Skipf("nothing tells what a process has computed: %v", err)
		}
		_, after, _ := strings.Cut(string(stat), ") ")
		if fields := strings.Fields(after); len(fields) > 11 {
			if used, _ := strconv.Atoi(fields[11]); used >= ticks { // utime
				return
			}
		}
	}
	c.t.Fatalf("%s does not compute", c.Name)
}

func (c *startedProcess) wantEnd(code int) {
	c.t.Helper()
	if got := c.ends(); got != code {
		c.t.Errorf("%s ended with %d, want %d", c.Name, got, code)
	}
}

// stubborn is an agent whose program, and what it starts, ignore SIGTERM. It writes
// their process ids into a file.
const stubborn = `trap '' TERM; sh -c 'trap "" TERM; echo $$ >"$0".child; while :; do sleep 1; done' "$PIDS" & echo $$ >"$PIDS"; while :; do sleep 1; done`

// TestSignals: Ctrl-C and SIGTERM end what runs long, whatever it is at.
func TestSignals(t *testing.T) {
	t.Parallel()
	// Run under nohup, the processes started here would ignore SIGHUP too.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hangups) })
	e := startDev(t, t.Context())
	url := []string{"NATS_URL=" + e.url}
	command := func(args ...string) {
		t.Helper()
		startHandoff(t, strings.Join(args, " "), url, args...).wantEnd(0)
	}

	t.Run("a program that ignores SIGTERM", func(t *testing.T) {
		pids := filepath.Join(t.TempDir(), "pids")
		w := startHandoff(t, "work", append(url, "PIDS="+pids), "work", "--env", "all", "--agent", "stubborn", "--drain", "100ms", "--", "sh", "-c", stubborn)
		w.AwaitOutput(t.Context(), "worker ready")
		command("submit", "--to", "stubborn", "--reason", "r", "--task", "t")
		started := []int{processIn(t, pids), processIn(t, pids+".child")}
		w.Signal(syscall.SIGINT)
		w.wantEnd(0)
		for _, pid := range started {
			gone(t, pid)
		}
	})
	t.Run("a second signal", func(t *testing.T) {
		pids := filepath.Join(t.TempDir(), "pids")
		w := startHandoff(t, "work", append(url, "PIDS="+pids), "work", "--env", "all", "--agent", "twice", "--drain", "1h", "--", "sh", "-c", stubborn)
		w.AwaitOutput(t.Context(), "worker ready")
		command("submit", "--to", "twice", "--reason", "r", "--task", "t")
		started := processIn(t, pids)
		w.Signal(syscall.SIGTERM)
		w.AwaitOutput(t.Context(), "worker drains")
		for range 100 { // two in a quarter of a second are one
			w.Signal(syscall.SIGINT)
			select {
			case <-w.Ended():
			case <-time.After(100 * time.Millisecond):
			}
		}
		w.wantEnd(130)
		gone(t, started)
	})
	t.Run("a second signal gives back what is held", func(t *testing.T) {
		pids := filepath.Join(t.TempDir(), "pids")
		w := startHandoff(t, "work", append(url, "PIDS="+pids), "work", "--env", "all", "--agent", "back", "--drain", "1h", "--", "sh", "-c", `echo $$ >"$PIDS"; sleep 1000`)
		w.AwaitOutput(t.Context(), "worker ready")
		command("submit", "--to", "back", "--reason", "r", "--task", "t", "--key", "back")
		started := processIn(t, pids)
		w.Signal(syscall.SIGHUP)
		w.AwaitOutput(t.Context(), "worker drains")
		time.Sleep(300 * time.Millisecond) // two in a quarter of a second are one
		w.Signal(syscall.SIGHUP)
		w.wantEnd(130)
		gone(t, started)
		command("claim", "--agent", "back", "--wait", "20s", "--accept") // at once, and not when a lease runs out
	})
	t.Run("the reader of the log goes away", func(t *testing.T) {
		log, written, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(testworld.Handoff(t), "work", "--env", "all", "--agent", "piped", "-v", "--", "sh", "-c", "yes | head -1")
		cmd.Env, cmd.Stderr = append(os.Environ(), url...), written
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = cmd.Process.Kill() }()
		_ = written.Close()
		for lines := bufio.NewScanner(log); lines.Scan() && !strings.Contains(lines.Text(), "worker ready"); {
		}
		_ = log.Close()
		for range 2 {
			command("submit", "--to", "piped", "--reason", "r", "--task", "t", "--wait")
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the worker ended with %v", err)
		}
	})
	t.Run("input that does not come", func(t *testing.T) {
		pipe := filepath.Join(t.TempDir(), "pipe")
		if err := syscall.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
		c := startHandoff(t, "submit", url, "submit", "-f", pipe)
		opened := make(chan *os.File)
		go func() { // it opens when the command does
			out, err := os.OpenFile(pipe, os.O_WRONLY, 0)
			if err != nil {
				t.Error(err)
			}
			opened <- out
		}()
		defer func(out *os.File) { _ = out.Close() }(<-opened)
		c.Signal(syscall.SIGINT)
		c.wantEnd(130)
		if out := c.Output(); !strings.Contains(out, "cut off") && !strings.Contains(out, "interrupted") {
			t.Errorf("it does not say why it ended: %s", out)
		}
	})
	t.Run("a redaction that takes long", func(t *testing.T) {
		pipe := filepath.Join(t.TempDir(), "pipe")
		if err := syscall.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
		c := startHandoff(t, "validate", nil, "validate", "-f", pipe, "--redact", "(x+x+){400}y")
		pkg := fmt.Sprintf(`{"source":"lead","target":{"agent":"a"},"reason":"r","task":{"description":"t"},"context":{"metadata":{"t":%q}}}`, strings.Repeat("x", 20_000_000))
		if err := os.WriteFile(pipe, []byte(pkg), 0o600); err != nil { // it returns when all was read
			t.Fatal(err)
		}
		c.computes(200)
		c.Signal(syscall.SIGINT)
		c.wantEnd(130)
	})
	t.Run("services", func(t *testing.T) {
		index := filepath.Join(t.TempDir(), "index.db")
		for _, args := range [][]string{{"supervise"}, {"gateway"}, {"index", "--file", index}} {
			c := startHandoff(t, args[0], url, args...)
			c.AwaitOutput(t.Context(), map[string]string{"supervise": "supervising", "gateway": "ready", "index": "ready"}[args[0]])
			c.Signal(syscall.SIGTERM)
			c.wantEnd(0)
		}
	})
}

// processIn waits for a process id in a file.
func processIn(t *testing.T, path string) int {
	t.Helper()
	for end := time.Now().Add(signalPatience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if body, err := os.ReadFile(path); err == nil && strings.HasSuffix(string(body), "\n") {
			pid, err := strconv.Atoi(strings.TrimSpace(string(body)))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatalf("no process id in %s", path)
	return 0
}

// gone waits until no process has this id, or one that is only not reaped yet.
func gone(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(signalPatience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if syscall.Kill(pid, 0) != nil || err == nil && strings.Contains(string(stat), ") Z ") {
			return
		}
	}
	t.Errorf("process %d is still there", pid)
}
