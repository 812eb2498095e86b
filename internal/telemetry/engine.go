package telemetry

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/schedule"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	// queuesCacheTTL is how long later scrapes reuse the status of the queues.
	queuesCacheTTL = 5 * time.Second
	// engineTimeout is how long a scrape waits for the engine: less than Prometheus's default
	// scrape timeout of 10 s, and more than the 4 s that a cluster waits for a node that is down
	// before it answers without that node.
	engineTimeout = 8 * time.Second
)

// engine answers for the metrics of queues and workers. broker.Broker implements it.
type engine interface {
	Directory(ctx context.Context) (*lifecycle.Directory, error)
	Queues(ctx context.Context) ([]broker.QueueStatus, error)
	Workspaces(ctx context.Context) ([]protocol.Workspace, error)
	KeyLimits() broker.KeyLimits
}

// Engine adds the metrics that are the same in every process: queues, and the workers of the
// directory. A scrape reads them from the engine, the queues at most once in five seconds. If
// the engine does not answer they are missing, and handoff_engine_up is 0.
func (m *Metrics) Engine(engine engine) {
	e := &engineCollector{engine: engine, agents: m.agents, now: time.Now, limits: map[string]bool{}}
	m.registry.MustRegister(&collector{[]*prometheus.Desc{upDesc, depthDesc, deliveredDesc, oldestDesc,
		workersDesc, slotsDesc, busyDesc, pollingDesc, drainingDesc, pausedDesc, breakerDesc, locksDesc,
		instantsDesc, lateDesc, signalsDesc, limitHeldDesc, limitWaitingDesc, limitPausedDesc}, e.collect})
}

type engineCollector struct {
	engine engine
	agents *agentLabeler
	now    func() time.Time

	mu     sync.Mutex // held during the request: scrapes that come meanwhile share its answer
	at     time.Time
	queues []broker.QueueStatus
	err    error
	locks  lockCounts
	limits map[string]bool // the keys with a limit that are exported by name
}

var (
	agentLabelNames = []string{"agent"}
	laneLabelNames  = []string{"agent", "lane"}
	limitLabelNames = []string{"key"}

	upDesc           = prometheus.NewDesc("handoff_engine_up", "1 if the engine answered this scrape, else 0.", nil, nil)
	depthDesc        = prometheus.NewDesc("handoff_queue_depth", "Offers of open handoffs that wait in an agent's queue. Supervisors remove the offer of a handoff that has closed or moved to another agent.", laneLabelNames, nil)
	deliveredDesc    = prometheus.NewDesc("handoff_queue_delivered", "Offers of an agent's queue that a worker has received and not finished.", laneLabelNames, nil)
	oldestDesc       = prometheus.NewDesc("handoff_queue_oldest_seconds", "How long the oldest undelivered offer of an agent's queue has waited; 0 where there is none.", laneLabelNames, nil)
	workersDesc      = prometheus.NewDesc("handoff_workers", "Present workers that accept new handoffs.", agentLabelNames, nil)
	slotsDesc        = prometheus.NewDesc("handoff_slots", "Handoffs that these workers can hold at a time.", agentLabelNames, nil)
	busyDesc         = prometheus.NewDesc("handoff_busy_slots", "Handoffs that these workers hold.", agentLabelNames, nil)
	pollingDesc      = prometheus.NewDesc("handoff_polling_holders", "Claims of a polling agent, and one more while its last poll is recent.", agentLabelNames, nil)
	drainingDesc     = prometheus.NewDesc("handoff_draining_workers", "Present workers that finish their handoffs and accept no new ones.", agentLabelNames, nil)
	pausedDesc       = prometheus.NewDesc("handoff_agent_paused", "1 if the agent is paused, else 0.", agentLabelNames, nil)
	breakerDesc      = prometheus.NewDesc("handoff_breaker_state", "Breaker of an agent that failed recently: 0 closed, 1 half-open, 2 open.", agentLabelNames, nil)
	locksDesc        = prometheus.NewDesc("handoff_locks", "Locks on paths of workflows: those that handoffs have, and those that they wait for.", []string{"state"}, nil)
	instantsDesc     = prometheus.NewDesc("handoff_schedule_instants_total", "Instants of a schedule by result: fired, refused, missed, or skipped because the previous handoff was open.", []string{"schedule", "result"}, nil)
	lateDesc         = prometheus.NewDesc("handoff_schedule_late_seconds", "How long no supervisor has fired a due instant of a schedule; 0 where none is over two minutes late.", []string{"schedule"}, nil)
	limitHeldDesc    = prometheus.NewDesc("handoff_limit_held", "Handoffs in work under a key with a limit, or about to be claimed.", limitLabelNames, nil)
	limitWaitingDesc = prometheus.NewDesc("handoff_limit_waiting", "Handoffs that wait for a key with a limit.", limitLabelNames, nil)
	limitPausedDesc  = prometheus.NewDesc("handoff_limit_paused", "1 if a key with a limit is paused because a provider throttles, else 0.", limitLabelNames, nil)
	signalsDesc      = prometheus.NewDesc("handoff_rule_signals_total", "Signals of a rule by result: fired, refused, unmatched (by its condition), or paused.", []string{"rule", "result"}, nil)
)

func (e *engineCollector) collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), engineTimeout)
	defer cancel()
	queues, err := e.cachedQueues(ctx)
	directory, directoryErr := e.engine.Directory(ctx)
	if err != nil || directoryErr != nil {
		to <- gaugeMetric(upDesc, 0)
		return
	}
	to <- gaugeMetric(upDesc, 1)
	all := sums{}
	e.collectQueues(all, queues, directory)
	e.collectAgents(all, directory)
	e.collectBreakers(all, directory)
	e.collectLimits(ctx, all)
	for of, value := range all {
		labels := []string{of.label}
		if of.lane != "" {
			labels = append(labels, string(of.lane))
		}
		to <- gaugeMetric(of.desc, value, labels...)
	}
	e.collectLocks(ctx, to)
	e.collectSchedules(to, directory)
	collectRules(to, directory)
}

// sums are the values of gauges. Several agents or keys may share a label.
type sums map[sample]float64

type sample struct {
	desc  *prometheus.Desc
	label string
	lane  protocol.Priority // empty: it has none
}

func (e *engineCollector) collectSchedules(to chan<- prometheus.Metric, directory *lifecycle.Directory) {
	for name, s := range directory.Schedules {
		to <- counterMetric(instantsDesc, int64(s.FiredCount), name, "fired")
		to <- counterMetric(instantsDesc, int64(s.RefusedCount), name, "refused")
		to <- counterMetric(instantsDesc, int64(s.MissedCount), name, "missed")
		to <- counterMetric(instantsDesc, int64(s.SkippedCount), name, "skipped")
		late := 0.0
		if since := schedule.LateSince(&s, e.now()); !since.IsZero() {
			late = e.now().Sub(since).Seconds()
		}
		to <- gaugeMetric(lateDesc, late, name)
	}
}

func collectRules(to chan<- prometheus.Metric, directory *lifecycle.Directory) {
	for name, r := range directory.Rules {
		to <- counterMetric(signalsDesc, int64(r.FiredCount), name, "fired")
		to <- counterMetric(signalsDesc, int64(r.RefusedCount), name, "refused")
		to <- counterMetric(signalsDesc, int64(r.UnmatchedCount), name, "unmatched")
		to <- counterMetric(signalsDesc, int64(r.PausedCount), name, "paused")
	}
}

// limitsMax is how many keys with a limit a process exports by name; further ones are counted as
// other. Their names may come from packages.
const limitsMax = 100

// collectLimits adds up the keys with a limit. They are missing where they cannot be read.
func (e *engineCollector) collectLimits(ctx context.Context, all sums) {
	keys, err := e.engine.KeyLimits().Statuses(ctx)
	if err != nil {
		return
	}
	for _, v := range keys {
		label := e.limitLabel(v.Key)
		all[sample{limitHeldDesc, label, ""}] += float64(v.Held)
		all[sample{limitWaitingDesc, label, ""}] += float64(v.Waiting)
		paused := sample{limitPausedDesc, label, ""}
		all[paused] = max(all[paused], boolValue(!v.PausedUntil.IsZero()))
	}
}

// limitLabel returns the label value of a key, which stays while the process lives.
func (e *engineCollector) limitLabel(key string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.limits[key] && len(e.limits) >= limitsMax {
		return other
	}
	e.limits[key] = true
	return key
}

func (e *engineCollector) label(agent string) string {
	return e.agents.label(agent, e.engine.Directory)
}

func gaugeMetric(desc *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}

// cachedQueues is the status of the queues, at most queuesCacheTTL old.
func (e *engineCollector) cachedQueues(ctx context.Context) ([]broker.QueueStatus, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.at.IsZero() || e.now().Sub(e.at) >= queuesCacheTTL {
		e.queues, e.err = e.engine.Queues(ctx)
		e.at = e.now()
	}
	return e.queues, e.err
}

// collectQueues adds up a sample for each lane of every registered agent, and one of each lane for
// all other agents together.
func (e *engineCollector) collectQueues(all sums, queues []broker.QueueStatus, directory *lifecycle.Directory) {
	for id := range directory.Agents {
		for _, lane := range protocol.Priorities {
			all.begin(e.label(id), lane, depthDesc, deliveredDesc, oldestDesc)
		}
	}
	for _, q := range queues {
		label := e.label(q.Agent)
		all[sample{depthDesc, label, q.Lane}] += float64(q.Depth - q.Delivered)
		all[sample{deliveredDesc, label, q.Lane}] += float64(q.Delivered)
		oldest := sample{oldestDesc, label, q.Lane}
		if all[oldest] += 0; !q.Waiting.IsZero() {
			all[oldest] = max(all[oldest], e.now().Sub(q.Waiting).Seconds())
		}
	}
}

// begin makes samples that are 0 if nothing is added to them.
func (s sums) begin(label string, lane protocol.Priority, descs ...*prometheus.Desc) {
	for _, desc := range descs {
		s[sample{desc, label, lane}] += 0
	}
}

// collectAgents adds up the workers and slots of agents.
func (e *engineCollector) collectAgents(all sums, directory *lifecycle.Directory) {
	begin := func(agent string) string {
		label := e.label(agent)
		all.begin(label, "", workersDesc, slotsDesc, busyDesc, pollingDesc, drainingDesc, pausedDesc)
		return label
	}
	for id, profile := range directory.Agents {
		paused := sample{pausedDesc, begin(id), ""}
		all[paused] = max(all[paused], boolValue(profile.Paused))
	}
	for _, h := range directory.Holders {
		label := begin(h.Agent)
		switch {
		case h.Polling:
			all[sample{pollingDesc, label, ""}]++
		case h.Draining:
			all[sample{drainingDesc, label, ""}]++
		default:
			all[sample{workersDesc, label, ""}]++
			all[sample{slotsDesc, label, ""}] += float64(h.Slots)
			all[sample{busyDesc, label, ""}] += float64(h.Busy)
		}
	}
}

// breakerValues are the values of handoff_breaker_state.
var breakerValues = map[lifecycle.BreakerState]float64{lifecycle.BreakerClosed: 0, lifecycle.BreakerHalfOpen: 1, lifecycle.BreakerOpen: 2}

// collectBreakers adds a sample for each agent that has a health. Of agents that share a label the
// worst counts.
func (e *engineCollector) collectBreakers(all sums, directory *lifecycle.Directory) {
	for id, h := range directory.Health {
		state, _ := lifecycle.Breaker(h.Health, directory.BreakerPolicy(id), e.now())
		worst := sample{breakerDesc, e.label(id), ""}
		all[worst] = max(all[worst], breakerValues[state])
	}
}

const (
	// agentsMax is how many agents one process exports by name. Each has about a hundred
	// series, so it bounds the size of a scrape.
	agentsMax = 500
	// other is the label of every other agent: beyond AgentsMax, not registered, or empty.
	other = "other"
)

// directory reads the directory that names of agents are checked against; broker.Broker has one.
type directory func(context.Context) (*lifecycle.Directory, error)

// directoryTimeout bounds a read of the directory. Only the first one may block.
const directoryTimeout = 2 * time.Second

// agentLabeler turns names of agents into label values: at most AgentsMax, and Other. A label
// value stays while the process lives, as its counters do, even if the directory loses the agent.
type agentLabeler struct {
	mu    sync.RWMutex
	known map[string]bool
}

// label is the label value of an agent.
func (a *agentLabeler) label(name string, read directory) string {
	a.mu.RLock()
	known, full := a.known[name], len(a.known) >= agentsMax
	a.mu.RUnlock()
	if known {
		return name
	}
	if name == "" || full {
		return other
	}
	ctx, cancel := context.WithTimeout(context.Background(), directoryTimeout)
	defer cancel()
	directory, err := read(ctx)
	if err != nil {
		return other
	}
	if _, registered := directory.Agent(name); !registered {
		return other
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.known) >= agentsMax && !a.known[name] {
		return other
	}
	a.known[name] = true
	return name
}

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
