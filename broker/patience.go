package broker

import (
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// Limits of the time for which an engine repeats what did not succeed (jetstream.Config.Timeout).
const (
	// TimeoutDefault is longer than the election after a leader was killed, which
	// takes 4 to 9 s.
	TimeoutDefault = 12 * time.Second
	TimeoutMin     = time.Second
	TimeoutMax     = 10 * time.Minute
)

// CheckTimeout refuses a timeout out of its limits; 0 is the default.
func CheckTimeout(field string, d time.Duration) error {
	if d != 0 && (d < TimeoutMin || d > TimeoutMax) {
		return protocol.Errorf(protocol.CodeInvalid, field, "is %v, must be between %v and %v", d, TimeoutMin, TimeoutMax)
	}
	return nil
}

// SilenceError says that the engine was asked again and again for a time, in vain. It
// wraps ErrUnreachable.
type SilenceError struct {
	After time.Duration // it was given up
	Last  error         // what came of the last try
}

func (e *SilenceError) Error() string {
	return fmt.Sprintf("%v: no answer in %v: %v", ErrUnreachable, e.After, e.Last)
}

func (e *SilenceError) Unwrap() []error { return []error{ErrUnreachable, e.Last} }
