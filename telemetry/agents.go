package telemetry

import (
	"context"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

const (
	// AgentsMax is how many agents one process has figures of by name. Each has
	// about a hundred series; a scrape of more would cost more than it tells.
	AgentsMax = 500
	// Other stands for an agent that is not among them: one over AgentsMax, one that
	// the directory does not know, or none at all.
	Other = "other"
)

// Directory is where the names of agents are looked up: broker.Engine's.
type Directory func(context.Context) (*lifecycle.Directory, error)

// directoryPatience bounds the one call of Directory that may block: the first.
const directoryPatience = 2 * time.Second

// agents turns names into label values, of which there are never more than
// AgentsMax and Other. What becomes a label remains one while the process
// lives, as its counters do, even if the directory forgets the agent.
type agents struct {
	mu    sync.RWMutex
	known map[string]bool
}

// label is the label value of an agent.
func (a *agents) label(name string, in Directory) string {
	a.mu.RLock()
	known, full := a.known[name], len(a.known) >= AgentsMax
	a.mu.RUnlock()
	if known {
		return name
	}
	if name == "" || full {
		return Other
	}
	ctx, cancel := context.WithTimeout(context.Background(), directoryPatience)
	defer cancel()
	directory, err := in(ctx)
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
