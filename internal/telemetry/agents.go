package telemetry

import (
	"context"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

const (
	// AgentsMax is how many agents one process exports by name. Each has about a hundred
	// series, so it bounds the size of a scrape.
	AgentsMax = 500
	// Other is the label of every other agent: beyond AgentsMax, not registered, or empty.
	Other = "other"
)

// Directory reads the directory that names of agents are checked against; broker.Broker has one.
type Directory func(context.Context) (*lifecycle.Directory, error)

// directoryTimeout bounds a read of the directory. Only the first one may block.
const directoryTimeout = 2 * time.Second

// agentLabeler turns names of agents into label values: at most AgentsMax, and Other. A label
// value stays while the process lives, as its counters do, even if the directory loses the agent.
type agentLabeler struct {
	mu    sync.RWMutex
	known map[string]bool
}

// label is the label value of an agent.
func (a *agentLabeler) label(name string, read Directory) string {
	a.mu.RLock()
	known, full := a.known[name], len(a.known) >= AgentsMax
	a.mu.RUnlock()
	if known {
		return name
	}
	if name == "" || full {
		return Other
	}
	ctx, cancel := context.WithTimeout(context.Background(), directoryTimeout)
	defer cancel()
	directory, err := read(ctx)
	if err != nil {
		return Other
	}
	if _, registered := directory.Agent(name); !registered {
		return Other
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.known) >= AgentsMax && !a.known[name] {
		return Other
	}
	a.known[name] = true
	return name
}
