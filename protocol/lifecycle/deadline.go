package lifecycle

import (
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Deadline is when the handoff closes, whatever it waits for: its own deadline,
// but no later than the longest that a package may ask for. Nobody checks a state
// that a worker in another language wrote: one without a deadline, or with one in
// ten years, would stay open for longer than the ledger keeps it.
func Deadline(s p.State) time.Time {
	if s.SubmittedAt.IsZero() {
		return s.Deadline
	}
	latest := s.SubmittedAt.Add(millis(p.DeadlineMaxMS))
	if s.Deadline.IsZero() || s.Deadline.After(latest) {
		return latest
	}
	return s.Deadline
}
