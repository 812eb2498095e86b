package main

import (
	"errors"
	"flag"
	"time"
)

// handoffsMax bounds a run: beyond it the submitters stop. Each handoff has a
// record of 48 bytes.
const handoffsMax = 8 << 20

// The bounds that `handoff bench` has too: more than submitters and slots have in
// hand, and few enough that waiting in a queue is not what is measured; at a rate
// the queue may grow, and is to be seen.
const (
	openDefault     = 1_024
	openRateDefault = 100_000
)

// stampBytes is the length of the number of a handoff in hex, with which its
// payload begins.
const stampBytes = 16

// config is what all systems are measured with. The defaults are those of
// `handoff bench`.
type config struct {
	submitters int
	slots      int
	open       int
	size       int
	batch      int
	rate       float64
	deferred   float64
	result     bool
	warmup     time.Duration
	duration   time.Duration
	drain      time.Duration
	servers    pids

	// Flags is every flag as it was set or defaulted, for the record.
	Flags map[string]string
}

func (c *config) register(f *flag.FlagSet) {
	f.IntVar(&c.submitters, "submitters", 32, "that submit side by side, each waiting for its acknowledgement")
	f.IntVar(&c.slots, "slots", 64, "of workers: handlers that run side by side")
	f.IntVar(&c.open, "open", 0, "handoffs at most between submit and the end of their handler; 0 is 1,024, and 100,000 at a rate")
	f.IntVar(&c.size, "size", 1024, "of a payload in bytes")
	f.IntVar(&c.batch, "batch", 1, "handoffs that one submit carries (river: InsertManyFast)")
	f.Float64Var(&c.rate, "rate", 0, "handoffs a second, begun at fixed instants; 0 begins each when the one before is acknowledged")
	f.Float64Var(&c.deferred, "deferred", 0.01, "share whose first attempt puts them off by a second")
	f.BoolVar(&c.result, "result", false, "a handler leaves a small result in the store")
	f.DurationVar(&c.warmup, "warmup", 2*time.Second, "before the window")
	f.DurationVar(&c.duration, "duration", 30*time.Second, "of the window")
	f.DurationVar(&c.drain, "drain", 10*time.Second, "to wait at most, after the window, for what is open")
	f.Var(&c.servers, "server-pid", "processes whose time counts too, with what they start, commas between")
}

func (c *config) validate() error {
	switch {
	case c.submitters < 1 || c.submitters > 4096:
		return errors.New("-submitters is from 1 to 4096")
	case c.slots < 1 || c.slots > 10_000:
		return errors.New("-slots is from 1 to 10000")
	case c.size < stampBytes || c.size > 1<<20:
		return errors.New("-size is from 16 bytes to 1 MiB")
	case c.batch < 1 || c.batch > 1000:
		return errors.New("-batch is from 1 to 1000")
	case c.rate < 0 || c.rate > 1e6:
		return errors.New("-rate is from 0 to a million a second")
	case c.deferred < 0 || c.deferred > 1:
		return errors.New("-deferred is a share, from 0 to 1")
	case c.warmup < 0 || c.duration <= 0 || c.warmup+c.duration > time.Hour:
		return errors.New("-warmup and -duration are an hour at most, -duration more than nothing")
	case c.rate > 0 && c.batch > 1:
		return errors.New("-rate begins handoffs one by one: no -batch with it")
	}
	switch {
	case c.open == 0 && c.rate > 0:
		c.open = openRateDefault
	case c.open == 0:
		c.open = max(openDefault, 2*c.submitters*c.batch)
	}
	if c.open < c.submitters*c.batch {
		return errors.New("-open is less than the submitters hold: each one batch")
	}
	return nil
}

// isDeferred reports whether the handoff with this number is put off once: every
// hundredth at a share of 0.01.
func (c *config) isDeferred(seq uint64) bool {
	if c.deferred == 0 {
		return false
	}
	every := uint64(1/c.deferred + 0.5)
	return seq%every == 0
}
