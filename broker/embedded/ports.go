package embedded

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
)

const (
	portLowest  = 10_000 // below are many services' well-known ports
	portHighest = 65_535
	// portsFew is how small a range makes it likely that two who choose at
	// random choose the same.
	portsFew = 1000
	// portTries is how many ports in a row may be in use.
	portTries = 1000
)

// QuietPorts finds n ports of 127.0.0.1 that no program listens on, for tests. They
// lie outside of the range from which the system takes ports for outgoing
// connections, and for listeners that ask for any: there a client, or another
// test, takes the port between the choice and the listening, or while a node
// is being restarted; a client that looks for its stopped node may even be
// given that very port, and is then connected to itself.
//
// No port is kept for the caller. Two who choose at the same moment
// may still choose the same one, which the later of them to listen is told.
func QuietPorts(n int) ([]int, error) {
	low, high := quietRange(outgoingPorts())
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
		defer func() { _ = l.Close() }() // when all are found, so that they differ
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("found %d of %d free ports between %d and %d", len(ports), n, low, high)
}

// outgoingPorts is the range from which the system takes a port where no program
// asks for a certain one. A system that does not say has the one that IANA set
// aside for it.
func outgoingPorts() (first, last int) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		if _, err := fmt.Sscan(string(text), &first, &last); err == nil {
			return first, last
		}
	}
	return 49_152, 65_535
}

// quietRange is where ports are looked for: below the outgoing ones, or above
// them, or among them where they leave too little else.
func quietRange(first, last int) (low, high int) {
	switch {
	case first-portLowest >= portsFew:
		return portLowest, first - 1
	case portHighest-last >= portsFew:
		return max(portLowest, last+1), portHighest
	}
	return portLowest, portHighest
}
