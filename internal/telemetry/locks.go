package telemetry

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agenthandoff/handoff/protocol"
)

const (
	// locksCacheTTL is how long later scrapes reuse the counts of locks: the heads of all workspaces
	// are read for them.
	locksCacheTTL = 5 * time.Second
	// locksPause is how many times as long as a read of the workspaces took the next one waits.
	locksPause = 20
)

// lockCounts are the locks of all workspaces, as they were read last.
type lockCounts struct {
	until         time.Time // they are reused until then
	held, waiting int
	err           error
}

// collectLocks emits the locks of all workspaces. They are missing where those cannot be read.
func (e *engineCollector) collectLocks(ctx context.Context, to chan<- prometheus.Metric) {
	locks := e.cachedLocks(ctx)
	if locks.err != nil {
		return
	}
	to <- gaugeMetric(locksDesc, float64(locks.held), "held")
	to <- gaugeMetric(locksDesc, float64(locks.waiting), "waiting")
}

func (e *engineCollector) cachedLocks(ctx context.Context) lockCounts {
	e.mu.Lock()
	defer e.mu.Unlock()
	began := e.now()
	if began.Before(e.locks.until) {
		return e.locks
	}
	all, err := e.engine.Workspaces(ctx)
	if errors.Is(err, &protocol.Error{Code: protocol.CodeUnsupported}) { // an engine without workspaces has no locks
		err = nil
	}
	counts := lockCounts{err: err}
	for _, w := range all {
		counts.held += len(w.Locks)
		for _, wait := range w.Waiting {
			counts.waiting += len(wait.Locks)
		}
	}
	end := e.now()
	counts.until = end.Add(max(locksCacheTTL, locksPause*end.Sub(began)))
	e.locks = counts
	return counts
}
