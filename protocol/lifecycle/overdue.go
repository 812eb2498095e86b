package lifecycle

import (
	"fmt"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// LateAfter is how long after its time a handoff is late. Supervisors take milliseconds,
// and after an outage some seconds.
const LateAfter = time.Minute

// OverdueSince returns when something should have been decided about a handoff and was not.
// The clock of its state does not say that alone, since it may wait for a worker: the core
// is asked whether it would decide anything now. broken is a state that the core chokes on.
func OverdueSince(s p.State, d *Directory, now time.Time) (since time.Time, broken string) {
	defer func() {
		if r := recover(); r != nil {
			since, broken = time.Time{}, fmt.Sprint(r)
		}
	}()
	wake := Wake(s)
	if wake.IsZero() || !wake.Before(now) || len(Decide(s, d, now).Events) == 0 {
		return time.Time{}, ""
	}
	return wake, ""
}
