package cli

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/telemetry"
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
	said, free := "--metrics", "--metrics 127.0.0.1:0"
	if addr == "" {
		said, free, addr = "$"+metricsEnv, metricsEnv+"=127.0.0.1:0", a.env(metricsEnv)
	}
	if addr == "" {
		return nil, nil
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
	s.metrics.Engine(b)
	s.engineAnswers(b)
}

func (s *showing) engineAnswers(b *broker.Broker) {
	if s == nil {
		return
	}
	s.server.AddReadinessCheck("engine", func(ctx context.Context) error {
		if _, err := b.LedgerInfo(ctx); err != nil {
			return fmt.Errorf("does not answer: %w", err)
		}
		return nil
	})
}
