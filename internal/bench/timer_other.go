//go:build !linux

package bench

import "time"

// preciseTimer sleeps as exactly as the runtime does.
type preciseTimer struct{}

func newPreciseTimer() preciseTimer { return preciseTimer{} }

func (preciseTimer) sleep(d time.Duration) { time.Sleep(d) }

func (preciseTimer) close() {}
