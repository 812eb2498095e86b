package protocol

import (
	"cmp"
	"slices"
	"time"
)

// Breaker holds the settings of agents' breakers, in the fleet or in a profile, which takes
// precedence for each field. An agent has a breaker if either has any field; a threshold of 0 means
// no breaker.
type Breaker struct {
	Threshold    *int   `json:"threshold,omitempty"`     // different handoffs that failed since the last success
	WindowMS     *int64 `json:"window_ms,omitempty"`     // in which results are counted
	SharePercent *int   `json:"share_percent,omitempty"` // of the attempts in the window that failed
	OpenMS       *int64 `json:"open_ms,omitempty"`       // doubled with each further opening
	OpenMaxMS    *int64 `json:"open_max_ms,omitempty"`
	Probes       *int   `json:"probes,omitempty"` // at once, while half-open
}

// BreakerPolicy holds the resolved settings of one agent's breaker. Threshold 0 means no breaker.
type BreakerPolicy struct {
	Threshold    int   `json:"threshold"`
	WindowMS     int64 `json:"window_ms"`
	SharePercent int   `json:"share_percent"`
	OpenMS       int64 `json:"open_ms"`
	OpenMaxMS    int64 `json:"open_max_ms"`
	Probes       int   `json:"probes"`
}

// DefaultBreaker returns the settings that neither profile nor fleet sets.
func DefaultBreaker() BreakerPolicy {
	return BreakerPolicy{Threshold: 3, WindowMS: 5 * minute, SharePercent: 50, OpenMS: 30 * second, OpenMaxMS: 10 * minute, Probes: 1}
}

// ResolveBreaker merges the settings of a profile over those of the fleet. If both are nil the
// agent has no breaker.
func ResolveBreaker(fleet, profile *Breaker) BreakerPolicy {
	if fleet == nil && profile == nil { // usual case
		return BreakerPolicy{}
	}
	return DefaultBreaker().with(fleet).with(profile)
}

func (b BreakerPolicy) with(o *Breaker) BreakerPolicy {
	if o == nil {
		return b
	}
	override(&b.Threshold, o.Threshold)
	override(&b.WindowMS, o.WindowMS)
	override(&b.SharePercent, o.SharePercent)
	override(&b.OpenMS, o.OpenMS)
	override(&b.OpenMaxMS, o.OpenMaxMS)
	override(&b.Probes, o.Probes)
	return b
}

func override[T any](value, by *T) {
	if by != nil {
		*value = *by
	}
}

// Limits of a breaker's settings.
const (
	BreakerThresholdMax = 100
	breakerWindowMinMS  = second
	BreakerWindowMaxMS  = day
	BreakerSharePctMax  = 100
	breakerOpenMinMS    = second
	BreakerOpenMaxMS    = hour // of open_ms
	BreakerOpenLimitMS  = day  // of open_max_ms
	BreakerProbesMax    = 8
	HealthBytesMax      = 32 << 10 // of one agent's health, in bytes of JSON
	HealthTTL           = time.Hour
	ProbeReservation    = 30 * time.Second
)

func (b *Breaker) validate(prefix string) *Error {
	if b == nil {
		return nil
	}
	if err := cmp.Or(
		optionalBetween(prefix+".threshold", b.Threshold, 0, BreakerThresholdMax),
		optionalBetween(prefix+".window_ms", b.WindowMS, breakerWindowMinMS, BreakerWindowMaxMS),
		optionalBetween(prefix+".share_percent", b.SharePercent, 1, BreakerSharePctMax),
		optionalBetween(prefix+".open_ms", b.OpenMS, breakerOpenMinMS, BreakerOpenMaxMS),
		optionalBetween(prefix+".open_max_ms", b.OpenMaxMS, breakerOpenMinMS, BreakerOpenLimitMS),
		optionalBetween(prefix+".probes", b.Probes, 1, BreakerProbesMax),
	); err != nil {
		return err
	}
	if b.OpenMS != nil && b.OpenMaxMS != nil && *b.OpenMS > *b.OpenMaxMS {
		return Errorf(CodeConflict, prefix+".open_max_ms", "is %d, less than open_ms (%d)", *b.OpenMaxMS, *b.OpenMS)
	}
	return nil
}

// BreakerMark is the role of an offer for its agent's breaker.
type BreakerMark string

const (
	BreakerCounts BreakerMark = "counts" // the end of the attempt counts
	BreakerProbe  BreakerMark = "probe"  // it also tests whether the agent has recovered
)

// AttemptEnd is how an attempt ended, as an agent's health counts it.
type AttemptEnd string

const (
	EndSucceeded AttemptEnd = "succeeded"
	EndFailed    AttemptEnd = "failed"    // a retryable failure
	EndLost      AttemptEnd = "lost"      // the holder was lost
	EndTimeout   AttemptEnd = "timeout"   // the clock of the work or of its progress ran out
	EndThrottled AttemptEnd = "throttled" // a failure with the time of the next try
	EndUncounted AttemptEnd = "uncounted" // of a probe: a refusal, a condition, a cancel, a fault of the input
)

// AttemptEnds lists all values of AttemptEnd.
var AttemptEnds = []AttemptEnd{EndSucceeded, EndFailed, EndLost, EndTimeout, EndThrottled, EndUncounted}

// Health records how an agent's recent attempts ended. It is stored in the bucket of the holders
// and expires: an agent without one is healthy.
type Health struct {
	Agent string `json:"agent"`
	// OK and Failed count the attempts since the first of the failures that still count. The weight of
	// an attempt halves every half window. At is when the counts were last computed.
	OK     float64 `json:"ok,omitempty"`
	Failed float64 `json:"failed,omitempty"`
	At     Time    `json:"at,omitzero"`
	// Failures lists the handoffs that failed since the last success, each once.
	Failures    []FailedHandoff `json:"failures,omitempty"`
	LastFailure *LastFailure    `json:"last_failure,omitempty"`
	// Only for a breaker that is not closed. Trips counts its openings since it was last closed.
	OpenedAt  Time    `json:"opened_at,omitzero"`
	OpenUntil Time    `json:"open_until,omitzero"`
	Trips     int     `json:"trips,omitempty"`
	Probes    []Probe `json:"probes,omitempty"`
}

// FailedHandoff is a failed handoff, and the fence of its last failure.
type FailedHandoff struct {
	Ticket string `json:"ticket"`
	Fence  uint64 `json:"fence"`
}

// LastFailure is the last failed attempt.
type LastFailure struct {
	At     Time       `json:"at"`
	End    AttemptEnd `json:"end"`
	Ticket string     `json:"ticket"`
}

// Probe is a handoff that tests whether an agent has recovered. Its place is reserved until an
// instant, and longer while the ledger shows that it is being tried.
type Probe struct {
	Ticket string `json:"ticket"`
	Until  Time   `json:"until"`
}

// IsZero reports whether nothing is recorded: the agent is healthy.
func (h Health) IsZero() bool {
	return h.OK == 0 && h.Failed == 0 && len(h.Failures) == 0 && h.LastFailure == nil && h.OpenUntil.IsZero() && len(h.Probes) == 0
}

// Equal reports whether two values agree in everything that decides anything or that a person sees.
func (h Health) Equal(o Health) bool {
	sameFailure := h.LastFailure == o.LastFailure || h.LastFailure != nil && o.LastFailure != nil && *h.LastFailure == *o.LastFailure
	return sameFailure && h.OK == o.OK && h.Failed == o.Failed && h.OpenUntil.Equal(o.OpenUntil) && h.Trips == o.Trips &&
		slices.Equal(h.Failures, o.Failures) && slices.Equal(h.Probes, o.Probes)
}

// Validate checks the health of an agent as it was read.
func (h Health) Validate() error {
	if err := CheckID("agent", h.Agent); err != nil {
		return err
	}
	if len(h.Failures) > BreakerThresholdMax || len(h.Probes) > BreakerProbesMax || h.Trips < 0 || h.OK < 0 || h.Failed < 0 {
		return Errorf(CodeInvalid, "health", "has %d failures, %d probes, %d trips, %g ends with success and %g without", len(h.Failures), len(h.Probes), h.Trips, h.OK, h.Failed)
	}
	return nil
}
