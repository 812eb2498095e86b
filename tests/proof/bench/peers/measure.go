package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"
)

// result is what is printed: the form of `handoff bench -o json`.
type result struct {
	System    string            `json:"system"`
	Versions  map[string]string `json:"versions"`
	Config    map[string]string `json:"config"`
	Handoffs  uint64            `json:"handoffs"`
	Seconds   float64           `json:"seconds"`
	PerSecond float64           `json:"per_second"`
	// Unfinished are those begun in the window and not acknowledged when the
	// wait for them was over.
	Unfinished int             `json:"unfinished"`
	Latency    map[string]span `json:"latency_us"`
	CPU        float64         `json:"cpu_us_per_handoff"`
	CPUOwn     float64         `json:"cpu_own_us_per_handoff"`
	CPUServer  float64         `json:"cpu_server_us_per_handoff"`
	// Machine tells how much else there was on the processors during the window,
	// in shares of all their time: a run with much of others or stolen by the
	// host says little.
	Machine struct {
		Others float64 `json:"others"`
		Idle   float64 `json:"idle"`
		Stolen float64 `json:"stolen"`
	} `json:"machine"`
}

// span is a distribution in microseconds.
type span struct {
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
	Count int     `json:"count"`
}

// measure runs one system: warm-up, window, and a bounded wait for what is open
// after it.
func measure(ctx context.Context, name string, cfg config, open opener) (*result, error) {
	b := newBench(cfg)
	sys, err := open(ctx, b)
	if err != nil {
		return nil, err
	}
	defer sys.stop(context.WithoutCancel(ctx))

	submitting, stopSubmitting := context.WithTimeout(ctx, cfg.warmup+cfg.duration)
	defer stopSubmitting()
	begun := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		close(begun)
		b.submitAll(submitting, sys)
	}()
	<-begun

	if !wait(submitting, cfg.warmup) && cfg.warmup > 0 {
		<-ended
		return nil, errors.Join(ctx.Err(), b.failure())
	}
	from, before, err := b.mark()
	if err != nil {
		return nil, err
	}
	<-submitting.Done()
	to, after, err := b.mark()
	if err != nil {
		return nil, err
	}
	<-ended
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	b.awaitOpen(ctx)
	if err := b.failure(); err != nil {
		return nil, err
	}
	r := b.report(from, to)
	r.System = name
	r.Versions = versions()
	r.Config = cfg.Flags
	r.Config["go"] = runtime.Version()
	r.Config["gomaxprocs"] = fmt.Sprint(runtime.GOMAXPROCS(0))
	if r.Handoffs == 0 {
		return nil, errors.New("nothing was acknowledged in the window")
	}
	n := float64(r.Handoffs)
	r.CPUOwn = micros(int64(after.own-before.own)) / n
	r.CPUServer = micros(int64(after.server-before.server)) / n
	r.CPU = r.CPUOwn + r.CPUServer
	ours := after.own - before.own + after.server - before.server
	busy, idle, stolen := after.busy-before.busy, after.idle-before.idle, after.stolen-before.stolen
	all := float64(busy + idle + stolen)
	r.Machine.Others = float64(max(0, busy-ours)) / all
	r.Machine.Idle = float64(idle) / all
	r.Machine.Stolen = float64(stolen) / all
	return r, nil
}

// mark is the instant at an edge of the window, and the processor time that was
// used until then.
func (b *bench) mark() (int64, cpuTime, error) {
	now := b.now()
	used, err := usageNow(b.cfg.servers)
	return now, used, err
}

// wait returns false if ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// awaitOpen waits until all that was submitted is acknowledged, or the drain is
// over. Nothing signals the last one, so it looks every few milliseconds.
func (b *bench) awaitOpen(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.drain)
	defer cancel()
	for b.done.Load() < min(b.next.Load(), handoffsMax) && wait(ctx, 5*time.Millisecond) {
	}
}

// report counts as throughput what was acknowledged in the window, and gives
// the latencies of what was due in it, whenever it ended. Those that were put off
// stand apart: a second of theirs is not the system's.
func (b *bench) report(from, to int64) *result {
	r := &result{Seconds: time.Duration(to - from).Seconds(), Latency: map[string]span{}}
	took := map[string][]int64{}
	for seq := range min(b.next.Load(), handoffsMax) {
		h := &b.records[seq]
		acknowledged := h.acknowledged.Load()
		if acknowledged >= from && acknowledged < to {
			r.Handoffs++
		}
		if h.due < from || h.due >= to {
			continue
		}
		if acknowledged == 0 {
			r.Unfinished++
			continue
		}
		if b.cfg.isDeferred(seq) {
			took["deferred_submit_to_complete"] = append(took["deferred_submit_to_complete"], acknowledged-h.due)
			continue
		}
		took["submit"] = append(took["submit"], h.submitted.Load()-h.due)
		took["submit_to_claim"] = append(took["submit_to_claim"], h.claimed.Load()-h.due)
		took["submit_to_handled"] = append(took["submit_to_handled"], h.handled.Load()-h.due)
		took["submit_to_complete"] = append(took["submit_to_complete"], acknowledged-h.due)
	}
	r.PerSecond = float64(r.Handoffs) / r.Seconds
	for name, nanos := range took {
		r.Latency[name] = spanOf(nanos)
	}
	return r
}

func spanOf(nanos []int64) span {
	slices.Sort(nanos)
	at := func(share float64) float64 {
		return micros(nanos[min(len(nanos)-1, int(share*float64(len(nanos))))])
	}
	return span{P50: at(.50), P90: at(.90), P99: at(.99), Max: at(1), Count: len(nanos)}
}

func micros(nanos int64) float64 { return float64(nanos) / 1e3 }
