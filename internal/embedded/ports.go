package embedded

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
)

const (
	portMin = 10_000 // many services have well-known ports below
	portMax = 65_535
	// rangeMin is the size of a range in which two random choices rarely collide.
	rangeMin = 1000
	// portTries is how many ports are tried in all.
	portTries = 1000
)

// FreePorts finds n ports of 127.0.0.1 that no program listens on, for tests. They are outside of
// the ephemeral range, from which the system takes ports for outgoing connections and for
// listeners on port 0: there, a client or another test could take a port before the node listens
// on it, or during the node's restart. A client that reconnects to its stopped node could even get
// the node's port, and connect to itself.
//
// The ports are not reserved. If two processes choose the same port, the later one fails to
// listen.
func FreePorts(n int) ([]int, error) {
	low, high := searchRange(ephemeralPorts())
	var ports []int
	for range portTries {
		if len(ports) == n {
			return ports, nil
		}
		port := low + rand.IntN(high-low+1)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		defer func() { _ = l.Close() }() // after all are found, so that they differ
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("found %d of %d free ports between %d and %d", len(ports), n, low, high)
}

// ephemeralPorts returns the range from which the system chooses ports; the IANA range if unknown.
func ephemeralPorts() (first, last int) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		if _, err := fmt.Sscan(string(text), &first, &last); err == nil {
			return first, last
		}
	}
	return 49_152, 65_535
}

// searchRange returns the range to search for ports: below the ephemeral ports, or above them, or
// everywhere if both are too small.
func searchRange(first, last int) (low, high int) {
	switch {
	case first-portMin >= rangeMin:
		return portMin, first - 1
	case portMax-last >= rangeMin:
		return max(portMin, last+1), portMax
	}
	return portMin, portMax
}
