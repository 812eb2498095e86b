package testworld

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/filelock"
)

// Ports reserves n ports of 127.0.0.1 until the test ends, also while its servers restart. The
// system gives none of them to an outgoing connection (embedded.FreePorts), and lock files keep
// other tests on this machine from them.
func Ports(t testing.TB, n int) []int {
	t.Helper()
	dir := filepath.Join(os.TempDir(), "handoff-test-ports")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var ports []int
	for tries := 0; len(ports) < n; tries++ {
		port, err := embedded.FreePorts(1)
		if err != nil || tries > 100*n {
			t.Fatalf("ports for a test: %d of %d found: %v", len(ports), n, err)
		}
		lock, err := filelock.Take(filepath.Join(dir, strconv.Itoa(port[0])))
		if err != nil {
			continue
		}
		t.Cleanup(func() { _ = lock.Close() })
		ports = append(ports, port[0])
	}
	return ports
}
