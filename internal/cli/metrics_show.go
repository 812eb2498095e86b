package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/internal/telemetry"
	"github.com/agenthandoff/handoff/worker"
)

// disk is ready while the disk of the engine takes writes.
func (s *showing) disk(health func() error) {
	if s != nil {
		s.server.AddReadinessCheck("disk", func(context.Context) error { return health() })
	}
}

// supervision counts what a supervisor does and sees.
func (s *showing) supervision(b *broker.Broker) supervisor.Watch {
	if s == nil {
		return nil
	}
	return s.metrics.Supervision(b.Directory, supervisor.SweepReasons)
}

// lost is how long a loop may be at something that should have ended by itself
// long before.
const lost = time.Minute

func (s *showing) supervisor(sv *supervisor.Supervisor) {
	if s == nil {
		return
	}
	s.server.AddLivenessCheck("supervisor", func(context.Context) error {
		if looking := sv.OldestReconcile(); looking > lost {
			return fmt.Errorf("has been looking at one handoff for %s; restart this process", explain.Duration(looking.Truncate(time.Second)))
		}
		return nil
	})
}

// worker shows a worker, which is ready while the engine knows that it is there.
func (s *showing) worker(agent string, b *broker.Broker, w *worker.Worker) {
	if s == nil {
		return
	}
	if b != nil { // else it goes through a gateway, and its presence tells
		s.engineAnswers(b)
	}
	s.metrics.Worker(agent, func() telemetry.WorkerStats {
		stats := w.Stats()
		return telemetry.WorkerStats{
			Claimed: stats.Claimed, Slots: stats.Slots, Busy: stats.Busy, Present: w.Present(),
			Ended: map[string]int64{
				"completed": stats.Completed, "failed": stats.Failed, "refused": stats.Refused, "declined": stats.Declined,
				"released": stats.Released, "lost": stats.Lost, "suspended": stats.Suspended, "escalated": stats.Escalated,
				"answered": stats.Answered, "handed_back": stats.RolledBack,
			},
		}
	})
	s.server.AddReadinessCheck("worker", func(context.Context) error {
		if !w.Present() {
			return fmt.Errorf("the engine has not confirmed within the lease that this worker of %s is there; it takes nothing new", agent)
		}
		return nil
	})
	s.server.AddLivenessCheck("worker", func(context.Context) error {
		if overdue := w.Overdue(); overdue > lost {
			return fmt.Errorf("has not tried to beat for %s longer than it should; restart this process", explain.Duration(overdue.Truncate(time.Second)))
		}
		return nil
	})
}

// gateway counts what a gateway does.
func (s *showing) gateway(d *natsgateway.Gateway) {
	if s == nil {
		return
	}
	s.metrics.Gateway(func() telemetry.GatewayStats {
		load := d.Load()
		return telemetry.GatewayStats{Offers: load.Offers, Requests: load.Requests, MemoryBytes: load.Bytes,
			Answers: map[string]int64{"answered": load.Answered, "refused": load.Refused, "failed": load.Failed},
			Busy:    load.Busy, Reclaimed: load.Reclaimed}
	})
}

// started says that everything is there that makes the process ready.
func (s *showing) started() {
	if s != nil {
		s.server.MarkStarted()
	}
}
