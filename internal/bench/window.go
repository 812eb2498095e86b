package bench

import (
	"context"
	"errors"
	"os"
	"runtime"
	"runtime/pprof"
	"time"

	"github.com/agenthandoff/handoff/broker/jetstream"
)

// window is a running measurement.
type window struct {
	r         *round
	profile   *os.File
	at        time.Time
	usage     usage
	memory    runtime.MemStats
	counters  engineCounters
	submitted int64
	completed int64 // before the window: each completion beyond these is in it
}

func (r *round) beginWindow(ctx context.Context) (w *window, err error) {
	w = &window{r: r}
	if r.cfg.Profile != "" && r.n == 1 {
		if w.profile, err = os.Create(r.cfg.Profile); err != nil {
			return nil, err
		}
		if err := pprof.StartCPUProfile(w.profile); err != nil {
			return nil, err
		}
	}
	if w.counters, err = r.readCounters(ctx); err != nil {
		return nil, err
	}
	if r.cfg.N > 0 {
		r.cfg.progressf("measuring %d handoffs", r.cfg.N)
	} else {
		r.cfg.progressf("measuring for %v", r.cfg.Duration)
	}
	runtime.ReadMemStats(&w.memory)
	w.usage = readUsage()
	w.submitted = r.rec.submitted.Load()
	w.at = time.Now()
	r.rec.measuring.Store(true)
	if _, err := r.setMeasuring(ctx, true); err != nil {
		return nil, err
	}
	w.completed = r.rec.completed.Load()
	if r.cfg.N > 0 && r.cfg.Warmup > 0 {
		r.subs.remaining.Store(int64(r.cfg.N))
	}
	return w, nil
}

func (w *window) end(ctx context.Context) (Figures, error) {
	r := w.r
	r.rec.measuring.Store(false)
	took := time.Since(w.at)
	workersCPU, workersBytes, err := r.collectMeasurements(ctx)
	if err != nil {
		return Figures{}, err
	}
	n := r.rec.inWindow.Load()
	submitted := r.rec.submitted.Load() - w.submitted
	used := readUsage()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	counters, err := r.readCounters(ctx)
	err = errors.Join(err, w.writeProfiles())
	if err != nil {
		return Figures{}, err
	}
	if n == 0 {
		return Figures{}, errors.New("no handoff completed in the window")
	}
	each := func(delta float64) float64 { return delta / float64(n) }
	return Figures{
		Handoffs: n, Seconds: took.Seconds(), PerSecond: perSecond(n, took), SubmittedPerSecond: perSecond(submitted, took), Deferred: r.rec.deferred.Load(), Latency: r.rec.latencies(),
		CPUPerHandoff:    each(float64((used.cpu - w.usage.cpu + workersCPU).Nanoseconds()) / 1000),
		AllocsPerHandoff: each(float64(memory.Mallocs - w.memory.Mallocs)), AllocBytes: each(float64(memory.TotalAlloc - w.memory.TotalAlloc)),
		Engine: r.engineFigures(w.counters, counters, each),
		Memory: Memory{PeakBytes: used.peakBytes, HeapBytes: memory.HeapAlloc, WorkersBytes: workersBytes},
	}, nil
}

// collectMeasurements ends the measurement of the worker processes, and adds up their figures.
func (r *round) collectMeasurements(ctx context.Context) (cpu time.Duration, peak int64, err error) {
	all, err := r.setMeasuring(ctx, false)
	for _, m := range all {
		cpu += m.CPU
		peak += m.PeakBytes
		err = errors.Join(err, r.rec.merge(m))
	}
	return cpu, peak, err
}

// writeProfiles writes the profiles of the configuration.
func (w *window) writeProfiles() (err error) {
	if w.profile != nil {
		pprof.StopCPUProfile()
		err = w.profile.Close()
	}
	if w.r.cfg.MemProfile == "" || w.r.n != 1 {
		return err
	}
	f, failed := os.Create(w.r.cfg.MemProfile)
	if failed != nil {
		return errors.Join(err, failed)
	}
	return errors.Join(err, pprof.Lookup("allocs").WriteTo(f, 0), f.Close())
}

// engineFigures computes the work of the engine for each handoff between two readings.
func (r *round) engineFigures(before, after engineCounters, each func(float64) float64) EngineFigures {
	stored := func(stream string) float64 {
		return each(float64(after.streams[stream].LastSeq - before.streams[stream].LastSeq))
	}
	s := EngineFigures{
		Appends: stored(jetstream.LedgerStream), Offers: stored(jetstream.WorkStream), Timers: stored(jetstream.TimerStream),
		LedgerBytes: each(float64(after.streams[jetstream.LedgerStream].Bytes - before.streams[jetstream.LedgerStream].Bytes)),
		FirstBytes:  r.sizes.appendBytes, OfferBytes: r.sizes.offerBytes,
		OffersDelivered:  each(float64(after.deliveries.Offers - before.deliveries.Offers)),
		EntriesDelivered: each(float64(after.deliveries.Entries - before.deliveries.Entries)),
		WakeUpsDelivered: each(float64(after.deliveries.WakeUps - before.deliveries.WakeUps)),
		InMessages:       each(float64(after.node.InMessages - before.node.InMessages)),
		OutMessages:      each(float64(after.node.OutMessages - before.node.OutMessages)),
		InBytes:          each(float64(after.node.InBytes - before.node.InBytes)),
		OutBytes:         each(float64(after.node.OutBytes - before.node.OutBytes)),
	}
	for name := range after.streams {
		s.Messages += stored(name)
	}
	s.Other = s.Messages - s.Appends - s.Offers - s.Timers
	return s
}
