package telemetry

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

const (
	// worldEvery is how often the engine is asked how its queues stand, however
	// often the figures are read.
	worldEvery = 5 * time.Second
	// worldPatience is how long a reading of the figures waits for that: less than
	// the 10 s that Prometheus gives by default, and more than the 4 s that a
	// cluster waits for a node that is down before it answers without it.
	worldPatience = 8 * time.Second
)

// Engine is what the figures of queues and workers are read from. broker.Engine
// satisfies it.
type Engine interface {
	Directory(ctx context.Context) (*lifecycle.Directory, error)
	Queues(ctx context.Context) ([]broker.QueueStatus, error)
}

// World adds the figures that are the same in every process: queues, and the workers of the
// directory. It asks the engine for them when they are read, at most once in five seconds. An engine that does not answer takes them away, and
// makes handoff_engine_up 0.
func (m *Metrics) World(engine Engine) {
	m.registry.MustRegister(&world{engine: engine, agents: m.agents, now: time.Now})
}

type world struct {
	engine Engine
	agents *agents
	now    func() time.Time

	mu     sync.Mutex // held while the engine is asked: who comes meanwhile gets the same
	at     time.Time
	queues []broker.QueueStatus
	err    error
}

var (
	agentLabels = []string{"agent"}
	laneLabels  = []string{"agent", "lane"}

	upDesc        = prometheus.NewDesc("handoff_engine_up", "1 if the engine answered when these figures were read, else 0.", nil, nil)
	depthDesc     = prometheus.NewDesc("handoff_queue_depth", "Offers of open handoffs that wait in an agent's queue. Supervisors take out an offer at once whose handoff closed or went elsewhere.", laneLabels, nil)
	deliveredDesc = prometheus.NewDesc("handoff_queue_delivered", "Offers of an agent's queue that a worker has received and not finished.", laneLabels, nil)
	oldestDesc    = prometheus.NewDesc("handoff_queue_oldest_seconds", "How long the oldest undelivered offer of an agent's queue has waited; 0 where there is none.", laneLabels, nil)
	workersDesc   = prometheus.NewDesc("handoff_workers", "Workers alive that take new handoffs.", agentLabels, nil)
	slotsDesc     = prometheus.NewDesc("handoff_slots", "Handoffs that those workers can have in hand at a time.", agentLabels, nil)
	busyDesc      = prometheus.NewDesc("handoff_busy_slots", "Handoffs that those workers have in hand.", agentLabels, nil)
	pollingDesc   = prometheus.NewDesc("handoff_polling_holders", "Claims of an agent that polls, and one more while it has polled within its patience.", agentLabels, nil)
	drainingDesc  = prometheus.NewDesc("handoff_draining_workers", "Workers alive that finish what they have and take nothing new.", agentLabels, nil)
	pausedDesc    = prometheus.NewDesc("handoff_agent_paused", "1 if the agent is paused, else 0.", agentLabels, nil)
)

// Describe implements prometheus.Collector.
func (w *world) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{upDesc, depthDesc, deliveredDesc, oldestDesc,
		workersDesc, slotsDesc, busyDesc, pollingDesc, drainingDesc, pausedDesc} {
		to <- desc
	}
}

// Collect implements prometheus.Collector.
func (w *world) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), worldPatience)
	defer cancel()
	queues, err := w.ask(ctx)
	directory, directoryErr := w.engine.Directory(ctx)
	if err != nil || directoryErr != nil {
		to <- gauge(upDesc, 0)
		return
	}
	to <- gauge(upDesc, 1)
	w.collectQueues(to, queues, directory)
	w.collectAgents(to, directory)
}

func (w *world) label(agent string) string { return w.agents.label(agent, w.engine.Directory) }

func gauge(desc *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}

// ask asks how the queues stand, or remembers.
func (w *world) ask(ctx context.Context) ([]broker.QueueStatus, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.at.IsZero() || w.now().Sub(w.at) >= worldEvery {
		w.queues, w.err = w.engine.Queues(ctx)
		w.at = w.now()
	}
	return w.queues, w.err
}

type laneKey struct {
	agent string
	lane  protocol.Priority
}

// collectQueues has a row for each lane of every agent that is known, empty ones
// too, and one for all the others together.
func (w *world) collectQueues(to chan<- prometheus.Metric, queues []broker.QueueStatus, directory *lifecycle.Directory) {
	lanes := map[laneKey]broker.QueueStatus{}
	for id := range directory.Agents {
		for _, lane := range protocol.Priorities {
			lanes[laneKey{w.label(id), lane}] = broker.QueueStatus{}
		}
	}
	for _, q := range queues {
		key := laneKey{w.label(q.Agent), q.Lane}
		sum := lanes[key]
		sum.Depth += q.Depth
		sum.Delivered += q.Delivered
		if !q.Waiting.IsZero() && (sum.Waiting.IsZero() || q.Waiting.Before(sum.Waiting)) {
			sum.Waiting = q.Waiting
		}
		lanes[key] = sum
	}
	for key, q := range lanes {
		age := time.Duration(0)
		if !q.Waiting.IsZero() {
			age = max(0, w.now().Sub(q.Waiting))
		}
		to <- gauge(depthDesc, float64(q.Depth-q.Delivered), key.agent, string(key.lane))
		to <- gauge(deliveredDesc, float64(q.Delivered), key.agent, string(key.lane))
		to <- gauge(oldestDesc, age.Seconds(), key.agent, string(key.lane))
	}
}

// presence counts who serves an agent.
type presence struct{ workers, slots, busy, polling, draining, paused int }

func (w *world) collectAgents(to chan<- prometheus.Metric, directory *lifecycle.Directory) {
	all := map[string]presence{}
	for id, profile := range directory.Agents {
		label := w.label(id)
		p := all[label]
		if profile.Paused {
			p.paused = 1
		}
		all[label] = p
	}
	for _, h := range directory.Holders {
		label := w.label(h.Agent)
		p := all[label]
		switch {
		case h.Polling:
			p.polling++
		case h.Draining:
			p.draining++
		default:
			p.workers++
			p.slots += h.Slots
			p.busy += h.Busy
		}
		all[label] = p
	}
	for label, p := range all {
		to <- gauge(workersDesc, float64(p.workers), label)
		to <- gauge(slotsDesc, float64(p.slots), label)
		to <- gauge(busyDesc, float64(p.busy), label)
		to <- gauge(pollingDesc, float64(p.polling), label)
		to <- gauge(drainingDesc, float64(p.draining), label)
		to <- gauge(pausedDesc, float64(p.paused), label)
	}
}
