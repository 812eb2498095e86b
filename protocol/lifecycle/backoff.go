package lifecycle

import (
	"hash/fnv"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v4"

	p "github.com/agenthandoff/handoff/protocol"
)

// Backoff is the delay before the attempt that follows s.Attempt: exponential
// from the base, doubled each time, capped, spread by a hash of ticket and
// attempt so that a replay gives the same instant, and never below what the
// worker asked for. The cap holds for the spread delay too: what
// would go beyond it is turned back, so capped attempts do not come all at once.
func Backoff(s p.State) time.Duration {
	policy := s.Policy
	exponential := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(millis(min(policy.BackoffBaseMS, policy.BackoffCapMS))),
		backoff.WithMultiplier(2),
		backoff.WithMaxInterval(millis(policy.BackoffCapMS)),
		backoff.WithRandomizationFactor(0),
		backoff.WithMaxElapsedTime(0),
		backoff.WithClockProvider(zeroClock{}),
	)
	var delay time.Duration
	for range max(s.Attempt, 1) {
		delay = exponential.NextBackOff()
	}
	delay += spread(s.Ticket, s.AttemptsTotal, delay*time.Duration(policy.BackoffSpreadPct)/100)
	if most := millis(policy.BackoffCapMS); delay > most {
		delay = 2*most - delay
	}
	return max(delay, millis(s.RetryAfterMS)).Round(time.Millisecond)
}

// zeroClock is the clock given to the back-off, which reads one though nothing
// here depends on it.
type zeroClock struct{}

func (zeroClock) Now() time.Time { return time.Time{} }

// spread is between -width and +width, the same for the same ticket and attempt.
func spread(ticket string, attempt int, width time.Duration) time.Duration {
	if width <= 0 {
		return 0
	}
	hash := fnv.New64a()
	hash.Write([]byte(ticket + "/" + strconv.Itoa(attempt)))
	return time.Duration(hash.Sum64()%uint64(2*width+1)) - width
}
