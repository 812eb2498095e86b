package bench

import (
	"cmp"
	"runtime"
	"slices"
	"time"
)

// Report is the result of a run of one or more rounds. Its figures are those of the round with
// the median throughput; Ratio is the median of the ratios of all rounds.
type Report struct {
	System  string          `json:"system"` // handoff
	Run     string          `json:"run"`    // the agents of round 1 are bench-<run>-1-1 and so on
	Config  EffectiveConfig `json:"config"`
	Machine Machine         `json:"machine"`
	Figures
	Baseline *Baseline `json:"baseline,omitempty"`
	// Ratio is the throughput as a share of the bare engine's.
	Ratio float64 `json:"ratio,omitempty"`
	// RatioFollowed is that of the bare engine with a follower.
	RatioFollowed float64 `json:"ratio_followed,omitempty"`
	Rounds        []Round `json:"rounds,omitempty"` // where there are several
}

// Round is the result of one round.
type Round struct {
	Figures
	Baseline      *Baseline `json:"baseline,omitempty"`
	Ratio         float64   `json:"ratio,omitempty"`
	RatioFollowed float64   `json:"ratio_followed,omitempty"`
}

// EffectiveConfig is the configuration of a run with all defaults filled in.
type EffectiveConfig struct {
	Engine          string  `json:"engine"` // embedded, or connected
	Fsync           string  `json:"fsync,omitempty"`
	Replicas        int     `json:"replicas"`
	Packages        int     `json:"packages,omitempty"` // files; 0 are generated ones
	SizeBytes       int     `json:"size_bytes,omitempty"`
	Submitters      int     `json:"submitters"`
	Slots           int     `json:"slots"`
	Agents          int     `json:"agents"`
	Processes       int     `json:"workers_as_processes,omitempty"` // 0: the workers are in this process
	RatePerSecond   float64 `json:"rate_per_second,omitempty"`      // 0 is a closed loop
	Open            int     `json:"open_max"`
	N               int     `json:"n,omitempty"`
	DurationSeconds float64 `json:"duration_seconds,omitempty"`
	WarmupSeconds   float64 `json:"warmup_seconds"`
	DeferredShare   float64 `json:"deferred_share"`
	ProbesPerSecond int     `json:"probes_per_second"`
	Index           bool    `json:"index"`
	Stored          int     `json:"stored"`
	Rounds          int     `json:"rounds"`
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
	CPUPerHandoff      float64            `json:"cpu_us_per_handoff"` // of this process, with an engine in it, and of worker processes
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
	// WorkersBytes is the sum of the peaks of all worker processes.
	WorkersBytes int64 `json:"workers_peak_rss_bytes,omitempty"`
}

// Baseline has the figures of the bare engine after a round.
type Baseline struct {
	Bare     BareFigures  `json:"bare"`
	Followed *BareFigures `json:"followed,omitempty"` // with a follower of the ledger
}

// BareFigures are the result of a run of the bare engine.
type BareFigures struct {
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
	s := EffectiveConfig{Engine: "embedded", Fsync: string(c.Fsync), Replicas: c.Replicas, Packages: len(c.Packages), SizeBytes: c.Size, Submitters: c.Submitters,
		Slots: c.Slots, Agents: c.Agents, Processes: c.Processes, RatePerSecond: c.Rate, Open: c.Open, N: c.N, DurationSeconds: c.Duration.Seconds(), WarmupSeconds: c.Warmup.Seconds(),
		DeferredShare: c.Deferred, ProbesPerSecond: c.Probes, Index: c.Index, Stored: c.Stored, Rounds: c.Rounds}
	if c.Connect != nil {
		s.Engine, s.Fsync = "connected", "" // its sync policy is not known
	}
	if len(c.Packages) > 0 {
		s.SizeBytes = 0
	}
	if c.N > 0 {
		s.DurationSeconds = 0
	}
	return s
}

func thisMachine() Machine {
	return Machine{CPUs: runtime.GOMAXPROCS(0), OS: runtime.GOOS, Arch: runtime.GOARCH, Go: runtime.Version()}
}

// summarize fills in the report from its rounds.
func (r *Report) summarize(rounds []Round) {
	byRate := slices.Clone(rounds)
	slices.SortFunc(byRate, func(a, b Round) int { return cmp.Compare(a.PerSecond, b.PerSecond) })
	middle := byRate[(len(byRate)-1)/2]
	r.Figures, r.Baseline = middle.Figures, middle.Baseline
	median := func(of func(Round) float64) float64 {
		var all []float64
		for _, round := range rounds {
			all = append(all, of(round))
		}
		slices.Sort(all)
		return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
	}
	r.Ratio = median(func(r Round) float64 { return r.Ratio })
	r.RatioFollowed = median(func(r Round) float64 { return r.RatioFollowed })
	if len(rounds) > 1 {
		r.Rounds = rounds
	}
}

func perSecond(n int64, took time.Duration) float64 {
	if took <= 0 {
		return 0
	}
	return float64(n) / took.Seconds()
}
