package protocol

import (
	"slices"
	"time"
)

// Breaker are settings of the breakers of agents, in the fleet or in a profile, which wins field by
// field. An agent has a breaker where either has any of them; a threshold of 0 is none.
type Breaker struct {
	Threshold    *int   `json:"threshold,omitempty"`     // different handoffs that failed since the last success
	WindowMS     *int64 `json:"window_ms,omitempty"`     // in which ends are counted
	SharePercent *int   `json:"share_percent,omitempty"` // of the ends in the window that failed
	OpenMS       *int64 `json:"open_ms,omitempty"`       // doubled with each opening that follows
	OpenMaxMS    *int64 `json:"open_max_ms,omitempty"`
	Probes       *int   `json:"probes,omitempty"` // at once, while half-open
}

// BreakerPolicy are the settings of one agent's breaker, resolved. With Threshold 0 it has none.
type BreakerPolicy struct {
	Threshold    int   `json:"threshold"`
	WindowMS     int64 `json:"window_ms"`
	SharePercent int   `json:"share_percent"`
	OpenMS       int64 `json:"open_ms"`
	OpenMaxMS    int64 `json:"open_max_ms"`
	Probes       int   `json:"probes"`
}

// DefaultBreaker is what holds of a breaker where neither profile nor fleet says otherwise.
func DefaultBreaker() BreakerPolicy {
	return BreakerPolicy{Threshold: 3, WindowMS: 5 * minute, SharePercent: 50, OpenMS: 30 * second, OpenMaxMS: 10 * minute, Probes: 1}
}

// ResolveBreaker lays the settings of a profile over those of the fleet. Where both are nil the agent
// has no breaker.
func ResolveBreaker(fleet, profile *Breaker) BreakerPolicy {
	if fleet == nil && profile == nil { // as a rule
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
	BreakerWindowMinMS  = second
	BreakerWindowMaxMS  = day
	BreakerSharePctMax  = 100
	BreakerOpenMinMS    = second
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
	for _, f := range []struct {
		name        string
		value       *int64
		least, most int64
	}{
		{"threshold", wide(b.Threshold), 0, BreakerThresholdMax},
		{"window_ms", b.WindowMS, BreakerWindowMinMS, BreakerWindowMaxMS},
		{"share_percent", wide(b.SharePercent), 1, BreakerSharePctMax},
		{"open_ms", b.OpenMS, BreakerOpenMinMS, BreakerOpenMaxMS},
		{"open_max_ms", b.OpenMaxMS, BreakerOpenMinMS, BreakerOpenLimitMS},
		{"probes", wide(b.Probes), 1, BreakerProbesMax},
	} {
		if f.value == nil {
			continue
		}
		if err := between(prefix+"."+f.name, *f.value, f.least, f.most); err != nil {
			return err
		}
	}
	if b.OpenMS != nil && b.OpenMaxMS != nil && *b.OpenMS > *b.OpenMaxMS {
		return Errorf(CodeConflict, prefix+".open_max_ms", "is %d, less than open_ms (%d)", *b.OpenMaxMS, *b.OpenMS)
	}
	return nil
}

func wide(n *int) *int64 {
	if n == nil {
		return nil
	}
	w := int64(*n)
	return &w
}

// BreakerMark says of an offer what its agent's breaker has to do with it.
type BreakerMark string

const (
	BreakerCounts BreakerMark = "counts" // how the attempt ends counts
	BreakerProbe  BreakerMark = "probe"  // it also tries whether the agent has recovered
)

// AttemptEnd is how an attempt ended, as an agent's health counts it.
type AttemptEnd string

const (
	EndSucceeded AttemptEnd = "succeeded"
	EndFailed    AttemptEnd = "failed"    // a failure that may be tried again
	EndLost      AttemptEnd = "lost"      // the holder was gone
	EndTimeout   AttemptEnd = "timeout"   // the clock of the work or of its progress ran out
	EndThrottled AttemptEnd = "throttled" // a failure that says when to try again
	EndUncounted AttemptEnd = "uncounted" // of a probe: a refusal, a condition, a cancel, the fault of the input
)

// AttemptEnds are all values of AttemptEnd.
var AttemptEnds = []AttemptEnd{EndSucceeded, EndFailed, EndLost, EndTimeout, EndThrottled, EndUncounted}

// Health is what is known of how an agent's attempts ended of late. It stands in the bucket of the
// holders and expires: an agent without one is healthy.
type Health struct {
	Agent string `json:"agent"`
	// OK and Failed count the attempts since the first of the failures that still count. An end
	// counts half of itself half a window later. At is when that was last worked out.
	OK     float64 `json:"ok,omitempty"`
	Failed float64 `json:"failed,omitempty"`
	At     Time    `json:"at,omitzero"`
	// Failures are the handoffs that failed since the last success, each once.
	Failures    []FailedHandoff `json:"failures,omitempty"`
	LastFailure *LastFailure    `json:"last_failure,omitempty"`
	// Of a breaker that is not closed. Trips counts its openings since it was closed last.
	OpenedAt  Time    `json:"opened_at,omitzero"`
	OpenUntil Time    `json:"open_until,omitzero"`
	Trips     int     `json:"trips,omitempty"`
	Probes    []Probe `json:"probes,omitempty"`
}

// FailedHandoff is a handoff that failed, and the fence of its last failure.
type FailedHandoff struct {
	Ticket string `json:"ticket"`
	Fence  uint64 `json:"fence"`
}

// LastFailure is the last attempt that failed.
type LastFailure struct {
	At     Time       `json:"at"`
	End    AttemptEnd `json:"end"`
	Ticket string     `json:"ticket"`
}

// Probe is a handoff that tries whether an agent has recovered. Its place is kept until an instant,
// and longer while the ledger shows that it is tried.
type Probe struct {
	Ticket string `json:"ticket"`
	Until  Time   `json:"until"`
}

// IsZero tells whether nothing is known: the agent is healthy.
func (h Health) IsZero() bool {
	return h.OK == 0 && h.Failed == 0 && len(h.Failures) == 0 && h.LastFailure == nil && h.OpenUntil.IsZero() && len(h.Probes) == 0
}

// Equal tells whether nothing differs that decides anything, or that a person would see.
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
