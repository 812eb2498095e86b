package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// A system is the library that is measured, with its workers running. Its
// handlers call bench.handle, and bench.acknowledged once the store has it.
type system interface {
	// submit returns when the store has acknowledged all of them.
	submit(ctx context.Context, handoffs []handoff) error
	// cleanly ends the workers, waiting for what they hold.
	stop(ctx context.Context)
}

type handoff struct {
	seq     uint64
	payload string
}

// record holds the instants of one handoff, in nanoseconds since the bench was
// made, zero meaning not yet. The fields are written by the goroutine that sees it
// happen, which for some systems is before submit has returned.
type record struct {
	due          int64 // when submit was to begin
	submitted    atomic.Int64
	claimed      atomic.Int64 // its handler began, for the first time
	handled      atomic.Int64 // its handler returned, for the last time
	acknowledged atomic.Int64 // the store has that it is done
}

// bench drives one system and notes what happens to each handoff.
type bench struct {
	cfg     config
	start   time.Time
	filler  string
	records []record
	next    atomic.Uint64
	open    chan struct{} // a token for each handoff between submit and the end of its handler

	done   atomic.Uint64 // acknowledged
	failed atomic.Uint64
	reason atomic.Pointer[error] // of the first failure
}

func newBench(cfg config) *bench {
	filler := make([]byte, cfg.size-stampBytes)
	for i := range filler {
		filler[i] = 'a' + byte(rand.N(26))
	}
	return &bench{
		cfg:     cfg,
		start:   time.Now(),
		filler:  string(filler),
		records: make([]record, handoffsMax),
		open:    make(chan struct{}, cfg.open),
	}
}

func (b *bench) now() int64 { return int64(time.Since(b.start)) + 1 }

// seqOf is the number of the handoff that a payload, or what stands in for it,
// begins with.
func (b *bench) seqOf(stamp string) (uint64, error) {
	if len(stamp) < stampBytes {
		return 0, fmt.Errorf("%q does not begin with the number of a handoff", stamp)
	}
	seq, err := strconv.ParseUint(stamp[:stampBytes], 16, 64)
	if err != nil {
		return 0, err
	}
	if seq >= b.next.Load() {
		return 0, fmt.Errorf("handoff %d is not of this run: is the store empty?", seq)
	}
	return seq, nil
}

// handle is what a handler does: nothing, but once in a while it asks to be
// called again in a second.
func (b *bench) handle(stamp string) (deferIt bool) {
	now := b.now()
	seq, err := b.seqOf(stamp)
	if err != nil {
		b.fail(err)
		return false
	}
	r := &b.records[seq]
	first := r.claimed.CompareAndSwap(0, now)
	if first {
		// One that is put off leaves its place to another: it must not hold up
		// the submitters of a system for as long as it sleeps.
		<-b.open
	}
	if first && b.cfg.isDeferred(seq) {
		return true
	}
	r.handled.Store(b.now())
	return false
}

// acknowledgedNow notes that the store has the end of a handoff.
func (b *bench) acknowledgedNow(stamp string) {
	now := b.now()
	seq, err := b.seqOf(stamp)
	if err != nil {
		b.fail(err)
		return
	}
	if b.records[seq].acknowledged.CompareAndSwap(0, now) {
		b.done.Add(1)
	}
}

func (b *bench) fail(err error) {
	b.failed.Add(1)
	b.reason.CompareAndSwap(nil, &err)
}

// failure is the first thing that went wrong, if anything did.
func (b *bench) failure() error {
	if why := b.reason.Load(); why != nil {
		return fmt.Errorf("%d times something failed, first: %w", b.failed.Load(), *why)
	}
	return nil
}

// submitAll lets the submitters submit until ctx ends.
func (b *bench) submitAll(ctx context.Context, to system) {
	var due <-chan int64
	if b.cfg.rate > 0 {
		due = b.instants(ctx)
	}
	var submitters sync.WaitGroup
	for range b.cfg.submitters {
		submitters.Go(func() {
			for b.submitOne(ctx, to, due) {
			}
		})
	}
	submitters.Wait()
}

// submitOne submits a batch, of one unless told otherwise, and says whether to
// go on.
func (b *bench) submitOne(ctx context.Context, to system, due <-chan int64) bool {
	for range b.cfg.batch {
		select {
		case b.open <- struct{}{}:
		case <-ctx.Done():
			return false
		}
	}
	at := b.now()
	if due != nil {
		var more bool
		if at, more = <-due; !more {
			return false
		}
	}
	if ctx.Err() != nil {
		return false
	}
	last := b.next.Add(uint64(b.cfg.batch))
	if last > handoffsMax {
		b.fail(fmt.Errorf("more than %d handoffs: measure for a shorter time", handoffsMax))
		return false
	}
	batch := make([]handoff, b.cfg.batch)
	for i := range batch {
		seq := last - uint64(b.cfg.batch-i)
		b.records[seq].due = at
		batch[i] = handoff{seq: seq, payload: fmt.Sprintf("%016x", seq) + b.filler}
	}
	// What was begun is ended: a submit that is cut off is neither in nor out.
	if err := to.submit(context.WithoutCancel(ctx), batch); err != nil {
		b.fail(fmt.Errorf("submit: %w", err))
		return false
	}
	now := b.now()
	for _, h := range batch {
		b.records[h.seq].submitted.Store(now)
	}
	return true
}

// instants says when each submit of an open loop is to begin. What no submitter takes
// in time is still due at its own instant, so a system that falls behind is
// charged for the wait.
func (b *bench) instants(ctx context.Context) <-chan int64 {
	due := make(chan int64, 1<<16)
	every := float64(time.Second) / b.cfg.rate
	begin := b.now()
	go func() {
		defer close(due)
		for i := 0; ; i++ {
			at := begin + int64(float64(i)*every)
			if wait := time.Duration(at - b.now()); wait > 0 {
				select {
				case <-time.After(wait):
				case <-ctx.Done():
					return
				}
			}
			select {
			case due <- at:
			case <-ctx.Done():
				return
			}
		}
	}()
	return due
}
