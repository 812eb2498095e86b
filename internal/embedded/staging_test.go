package embedded

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

func startStaging(t *testing.T, dir string, fsync Fsync) *Node {
	t.Helper()
	n, err := Start(t.Context(), Config{Dir: dir, Fsync: fsync, DontListen: true, Prepare: jetstream.Topology{AsyncWork: true}.Prepare})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Stop() })
	return n
}

// stagesIn sends one batch of two messages, and reports whether the directory changed.
func stagesIn(t *testing.T, n *Node, dir string) bool {
	t.Helper()
	nc, err := n.Conn()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	before, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	id := nats.NewInbox()
	for i := 1; i <= 2; i++ {
		msg := nats.NewMsg("handoff.ledger." + protocol.NewTicket())
		msg.Header.Set("Nats-Batch-Id", id)
		msg.Header.Set("Nats-Batch-Sequence", fmt.Sprint(i))
		if i == 2 {
			msg.Header.Set("Nats-Batch-Commit", "1")
		}
		if _, err := nc.RequestMsgWithContext(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
	}
	after, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	return !after.ModTime().Equal(before.ModTime())
}

// TestStagesInMemory checks that the server stages batches behind the link and nowhere else.
func TestStagesInMemory(t *testing.T) {
	if !isTmpfs(sharedMemory) {
		t.Skip("no shared memory here")
	}
	dir := t.TempDir()
	n := startStaging(t, dir, FsyncAlways)
	if len(n.staging) != 1 {
		t.Fatal("it stages on the disk")
	}
	first := n.staging[0].dir
	if !stagesIn(t, n, first) {
		t.Error("a batch was not staged in memory")
	}
	if left, err := os.ReadDir(first); err != nil || len(left) > 0 {
		t.Errorf("after the batch there is %v, %v", left, err)
	}
	// A crash leaves the directory, and the next start replaces it.
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	n = startStaging(t, dir, FsyncAlways)
	if _, err := os.Stat(first); !os.IsNotExist(err) {
		t.Errorf("what a crash has left is still there: %v", err)
	}
	if len(n.staging) != 1 || !stagesIn(t, n, n.staging[0].dir) {
		t.Error("after a crash it stages on the disk")
	}
	second := n.staging[0].dir
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{second, n.batchLinks()[0]} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is there after a stop: %v", path, err)
		}
	}
}

// TestStagesOnTheDisk checks a ledger with a directory of batches, a node that needs no staging in
// memory, and one that finds another node's link.
func TestStagesOnTheDisk(t *testing.T) {
	dir := t.TempDir()
	n := startStaging(t, dir, FsyncInterval)
	if len(n.staging) > 0 {
		t.Errorf("batches in %v without need", n.staging)
	}
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	others := t.TempDir()
	if err := os.Symlink(others, n.batchLinks()[0]); err != nil {
		t.Fatal(err)
	}
	n = startStaging(t, dir, FsyncAlways)
	if _, err := os.Stat(others); err != nil {
		t.Errorf("it removed what is not its own: %v", err)
	}
	if isTmpfs(sharedMemory) && (len(n.staging) != 1 || filepath.Dir(n.staging[0].dir) != sharedMemory) {
		t.Errorf("batches are in %v", n.staging)
	}
}
