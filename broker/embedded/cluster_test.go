package embedded

import (
	"net"
	"testing"
)

// Somebody may listen on a port between the choice and the start, be it the
// port for clients or the one for the other nodes. The cluster then begins
// again on others, and a node that restarts keeps those it has.
func TestClusterOnPortsInUse(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	taken := l.Addr().(*net.TCPAddr).Port
	tries := 0
	pick := func(n int) ([]int, error) {
		ports, err := QuietPorts(n)
		if err != nil {
			return nil, err
		}
		switch tries++; tries {
		case 1:
			ports[0] = taken // of the first node, for the others
		case 2:
			ports[n-1] = taken // of the last node, for clients
		}
		return ports, nil
	}
	c, err := startCluster(t.Context(), 3, t.TempDir(), FsyncInterval, pick)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	}()
	if tries != 3 {
		t.Errorf("ports were chosen %d times, want 3", tries)
	}
	before := c.Nodes[1].ClientURL()
	if err := c.Nodes[1].Stop(); err != nil {
		t.Fatal(err)
	}
	if err := c.Restart(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if now := c.Nodes[1].ClientURL(); now != before {
		t.Errorf("it listens at %s, was at %s", now, before)
	}
}

// It does not go on choosing ports for ever, and says what was in the way.
func TestClusterGivesUp(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	taken, tries := l.Addr().(*net.TCPAddr).Port, 0
	pick := func(n int) ([]int, error) {
		ports, err := QuietPorts(n)
		if tries++; err == nil {
			ports[n-1] = taken
		}
		return ports, err
	}
	if _, err = startCluster(t.Context(), 1, t.TempDir(), FsyncInterval, pick); err == nil {
		t.Fatal("it started on a port in use")
	}
	if tries != clusterTries {
		t.Errorf("ports were chosen %d times, want %d", tries, clusterTries)
	}
	t.Log(err)
}

func TestQuietPorts(t *testing.T) {
	t.Parallel()
	ports, err := QuietPorts(20)
	if err != nil {
		t.Fatal(err)
	}
	low, high := quietRange(outgoingPorts())
	seen := map[int]bool{}
	for _, port := range ports {
		if seen[port] || port < low || port > high {
			t.Errorf("port %d twice, or not between %d and %d", port, low, high)
		}
		seen[port] = true
	}
}

func TestQuietRange(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ first, last, low, high int }{
		{32_768, 60_999, 10_000, 32_767}, // as Linux comes
		{49_152, 65_535, 10_000, 49_151}, // IANA's
		{10_500, 40_000, 40_001, 65_535}, // too little below
		{1_024, 9_000, 10_000, 65_535},   // all of it is above
		{1_024, 65_535, 10_000, 65_535},  // nothing is left
	} {
		if low, high := quietRange(test.first, test.last); low != test.low || high != test.high {
			t.Errorf("outgoing %d to %d: look between %d and %d, want %d and %d", test.first, test.last, low, high, test.low, test.high)
		}
	}
}
