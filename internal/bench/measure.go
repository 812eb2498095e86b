package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/bench/bare"
	"github.com/agenthandoff/handoff/protocol"
)

// clock gives instants in Unix nanoseconds that never run backwards: within a process they
// follow its monotonic clock.
type clock struct{ base time.Time }

func newClock() clock { return clock{time.Now()} }

func (c clock) now() int64 { return c.base.UnixNano() + int64(time.Since(c.base)) }

// The task id of a package is its intended instant, so that the appending process knows where
// its latency begins without a table of all handoffs.

const instantPrefix = "bench-"

func instantID(at int64) string {
	id := strconv.FormatInt(at, 16)
	return instantPrefix + "0000000000000000"[len(id):] + id // all of one length
}

func instantOf(s protocol.State) (int64, bool) {
	if len(s.TaskID) != len(instantPrefix)+16 {
		return 0, false
	}
	at, err := strconv.ParseInt(s.TaskID[len(instantPrefix):], 16, 64)
	return at, err == nil
}

// histogram is a histogram of latencies in nanoseconds, for many goroutines.
type histogram struct {
	mu   sync.Mutex
	hist *hdrhistogram.Histogram
}

// The range and the precision of recorded latencies.
const (
	latencyMin    = int64(time.Microsecond / 10)
	latencyMax    = int64(time.Hour)
	latencyDigits = 3
)

func newHistogram() *histogram {
	return &histogram{hist: hdrhistogram.New(latencyMin, latencyMax, latencyDigits)}
}

func (t *histogram) record(nanoseconds int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.hist.RecordValue(min(max(nanoseconds, latencyMin), latencyMax))
}

// Latency has the percentiles of a latency in microseconds.
type Latency struct {
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
	Count int64   `json:"count"`
}

func (t *histogram) latency() Latency {
	t.mu.Lock()
	defer t.mu.Unlock()
	us := func(nanoseconds int64) float64 { return float64(nanoseconds/100) / 10 }
	return Latency{
		P50: us(t.hist.ValueAtPercentile(50)), P90: us(t.hist.ValueAtPercentile(90)), P99: us(t.hist.ValueAtPercentile(99)),
		Max: us(t.hist.Max()), Count: t.hist.TotalCount(),
	}
}

// The names of latencies, in the order they are shown.
const (
	Submit           = "submit"
	SubmitToClaim    = "submit_to_claim"
	SubmitToComplete = "submit_to_complete"
	Status           = "status"
	StatusStored     = "status_stored"               // of stored handoffs, at random
	DeferredClaim    = "deferred_submit_to_claim"    // of handoffs that were deferred once
	DeferredComplete = "deferred_submit_to_complete" // the same
	Lateness         = "lateness"                    // of the schedule itself, at a fixed rate
)

// Latencies lists all names of latencies in the order they are shown.
var Latencies = []string{Submit, SubmitToClaim, SubmitToComplete, Status, StatusStored, DeferredClaim, DeferredComplete, Lateness}

// recorder records the latencies of one run. As a broker.Observer it sees acknowledged
// appends. It records only within a measurement window.
type recorder struct {
	clock      clock
	source     string
	measuring  atomic.Bool
	histograms map[string]*histogram

	submitted atomic.Int64 // submissions that returned
	completed atomic.Int64 // completing appends that are acknowledged
	inWindow  atomic.Int64 // of these, those within the window
	deferred  atomic.Int64 // deferrals appended within the window
	conflicts atomic.Int64

	// onCompleted is called after every completion.
	onCompleted func()
}

func newRecorder(c clock, source string) *recorder {
	r := &recorder{clock: c, source: source, histograms: map[string]*histogram{}, onCompleted: func() {}}
	for _, name := range Latencies {
		r.histograms[name] = newHistogram()
	}
	return r
}

// recordSince records the time from an instant until now.
func (r *recorder) recordSince(name string, from int64) {
	if r.measuring.Load() {
		r.histograms[name].record(r.clock.now() - from)
	}
}

// Appended implements broker.Observer.
func (r *recorder) Appended(_ context.Context, _ protocol.State, after broker.Head, events []protocol.Event) {
	if after.State.Source != r.source {
		return
	}
	for _, e := range events {
		switch e.EventType() {
		case protocol.EventAccepted:
			r.recordAppend(after.State, SubmitToClaim, DeferredClaim)
		case protocol.EventCompleted:
			r.recordAppend(after.State, SubmitToComplete, DeferredComplete)
			r.completed.Add(1)
			if r.measuring.Load() {
				r.inWindow.Add(1)
			}
			r.onCompleted()
		case protocol.EventConditioned:
			if r.measuring.Load() {
				r.deferred.Add(1)
			}
		}
	}
}

func (r *recorder) recordAppend(s protocol.State, name, deferred string) {
	from, ok := instantOf(s)
	if !ok {
		return
	}
	if s.ConditionRounds > 0 {
		name = deferred
	}
	r.recordSince(name, from)
}

// Conflicted implements broker.Observer.
func (r *recorder) Conflicted(context.Context, string) { r.conflicts.Add(1) }

func (r *recorder) latencies() map[string]Latency {
	all := map[string]Latency{}
	for name, t := range r.histograms {
		if l := t.latency(); l.Count > 0 {
			all[name] = l
		}
	}
	return all
}

// Report is the result of a run of one or more rounds. Its figures are those of the round with
// the median throughput; Ratio is the median of the ratios of all rounds.
type Report struct {
	System  string          `json:"system"` // handoff
	Run     string          `json:"run"`    // the agents of round 1 are bench-<run>-1-1 and so on
	Config  EffectiveConfig `json:"config"`
	Machine Machine         `json:"machine"`
	Figures
	Baseline *baseline `json:"baseline,omitempty"`
	// Ratio is the throughput as a share of the bare engine's.
	Ratio float64 `json:"ratio,omitempty"`
	// RatioFollowed is that of the bare engine with a follower.
	RatioFollowed float64 `json:"ratio_followed,omitempty"`
	Rounds        []Round `json:"rounds,omitempty"` // where there are several
	Ways          []Way   `json:"ways,omitempty"`   // where there are several: the medians of each
}

// Round is the result of one round.
type Round struct {
	Figures
	Baseline      *baseline `json:"baseline,omitempty"`
	Ratio         float64   `json:"ratio,omitempty"`
	RatioFollowed float64   `json:"ratio_followed,omitempty"`
}

// EffectiveConfig is the configuration of a run with all defaults filled in.
type EffectiveConfig struct {
	Engine          string   `json:"engine"` // embedded, or connected
	Fsync           string   `json:"fsync,omitempty"`
	Replicas        int      `json:"replicas"`
	SizeBytes       int      `json:"size_bytes,omitempty"`
	Submitters      int      `json:"submitters"`
	Slots           int      `json:"slots"`
	Agents          int      `json:"agents"`
	RatePerSecond   float64  `json:"rate_per_second,omitempty"` // 0 is a closed loop
	Open            int      `json:"open_max"`
	N               int      `json:"n,omitempty"`
	DurationSeconds float64  `json:"duration_seconds,omitempty"`
	WarmupSeconds   float64  `json:"warmup_seconds"`
	DeferredShare   float64  `json:"deferred_share"`
	ProbesPerSecond int      `json:"probes_per_second"`
	Index           bool     `json:"index"`
	Stored          int      `json:"stored"`
	Rounds          int      `json:"rounds"`
	Via             []string `json:"via"`
}

// Machine describes the machine of a run.
type Machine struct {
	CPUs int    `json:"cpus"`
	OS   string `json:"os"`
	Arch string `json:"arch"`
	Go   string `json:"go"`
}

// Figures are the result of one measurement.
type Figures struct {
	Handoffs  int64   `json:"handoffs"` // completed in the window
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"per_second"`
	// SubmittedPerSecond counts the submissions that have returned.
	SubmittedPerSecond float64            `json:"submitted_per_second"`
	Deferred           int64              `json:"deferred"`
	Latency            map[string]Latency `json:"latency_us"`
	CPUPerHandoff      float64            `json:"cpu_us_per_handoff"` // of this process, with an engine in it
	AllocsPerHandoff   float64            `json:"allocs_per_handoff"` // of this process
	AllocBytes         float64            `json:"alloc_bytes_per_handoff"`
	Engine             EngineFigures      `json:"engine"`
	Memory             Memory             `json:"memory"`
	Proof              Proof              `json:"proof"`
}

// EngineFigures is the work of the engine for one handoff, on average.
type EngineFigures struct {
	Appends float64 `json:"ledger_appends_per_handoff"`
	Offers  float64 `json:"offers_per_handoff"`
	Timers  float64 `json:"timer_messages_per_handoff"` // armed, fired and announced
	Other   float64 `json:"other_messages_per_handoff"` // beats, bodies
	// Messages is the sum of them.
	Messages    float64 `json:"stored_messages_per_handoff"`
	LedgerBytes float64 `json:"ledger_bytes_per_handoff"`
	// FirstBytes and OfferBytes are the sizes of the first append and the first offer of a
	// handoff, measured before the workers start.
	FirstBytes float64 `json:"first_append_bytes"`
	OfferBytes float64 `json:"offer_bytes"`

	OffersDelivered  float64 `json:"offers_delivered_per_handoff"`
	EntriesDelivered float64 `json:"ledger_entries_delivered_per_handoff"`
	WakeUpsDelivered float64 `json:"wake_ups_delivered_per_handoff"`

	// All traffic of clients; only of nodes in this process.
	InMessages  float64 `json:"in_messages_per_handoff,omitempty"`
	OutMessages float64 `json:"out_messages_per_handoff,omitempty"`
	InBytes     float64 `json:"in_bytes_per_handoff,omitempty"`
	OutBytes    float64 `json:"out_bytes_per_handoff,omitempty"`
}

// Memory is the memory of this process, with an engine in it.
type Memory struct {
	PeakBytes int64  `json:"peak_rss_bytes"` // since the process began
	HeapBytes uint64 `json:"heap_bytes"`     // at the end of the window
}

// baseline has the figures of the bare engine after a round.
type baseline struct {
	Bare     bareFigures  `json:"bare"`
	Followed *bareFigures `json:"followed,omitempty"` // with a follower of the ledger
}

// bareFigures are the result of a run of the bare engine.
type bareFigures struct {
	Handoffs      int64   `json:"handoffs"`
	Seconds       float64 `json:"seconds"`
	PerSecond     float64 `json:"per_second"`
	Complete      Latency `json:"submit_to_complete_us"`
	CPUPerHandoff float64 `json:"cpu_us_per_handoff"`
	Appends       float64 `json:"ledger_appends_per_handoff"`
	Offers        float64 `json:"offers_per_handoff"`
	LedgerBytes   float64 `json:"ledger_bytes_per_handoff"`
}

func (c Config) effective() EffectiveConfig {
	s := EffectiveConfig{Engine: "embedded", Fsync: string(c.Fsync), Replicas: c.Replicas, SizeBytes: c.Size, Submitters: c.Submitters,
		Slots: c.Slots, Agents: c.Agents, RatePerSecond: c.Rate, Open: c.Open, N: c.N, DurationSeconds: c.Duration.Seconds(), WarmupSeconds: c.Warmup.Seconds(),
		DeferredShare: c.Deferred, ProbesPerSecond: c.Probes, Index: c.Index, Stored: c.Stored, Rounds: c.Rounds, Via: c.Via}
	if c.Connect != nil {
		s.Engine, s.Fsync = "connected", "" // its sync policy is not known
	}
	if c.N > 0 {
		s.DurationSeconds = 0
	}
	return s
}

func thisMachine() Machine {
	return Machine{CPUs: runtime.GOMAXPROCS(0), OS: runtime.GOOS, Arch: runtime.GOARCH, Go: runtime.Version()}
}

// summarize fills in the report from the rounds of each way.
func (r *Report) summarize(ways [][]Round) {
	rounds := ways[0]
	byRate := slices.Clone(rounds)
	slices.SortFunc(byRate, func(a, b Round) int { return cmp.Compare(a.PerSecond, b.PerSecond) })
	middle := byRate[(len(byRate)-1)/2]
	r.Figures, r.Baseline = middle.Figures, middle.Baseline
	r.Ratio = median(rounds, func(r Round) float64 { return r.Ratio })
	r.RatioFollowed = median(rounds, func(r Round) float64 { return r.RatioFollowed })
	if len(rounds) > 1 {
		r.Rounds = rounds
	}
	if len(ways) == 1 {
		return
	}
	for i, rounds := range ways {
		way := Way{Via: r.Config.Via[i], PerSecond: median(rounds, func(r Round) float64 { return r.PerSecond }),
			CPUPerHandoff:    median(rounds, func(r Round) float64 { return r.CPUPerHandoff }),
			AllocsPerHandoff: median(rounds, func(r Round) float64 { return r.AllocsPerHandoff })}
		r.Ways = append(r.Ways, way)
		r.Ways[i].CPURatio = way.CPUPerHandoff / r.Ways[0].CPUPerHandoff
	}
}

func median(rounds []Round, of func(Round) float64) float64 {
	var all []float64
	for _, round := range rounds {
		all = append(all, of(round))
	}
	slices.Sort(all)
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}

func perSecond(n int64, took time.Duration) float64 {
	if took <= 0 {
		return 0
	}
	return float64(n) / took.Seconds()
}

// runBaseline runs the bare engine twice with the load of the round: alone, and with a follower
// of the ledger. Each run stores messages of the sizes that the round measured, on a fresh
// engine of the same kind.
func (r *Round) runBaseline(ctx context.Context, cfg Config) error {
	alone, err := runBare(ctx, cfg, r.Figures, false)
	if err != nil {
		return err
	}
	followed, err := runBare(ctx, cfg, r.Figures, true)
	if err != nil {
		return err
	}
	r.Baseline = &baseline{Bare: alone, Followed: &followed}
	r.Ratio, r.RatioFollowed = r.PerSecond/alone.PerSecond, r.PerSecond/followed.PerSecond
	return nil
}

func runBare(ctx context.Context, cfg Config, like Figures, follow bool) (_ bareFigures, err error) {
	label := "the bare engine"
	if follow {
		label += " with a follower"
	}
	cfg.progressf("%s", label)
	runtime.GC() // the garbage of the run before is not charged to this one
	d, err := openDeployment(ctx, cfg, "")
	if err != nil {
		return bareFigures{}, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	var atStart, atEnd usage
	laterBytes := 0.0
	if like.Engine.Appends > 1 {
		laterBytes = (like.Engine.LedgerBytes - like.Engine.FirstBytes) / (like.Engine.Appends - 1)
	}
	b := bare.Config{
		Submitters: cfg.Submitters, Slots: cfg.Slots, Agents: cfg.Agents, Open: cfg.Open,
		Duration: cfg.Duration, N: cfg.N, Warmup: cfg.Warmup, Drain: cfg.Drain,
		Appends: max(like.Engine.Appends, 1), FirstBytes: like.Engine.FirstBytes, LaterBytes: laterBytes, OfferBytes: like.Engine.OfferBytes,
		Follow: follow,
		Begin:  func() { atStart = readUsage() },
		End:    func() { atEnd = readUsage() },
	}
	if cfg.N > 0 {
		b.Duration = 0
	}
	for _, node := range d.nodes() {
		b.Nodes = append(b.Nodes, node)
	}
	f, err := bare.Run(ctx, b)
	if err != nil {
		return bareFigures{}, fmt.Errorf("%s: %w", label, err)
	}
	if f.Handoffs == 0 {
		return bareFigures{}, fmt.Errorf("%s: nothing completed in the window", label)
	}
	return bareFigures{
		Handoffs: f.Handoffs, Seconds: f.Took.Seconds(), PerSecond: perSecond(f.Handoffs, f.Took),
		Complete:      (&histogram{hist: f.Complete}).latency(),
		CPUPerHandoff: float64((atEnd.cpu - atStart.cpu).Nanoseconds()) / float64(time.Microsecond) / float64(f.Handoffs),
		Appends:       f.Appends, Offers: f.Offers, LedgerBytes: f.LedgerBytes,
	}, nil
}
