//go:build proof

package chaos

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/testworld"
)

var clocks = flag.Bool("clocks", false, "let clocks jump, too: builds the standard library anew")

// skewedHandoff builds handoff with a clock that can be set while it runs. HANDOFF_CLOCK_BIN names one that is
// built already.
func skewedHandoff(t *testing.T) string {
	t.Helper()
	if bin := os.Getenv("HANDOFF_CLOCK_BIN"); bin != "" {
		return bin
	}
	overlay := testworld.ClockOverlay(t)
	if overlay == "" {
		t.Skip("clock jumps: there is no other clock to build with")
	}
	bin := filepath.Join(t.TempDir(), "handoff")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-o", bin, "../../../cmd/handoff").CombinedOutput()
	if err != nil {
		t.Fatalf("build with another clock: %v\n%s", err, out)
	}
	return bin
}

// TestClockJumps makes the clocks of supervisors, workers and sources jump by an hour, ahead and
// back. No handoff is delayed or lost. Half of them fail once, so that timers retry them.
func TestClockJumps(t *testing.T) {
	if testworld.Race || !*clocks {
		t.Skip("clock jumps: it builds the standard library anew, which takes minutes; run it with -clocks, and without -race")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	bin := skewedHandoff(t)
	cluster := testworld.StartCluster(t, 3, 0)
	url := cluster.URL()
	b, err := connect(ctx, url, "test")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	skew := func(who string, by time.Duration) {
		if err := testworld.SetClock(dir, who, int(by/time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	env := func(who string) []string {
		return []string{"NATS_URL=" + url, testworld.ClockEnv + "=" + dir, testworld.ClockName + "=" + who}
	}
	const handler = `cat >/dev/null; [ "$HANDOFF_ATTEMPT" != 1 ] || [ $(($$ % 2)) = 0 ] || exit 1; echo done`
	for i := range 2 {
		for role, args := range map[string][]string{
			"supervisor": {"supervise"},
			"worker":     {"work", "--env", "all", "--agent", "first", "--concurrency", "4", "--lease", "4s", "--", "sh", "-c", handler},
		} {
			name := fmt.Sprint(role, i)
			testworld.Start(t, name, env(name), bin, args...)
		}
	}
	for ctx.Err() == nil {
		if d, err := b.Directory(ctx); err == nil && len(d.Holders) == 2 {
			break
		}
		testworld.Pause(ctx, 100*time.Millisecond)
	}
	// ended keeps how long each handoff took, by this process's monotonic clock.
	var (
		mu    sync.Mutex
		took  []time.Duration
		waits sync.WaitGroup
	)
	handOff := func() {
		cmd := exec.CommandContext(ctx, bin, "submit", "--from", "lead", "--to", "first", "--reason", "r", "--task", "this")
		cmd.Env = append(os.Environ(), env("source")...)
		var said bytes.Buffer
		cmd.Stderr = &said
		began := time.Now()
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("submit: %v\n%s", err, said.String())
		}
		waits.Go(func() {
			state, err := brokertest.Wait(ctx, b, strings.TrimSpace(string(out)), brokertest.Closed)
			if err != nil || state.Outcome != "success" {
				t.Errorf("%s: %s, %v", state.Ticket, state.Outcome, err)
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(began))
		})
	}
	during := func(d time.Duration) (n int) {
		for end := time.Now().Add(d); time.Now().Before(end); n++ {
			handOff()
			testworld.Pause(ctx, 100*time.Millisecond)
		}
		return n
	}
	for _, name := range []string{"supervisor0", "worker0", "source"} {
		for _, by := range []time.Duration{time.Hour, -time.Hour} {
			skew(name, by)
			n := during(4 * time.Second)
			skew(name, 0)
			n += during(2 * time.Second)
			waits.Wait()
			longest := time.Duration(0)
			for _, d := range took {
				longest = max(longest, d)
			}
			t.Logf("| the clock of %s %+v | %d handoffs, the longest %.1f s |", name, by, n, longest.Seconds())
			// A retry takes some seconds, and a lease that is lost a few more; a minute is
			// what a clock that was believed would never make.
			if longest > time.Minute {
				t.Errorf("the clock of %s was believed: a handoff took %v", name, longest)
			}
			took = nil
		}
	}
}
