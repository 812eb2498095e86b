package bench

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/agenthandoff/handoff/broker"
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
