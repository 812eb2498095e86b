package cli

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	httpgateway "github.com/agenthandoff/handoff/internal/gateway/http"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/internal/telemetry"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// metricsHelp explains --metrics, in the help of every command that has it.
const metricsHelp = `--metrics shows figures for Prometheus at /metrics, and for a supervisor of processes
/healthz (200 while its loops turn) and /readyz (200 while it can do its work; else 503
and the reason). A port alone, :9090, is this machine's alone; 0.0.0.0:9090 shows them
to every client that can reach it. Where $HANDOFF_METRICS is set, "handoff doctor
--self" asks there.`

// metricsEnv is the address of a process's figures and health, for the process itself and for its
// clients: the health check of a container.
const metricsEnv = "HANDOFF_METRICS"

// showing is how a process shows how it is.
type showing struct {
	metrics *telemetry.Metrics
	server  *telemetry.Server
	log     *slog.Logger
	hidden  bool // it is shown nowhere
}

// hidden shows nothing.
func hidden() *showing {
	return &showing{metrics: telemetry.NewMetrics(), server: new(telemetry.Server), hidden: true}
}

// show begins to answer at an address, or at none. It comes before anything else that a process
// starts: a port in use is reported at once.
func (a *app) show(ctx context.Context, addr string, log *slog.Logger) (*showing, error) {
	said, free := "--metrics", "--metrics 127.0.0.1:0"
	if addr == "" {
		said, free, addr = "$"+metricsEnv, metricsEnv+"=127.0.0.1:0", a.env(metricsEnv)
	}
	if addr == "" {
		return hidden(), nil
	}
	address, err := telemetry.ListenAddress(addr)
	if err != nil {
		return nil, usagef("%s: %v", said, err)
	}
	metrics := telemetry.NewMetrics()
	server, err := telemetry.Listen(ctx, addr, metrics, log)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", said, cannotListen(address, err, free))
	}
	log.Info("showing figures", "url", server.URL()+"/metrics")
	return &showing{metrics: metrics, server: server, log: log}, nil
}

func (s *showing) close() {
	if s.hidden {
		return
	}
	if err := s.server.Close(); err != nil {
		s.log.Warn("figures", "err", err)
	}
}

// url is where the figures are; empty where they are nowhere.
func (s *showing) url() string {
	if s.hidden {
		return ""
	}
	return s.server.URL() + "/metrics"
}

// observer counts the events that the process appends.
func (s *showing) observer() broker.Observer {
	if s.hidden {
		return nil
	}
	return s.metrics
}

// engine shows the queues and the workers, and is ready while the engine answers.
func (s *showing) engine(b *broker.Broker) {
	s.metrics.Engine(b)
	s.engineAnswers(b)
}

func (s *showing) engineAnswers(b *broker.Broker) {
	s.server.AddReadinessCheck("engine", func(ctx context.Context) error {
		if _, err := b.LedgerInfo(ctx); err != nil {
			return fmt.Errorf("does not answer: %w", err)
		}
		return nil
	})
}

// disk is ready while the disk of the engine takes writes.
func (s *showing) disk(health func() error, failed <-chan struct{}) {
	s.server.AddReadinessCheck("disk", func(context.Context) error { return health() })
	s.server.AddLivenessCheck("server", func(context.Context) error {
		select {
		case <-failed:
			return health()
		default:
			return nil
		}
	})
}

// supervision counts the actions and observations of a supervisor.
func (s *showing) supervision(b *broker.Broker) supervisor.Watch {
	if s.hidden {
		return nil
	}
	return s.metrics.Supervision(b.Directory, supervisor.SweepReasons)
}

// lost is how long a loop may be at something that should have ended by itself
// long before.
const lost = time.Minute

func (s *showing) supervisor(sv *supervisor.Supervisor) {
	s.server.AddLivenessCheck("supervisor", func(context.Context) error {
		if looking := sv.OldestReconcile(); looking > lost {
			return fmt.Errorf("has been looking at one handoff for %s; restart this process", explain.Duration(looking.Truncate(time.Second)))
		}
		return nil
	})
}

// worker shows a worker, which is ready while the engine knows that it is there.
func (s *showing) worker(agent string, b *broker.Broker, w *worker.Worker) {
	if b != nil { // else it goes through a gateway, and its presence is enough
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

// gateway counts the work of a gateway.
func (s *showing) gateway(d *natsgateway.Gateway) {
	s.metrics.Gateway(func() telemetry.GatewayStats {
		load := d.Load()
		return telemetry.GatewayStats{Requests: load.Requests, MemoryBytes: load.Bytes,
			Answers: map[string]int64{"answered": load.Answered, "refused": load.Refused, "failed": load.Failed},
			Busy:    load.Busy, Reclaimed: load.Reclaimed}
	})
}

// http counts the requests of an HTTP gateway.
func (s *showing) http(g *httpgateway.Gateway) {
	s.metrics.HTTP(func() telemetry.HTTPStats {
		load := g.Load()
		return telemetry.HTTPStats{Waits: load.Waits, LargeBodies: load.LargeBodies, Answers: map[string]int64{
			"answered": load.Answered, "refused": load.Refused - load.Busy, "busy": load.Busy, "failed": load.Failed}}
	})
}

// started marks the process as started: all its readiness checks exist.
func (s *showing) started() { s.server.MarkStarted() }

// startTraces begins to trace the events of this process, where the environment names a collector.
// A wrong variable is a word on stderr, and no trace: no work stops for it. log is that of a
// process that runs on; nil is a command that ends soon, and whose collector may be away without a
// word.
func (a *app) startTraces(ctx context.Context, log *slog.Logger) *telemetry.Traces {
	traces, err := telemetry.StartTraces(context.WithoutCancel(ctx),
		telemetry.TracesConfig{Env: a.env, Role: a.command, ShortLived: log == nil, Log: log})
	if err != nil {
		a.notef("handoff: nothing is traced: %v\n", err)
	}
	return traces
}

// commandName returns the name of a command without the program's own name.
func commandName(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
}

// traceOf puts a package without a trace of its own into the trace of this process. The
// environment's values may be anybody's: invalid ones count as absent (W3C Trace Context, 2.2.3).
func traceOf(pkg *protocol.Package, env func(string) string) {
	t := protocol.TraceContext{Parent: env("TRACEPARENT"), State: env("TRACESTATE")}
	if pkg.TraceParent != "" || pkg.TraceState != "" || t.IsZero() {
		return
	}
	if t.Validate() != nil {
		t.State = ""
	}
	if t.Validate() == nil {
		pkg.TraceParent, pkg.TraceState = t.Parent, t.State
	}
}
