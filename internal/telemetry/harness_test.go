package telemetry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// scene is an engine in memory with a clock of its own, and a broker and a supervisor with
// metrics.
type scene struct {
	*testing.T
	ctx    context.Context
	m      *Metrics
	engine *countingEngine
	b      *broker.Broker
}

// countingEngine counts how often the queues are read.
type countingEngine struct {
	*brokertest.Memory
	queues atomic.Int32
	broken atomic.Bool
}

func (a *countingEngine) Queues(ctx context.Context) ([]broker.QueueStatus, error) {
	a.queues.Add(1)
	if a.broken.Load() {
		return nil, broker.ErrUnreachable
	}
	return a.Memory.Queues(ctx)
}

func inScene(t *testing.T, story func(*scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &scene{T: t, ctx: ctx, m: NewMetrics(), engine: &countingEngine{Memory: brokertest.NewMemory()}}
		var err error
		s.b, err = broker.New(s.engine, broker.Config{Observer: s.m})
		s.must(err)
		s.m.Engine(s.b)
		sv, err := supervisor.New(s.b, s.engine, supervisor.Config{Watch: s.m.Supervision(s.b.Directory, supervisor.SweepReasons)})
		s.must(err)
		ended := make(chan error, 1)
		go func() { ended <- sv.Run(ctx) }()
		synctest.Wait()
		story(s)
		cancel()
		s.must(<-ended)
		s.must(s.engine.Close())
	})
}

func (s *scene) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *scene) agents(ids ...string) {
	s.Helper()
	brokertest.Register(s, s.b, ids...)
}

func (s *scene) submit(to string) string {
	s.Helper()
	pkg := protocol.Package{Target: protocol.Target{Agent: to}}
	pkg.Policy.BackoffSpreadPct = new(int)
	return brokertest.Submit(s, s.b, pkg).Ticket
}

// holder registers a worker that beats once, so that it is present for one lease.
func (s *scene) holder(agent string, lease time.Duration) protocol.Holder {
	s.Helper()
	h := protocol.Holder{ID: uuid.NewString(), Agent: agent, LeaseMS: lease.Milliseconds(), Slots: 3, Busy: 1}
	s.must(s.b.Beat(s.ctx, h))
	return h
}

func (s *scene) pull(agent string) *broker.Offer {
	s.Helper()
	return brokertest.Offer(s, s.b, agent)
}

func (s *scene) accept(h protocol.Holder) *broker.Claim {
	s.Helper()
	for {
		claim, err := s.pull(h.Agent).Acknowledge(s.ctx, h, protocol.Ack{Status: protocol.AckAccepted}, true)
		if !errors.Is(err, broker.ErrOfferGone) { // superseded: workers meet such offers too
			s.must(err)
			return claim
		}
	}
}

// after lets time pass and waits for everything that is due by then.
func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// wants compares metrics with their expected values. "name{label=value}" names one; the value of a
// histogram is its count and its sum.
func (s *scene) wants(want map[string]string) {
	s.Helper()
	got := read(s.T, s.m.registry)
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			s.Errorf("%s is %q, want %q", name, got[name], want[name])
		}
	}
}

func read(t *testing.T, from prometheus.Gatherer) map[string]string {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, family := range families {
		for _, metric := range family.Metric {
			var labels []string
			for _, label := range metric.Label {
				labels = append(labels, label.GetName()+"="+label.GetValue())
			}
			name := family.GetName()
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			all[name] = value(metric)
		}
	}
	return all
}

func value(m *dto.Metric) string {
	switch {
	case m.Counter != nil:
		return fmt.Sprint(m.Counter.GetValue())
	case m.Gauge != nil:
		return fmt.Sprint(m.Gauge.GetValue())
	case m.Histogram != nil:
		return fmt.Sprintf("%d: %.3g", m.Histogram.GetSampleCount(), m.Histogram.GetSampleSum())
	}
	return "?"
}
