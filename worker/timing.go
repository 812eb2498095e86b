package worker

import (
	"cmp"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Limits and defaults of a worker's beats.
const (
	LeaseDefault  = time.Duration(protocol.LeaseDefaultMS) * time.Millisecond
	LeaseMin      = time.Duration(protocol.LeaseMinMS) * time.Millisecond
	LeaseMax      = time.Duration(protocol.LeaseMaxMS) * time.Millisecond
	BeatMin       = 100 * time.Millisecond
	MissesDefault = 3
	MissesMax     = 100
)

// heartbeatIntervalMax is the longest time between two looks after a handoff in hand: the
// queue keeps an offer from others for three of them, however slow the beat is.
const heartbeatIntervalMax = broker.AckWait / 3

// timing is the part of a Config that says how often a worker shows that it is
// there, and what its silence means.
type timing struct {
	lease, beat, beatTimeout time.Duration
	misses                   int
}

func (c Config) timing() timing { return timing{c.Lease, c.Beat, c.BeatTimeout, c.Misses} }

// validate refuses values out of bounds, and a lease that is over before as
// many beats were missed as may be.
func (h timing) validate() error {
	invalid := func(field, format string, args ...any) error {
		return protocol.Errorf(protocol.CodeInvalid, field, format, args...)
	}
	switch {
	case h.lease != 0 && (h.lease < LeaseMin || h.lease > LeaseMax):
		return invalid("lease", "is %v, must be %v to %v", h.lease, LeaseMin, LeaseMax)
	case h.beat != 0 && (h.beat < BeatMin || h.beat > LeaseMax):
		return invalid("beat", "is %v, must be %v to %v", h.beat, BeatMin, LeaseMax)
	case h.misses < 0 || h.misses > MissesMax:
		return invalid("misses", "is %d, must be 1 to %d, or 0 for the default", h.misses, MissesMax)
	case h.beatTimeout < 0:
		return invalid("beat_timeout", "is %v, must be positive, or 0 for the default", h.beatTimeout)
	}
	full := h.withDefaults()
	missed, answered := full.beat*time.Duration(full.misses), full.beat+full.beatTimeout
	switch {
	case full.beatTimeout > full.beat:
		return invalid("beat_timeout", "is %v, must be at most the time between two beats, %v", full.beatTimeout, full.beat)
	case full.lease > LeaseMax:
		return invalid("beat", "is %v: %d of them make a lease of %v, and %v is the longest", full.beat, full.misses, full.lease, LeaseMax)
	case full.lease < missed:
		return invalid("lease", "is %v, and is over before %d beats, one each %v, were missed: make it at least %v", full.lease, full.misses, full.beat, missed)
	case full.lease < answered:
		return invalid("lease", "is %v, and is over before the next beat, after %v, is answered, within %v: make it at least %v", full.lease, full.beat, full.beatTimeout, answered)
	}
	return nil
}

// withDefaults fills in what follows from what is given. See Config.
func (h timing) withDefaults() timing {
	lease := h.lease
	lease = cmp.Or(lease, LeaseDefault)
	full := h
	if full.misses == 0 {
		full.misses = MissesDefault
		if h.lease != 0 && h.beat != 0 {
			full.misses = int(min(MissesDefault, max(1, h.lease/h.beat)))
		}
	}
	if full.beat == 0 { // with a single miss, too, the next beat is answered before the lease is over
		full.beat = max(BeatMin, min(lease/time.Duration(max(full.misses, 2)), heartbeatIntervalMax))
	}
	if full.beatTimeout == 0 {
		full.beatTimeout = full.beat
		if h.lease != 0 { // what it leaves room for
			full.beatTimeout = max(BeatMin, min(full.beat, h.lease-full.beat))
		}
	}
	if full.lease == 0 {
		full.lease = lease
		if h.beat != 0 {
			full.lease = max(full.beat*time.Duration(full.misses)+full.beatTimeout, LeaseMin)
		}
	}
	return full
}
