//go:build proof

package chaos

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

// patience is the timeout of commands: a busy machine elects slowly. The default of the product is
// tested with -patience 12s.
var patience = flag.Duration("patience", 2*time.Minute, "the --timeout of commands")

const (
	poller      = "poller"
	queuedFirst = 3 // handoffs that stand in its queue before any harm
	bigBytes    = 600_000
)

// commands runs the commands of end users in loops, while leaders change.
type commands struct {
	*chaos
	env []string
	big string // a package whose body goes into the blobs

	mu     sync.Mutex
	ended  map[int]int    // commands by exit code
	failed map[string]int // those that must not end so, by their words
	slow   time.Duration
}

// TestCommandsOutlastElections runs commands while leaders are killed and told to step
// down: none of them gives up.
func TestCommandsOutlastElections(t *testing.T) {
	if testworld.Race {
		t.Skip("a fleet of processes with the race detector in them outlasts its own timeouts: run it without -race")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	c := &commands{chaos: &chaos{T: t, ctx: ctx, chance: rand.New(rand.NewPCG(*seed, 50)), cluster: testworld.StartCluster(t, 3, 0)},
		ended: map[int]int{}, failed: map[string]int{}}
	b := c.broker()
	for _, agent := range []string{poller, "nobody", "lead"} {
		if err := b.PutProfile(ctx, protocol.Profile{ID: agent}); err != nil {
			t.Fatal(err)
		}
	}
	c.env = append(os.Environ(), "NATS_URL="+c.cluster.URL(), "HANDOFF_TIMEOUT="+patience.String(), "HANDOFF_AGENT=lead")
	c.big = filepath.Join(t.TempDir(), "big.json")
	pkg := fmt.Sprintf(`{"source":"lead","target":{"agent":"nobody"},"reason":"r","task":{"description":"t"},"context":{"metadata":{"text":%q}}}`, strings.Repeat("a line of it\n", bigBytes/13))
	if err := os.WriteFile(c.big, []byte(pkg), 0o600); err != nil {
		t.Fatal(err)
	}
	testworld.Start(t, "supervisor", nil, testworld.Handoff(t), "supervise", "--nats", c.cluster.URL())
	testworld.Start(t, "index", nil, testworld.Handoff(t), "index", "--nats", c.cluster.URL(), "--file", filepath.Join(t.TempDir(), "index.db"))
	for range queuedFirst {
		c.run("submit", "--to", poller, "--reason", "r", "--task", "t")
	}

	over, stop := context.WithCancel(ctx)
	var loops sync.WaitGroup
	for _, round := range []func(){c.submitLoop, c.askLoop, c.pollLoop} {
		loops.Go(func() {
			for over.Err() == nil {
				round()
			}
		})
	}
	for range 2 {
		c.killAndRestart(c.node(true).Process, 2*time.Second)
		c.awaitRecovered()
		c.stepDown()
		c.pause(time.Second)
	}
	stop()
	loops.Wait()
	t.Logf("commands by exit code: %v; the slowest took %v", c.ended, c.slow.Round(10*time.Millisecond))
	for words, n := range c.failed {
		t.Errorf("%d times %s", n, words)
	}
}

// run runs a command to its end, and notes how it ended.
func (c *commands) run(args ...string) (out string, code int) {
	cmd := exec.CommandContext(c.ctx, testworld.Handoff(c), args...)
	cmd.Env = c.env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code, err = exit.ExitCode(), nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended[code]++
	c.slow = max(c.slow, time.Since(began))
	switch code { // done, no result yet, the lease lost meanwhile, nothing to claim, the index behind
	case 0, 4, 7, 8, 10:
	default:
		c.failed[fmt.Sprintf("%s ended with %d: %s", args[0], code, stderr.String())]++
	}
	if err != nil {
		c.failed[err.Error()]++
	}
	return strings.TrimSpace(stdout.String()), code
}

func (c *commands) submitLoop() {
	ticket, code := c.run("submit", "--to", "nobody", "--reason", "r", "--task", "t")
	if code == 0 {
		c.run("status", ticket)
		c.run("history", ticket)
		c.run("result", ticket)
		c.run("wait", ticket, "--timeout", "0s")
		c.run("cancel", ticket)
	}
	c.run("submit", "--file", c.big)
}

func (c *commands) askLoop() {
	c.run("list", "--stale", "--count")
	c.run("agents", "ls")
	c.run("stats", "--stale")
	c.run("top", "--once")
	c.run("topology", "show")
	c.run("inbox")
}

func (c *commands) pollLoop() {
	c.run("submit", "--to", poller, "--reason", "r", "--task", "t")
	lease, code := c.run("claim", "--agent", poller, "--accept", "--wait", "2s", "--lease", "1m")
	if lease, _, _ = strings.Cut(strings.TrimPrefix(lease, "LEASE "), "\n"); code == 0 {
		c.run("heartbeat", lease)
		c.run("complete", lease, "--text", "done")
	}
}

// stepDown has the leader of every stream step down.
func (c *commands) stepDown() {
	nc, err := nats.Connect(c.cluster.URL(), nats.Timeout(10*time.Second))
	if err != nil {
		c.Error(err)
		return
	}
	defer nc.Close()
	for _, stream := range []string{jetstream.LedgerStream, jetstream.WorkStream, jetstream.TimerStream, "KV_" + jetstream.AgentBucket, "KV_" + jetstream.HolderBucket, "OBJ_" + jetstream.BlobBucket} {
		if _, err := nc.Request("$JS.API.STREAM.LEADER.STEPDOWN."+stream, nil, 10*time.Second); err != nil {
			c.Logf("%s has not stepped down: %v", stream, err)
		}
	}
}
