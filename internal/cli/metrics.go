package cli

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/explain"
	natsgateway "github.com/agenthandoff/handoff/gateway/nats"
	"github.com/agenthandoff/handoff/supervisor"
	"github.com/agenthandoff/handoff/telemetry"
	"github.com/agenthandoff/handoff/worker"
)

// metricsHelp is what the help of every command that has --metrics says of it.
const metricsHelp = `--metrics shows figures for Prometheus at /metrics, and for a supervisor of processes
/healthz (200 while its loops turn) and /readyz (200 while it can do its
work; else 503 and what is wrong). A port alone, :9090, is this machine's alone;
0.0.0.0:9090 shows them to every client that can reach it. Where $HANDOFF_METRICS is set,
"handoff doctor --self" asks there.`

// metricsEnv says where a process shows how it is, to the process itself and to who
// asks it: the health check of a container.
const metricsEnv = "HANDOFF_METRICS"

func metricsFlag(fs *pflag.FlagSet, addr *string) {
	fs.StringVar(addr, "metrics", "", "show figures, /healthz and /readyz at `ADDR`, such as :9090 ($HANDOFF_METRICS; default: nowhere)")
}

// showing is how a process shows how it is. The nil one shows nothing: all its
// methods may be called.
type showing struct {
	metrics *telemetry.Metrics
	server  *telemetry.Server
	log     *slog.Logger
}

// show begins to answer at an address, or at none. It comes before anything else
// that a process starts: that the port is taken is said at once.
func (a *app) show(ctx context.Context, addr string, log *slog.Logger) (*showing, error) {
	said := "--metrics"
	if addr == "" {
		said, addr = "$"+metricsEnv, a.env(metricsEnv)
	}
	if addr == "" {
		return nil, nil
	}
	if _, err := telemetry.Address(addr); err != nil {
		return nil, usagef("%s: %v", said, err)
	}
	metrics := telemetry.NewMetrics()
	server, err := telemetry.Listen(ctx, addr, metrics, log)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; choose another port", said, err)
	}
	log.Info("showing figures", "url", server.URL()+"/metrics")
	return &showing{metrics, server, log}, nil
}

func (s *showing) close() {
	if s == nil {
		return
	}
	if err := s.server.Close(); err != nil {
		s.log.Warn("figures", "err", err)
	}
}

// url is where the figures are; empty where they are nowhere.
func (s *showing) url() string {
	if s == nil {
		return ""
	}
	return s.server.URL() + "/metrics"
}

// observer counts what the process appends.
func (s *showing) observer() broker.Observer {
	if s == nil {
		return nil
	}
	return s.metrics
}

// engine shows the queues and the workers, and is ready while the engine answers.
func (s *showing) engine(b *broker.Broker) {
	if s == nil {
		return
	}
	s.metrics.World(b)
	s.engineAnswers(b)
}

func (s *showing) engineAnswers(b *broker.Broker) {
	if s == nil {
		return
	}
	s.server.Ready("engine", func(ctx context.Context) error {
		if _, err := b.LedgerInfo(ctx); err != nil {
			return fmt.Errorf("does not answer: %w", err)
		}
		return nil
	})
}

// disk is ready while the disk of the engine takes writes.
func (s *showing) disk(health func() error) {
	if s != nil {
		s.server.Ready("disk", func(context.Context) error { return health() })
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
	s.server.Live("supervisor", func(context.Context) error {
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
	s.metrics.Worker(agent, func() telemetry.WorkerFigures {
		stats := w.Stats()
		return telemetry.WorkerFigures{
			Claimed: stats.Claimed, Slots: stats.Slots, Busy: stats.Busy, Present: w.Present(),
			Ended: map[string]int64{
				"completed": stats.Completed, "failed": stats.Failed, "refused": stats.Refused, "declined": stats.Declined,
				"released": stats.Released, "lost": stats.Lost, "suspended": stats.Suspended, "escalated": stats.Escalated,
				"answered": stats.Answered, "handed_back": stats.RolledBack,
			},
		}
	})
	s.server.Ready("worker", func(context.Context) error {
		if !w.Present() {
			return fmt.Errorf("the engine has not confirmed within the lease that this worker of %s is there; it takes nothing new", agent)
		}
		return nil
	})
	s.server.Live("worker", func(context.Context) error {
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
	s.metrics.Gateway(func() telemetry.GatewayFigures {
		load := d.Load()
		return telemetry.GatewayFigures{Offers: load.Offers, Requests: load.Requests, MemoryBytes: load.Bytes,
			Answers: map[string]int64{"answered": load.Answered, "refused": load.Refused, "failed": load.Failed},
			Busy:    load.Busy, Reclaimed: load.Reclaimed}
	})
}

// started says that everything is there that makes the process ready.
func (s *showing) started() {
	if s != nil {
		s.server.Started()
	}
}
