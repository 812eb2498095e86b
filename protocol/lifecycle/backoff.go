package lifecycle

import (
	"hash/fnv"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v4"

	p "github.com/agenthandoff/handoff/protocol"
)

// Backoff is the delay before the next try at the same agent: exponential
// from the base, doubled with each retry that it had there, whatever the cause
// (a failure, a clock, a lost lease), capped, spread by a hash of ticket and
// try so that a replay gives the same instant, and never below what the
// worker asked for. The cap holds for the spread delay too: what
// would go beyond it is turned back, so capped retries do not come all at once.
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
	for n := 0; n <= s.Retries && delay < millis(policy.BackoffCapMS); n++ {
		delay = exponential.NextBackOff()
	}
	delay += spread(s.Ticket, max(s.AttemptsTotal, s.Retries+1), delay*time.Duration(policy.BackoffSpreadPct)/100)
	if most := millis(policy.BackoffCapMS); delay > most {
		delay = 2*most - delay
	}
	return max(delay, millis(s.RetryAfterMS)).Round(time.Millisecond)
}

// zeroClock is the clock given to the back-off, which reads one though nothing
// here depends on it.
type zeroClock struct{}

func (zeroClock) Now() time.Time { return time.Time{} }

// spread is between -width and +width, the same for the same ticket and try.
func spread(ticket string, try int, width time.Duration) time.Duration {
	if width <= 0 {
		return 0
	}
	hash := fnv.New64a()
	hash.Write([]byte(ticket + "/" + strconv.Itoa(try)))
	return time.Duration(hash.Sum64()%uint64(2*width+1)) - width
}
