//go:build !linux

package bench

import "time"

// pace sleeps as exactly as the runtime does.
type pace struct{}

func newPace() pace { return pace{} }

func (pace) sleep(d time.Duration) { time.Sleep(d) }

func (pace) close() {}
