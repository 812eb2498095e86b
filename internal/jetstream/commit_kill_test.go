package jetstream_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// killedNode names the directory to the process that TestKilledNode runs in.
const killedNode = "HANDOFF_TEST_NODE_DIR"

// TestKilledNode is no test: it is the node of TestKilledUnderLoad, in a process
// that can be killed. It serves until its standard input ends.
func TestKilledNode(t *testing.T) {
	dir := os.Getenv(killedNode)
	if dir == "" {
		t.Skip("only TestKilledUnderLoad runs this")
	}
	node, err := embedded.Start(t.Context(), embedded.Config{Dir: dir, Prepare: asyncWork})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(node.ClientURL())
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = node.Stop()
}

// killable starts the node and returns where it is, and what kills it.
func killable(t *testing.T, ctx context.Context, dir string) (url string, kill func()) {
	t.Helper()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestKilledNode$")
	cmd.Env = append(os.Environ(), killedNode+"="+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = in.Close()
	})
	t.Cleanup(kill)
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("the node says nothing")
	}
	return lines.Text(), kill
}

// A node is killed in the middle of batches: what was acknowledged is in the
// ledger, where it was said to be, and nothing is in it twice.
func TestKilledUnderLoad(t *testing.T) {
	t.Parallel()
	const writers, enough = 64, 3000
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dir := t.TempDir()
	url, kill := killable(t, ctx, dir)
	e, err := jetstream.Dial(ctx, jetstream.DialConfig{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	load, stop := context.WithCancel(ctx)
	var mu sync.Mutex
	acked := map[uint64]string{} // by sequence, the id
	full := make(chan struct{})
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for load.Err() == nil {
				ticket := protocol.NewTicket()
				for after, n := uint64(0), 0; n < 3; n++ {
					id := fmt.Sprint(ticket, " ", n)
					seq, err := e.Append(load, ticket, after, id, "", []byte(id))
					if err != nil {
						break // killed, and nobody comes back before the load ends
					}
					mu.Lock()
					acked[seq] = id
					if len(acked) == enough {
						close(full)
					}
					mu.Unlock()
					after = seq
				}
			}
		})
	}
	select {
	case <-full:
	case <-ctx.Done():
		t.Error("the load did not get that far")
	}
	kill()
	stop()
	wg.Wait()
	checkSurvivors(t, ctx, dir, acked)
}

func checkSurvivors(t *testing.T, ctx context.Context, dir string, acked map[uint64]string) {
	t.Helper()
	node, err := embedded.Start(ctx, embedded.Config{Dir: dir, Prepare: asyncWork})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = node.Stop() }()
	if !node.Unclean() {
		t.Error("the node was not killed")
	}
	nc, err := node.Conn()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	e, err := jetstream.Open(t.Context(), nc, jetstream.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	seen, found := map[string]uint64{}, 0
	err = e.Entries(ctx, nil, func(entry broker.Entry) error {
		id := string(entry.Body)
		if before, twice := seen[id]; twice {
			t.Errorf("%s is at %d and at %d", id, before, entry.Seq)
		}
		seen[id] = entry.Seq
		if want, ok := acked[entry.Seq]; ok {
			found++
			if id != want {
				t.Errorf("at %d is %s, acknowledged was %s", entry.Seq, id, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found != len(acked) {
		t.Errorf("of %d acknowledged appends %d are there", len(acked), found)
	}
	t.Logf("%d acknowledged, %d in the ledger", len(acked), len(seen))
}
