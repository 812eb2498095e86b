package embedded

import (
	"net"
	"testing"
)

// TestClusterOnPortsInUse checks that a cluster starts again with other ports if one was taken,
// for clients or for routes, and that a node keeps its ports over a restart.
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
		ports, err := FreePorts(n)
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

// TestClusterReportsPortsInUse checks that a cluster gives up after clusterTries, with the cause.
func TestClusterReportsPortsInUse(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	taken, tries := l.Addr().(*net.TCPAddr).Port, 0
	pick := func(n int) ([]int, error) {
		ports, err := FreePorts(n)
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

func TestFreePorts(t *testing.T) {
	t.Parallel()
	ports, err := FreePorts(20)
	if err != nil {
		t.Fatal(err)
	}
	low, high := searchRange(ephemeralPorts())
	seen := map[int]bool{}
	for _, port := range ports {
		if seen[port] || port < low || port > high {
			t.Errorf("port %d twice, or not between %d and %d", port, low, high)
		}
		seen[port] = true
	}
}

func TestSearchRange(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ first, last, low, high int }{
		{32_768, 60_999, 10_000, 32_767}, // as Linux comes
		{49_152, 65_535, 10_000, 49_151}, // IANA's
		{10_500, 40_000, 40_001, 65_535}, // too little below
		{1_024, 9_000, 10_000, 65_535},   // nothing is ephemeral
		{1_024, 65_535, 10_000, 65_535},  // nothing is left
	} {
		if low, high := searchRange(test.first, test.last); low != test.low || high != test.high {
			t.Errorf("ephemeral ports %d to %d: the search range is %d to %d, want %d to %d", test.first, test.last, low, high, test.low, test.high)
		}
	}
}
