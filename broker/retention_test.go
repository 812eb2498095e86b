package broker

import (
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// The minimums of document 1 §7.3 hold by arithmetic, and there is a rest.
// Whoever lengthens the deadline, or shortens the ledger, finds out here.
func TestTheLedgerKeepsWhatTheDocumentAsksFor(t *testing.T) {
	const (
		day  = 24 * time.Hour
		rest = 10 * day // in which no supervisor runs, though a deadline has passed
	)
	for _, c := range []struct {
		what string
		age  time.Duration // that the oldest append concerned may reach
	}{
		{"an open handoff, and 30 days after its end", openAge + 30*day + rest},
		{"a completed one for 90 days, from its first append on", openAge + 90*day + rest},
		{"an escalation for 180 days", 180 * day},
	} {
		if LedgerAge < c.age {
			t.Errorf("the ledger keeps an append for %v, and must for %v: %s", LedgerAge, c.age, c.what)
		}
	}
}

func TestOpenTooLong(t *testing.T) {
	day := 24 * time.Hour
	t0 := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	head := Head{At: t0.Add(day), State: protocol.State{SubmittedAt: t0}}
	closed := head
	closed.State.Closed = true
	ahead := head // submitted by a clock that was a year ahead
	ahead.State.SubmittedAt = t0.Add(365 * day)
	for _, c := range []struct {
		name string
		head Head
		at   time.Time
		want bool
		left time.Duration
	}{
		{"at its longest deadline", head, t0.Add(90 * day), false, 100 * day},
		{"an hour later", head, t0.Add(90*day + 61*time.Minute), true, 100*day - 61*time.Minute},
		{"about to be dropped", head, t0.Add(189 * day), true, day},
		{"closed", closed, t0.Add(189 * day), false, day},
		{"by a clock that was ahead", ahead, t0.Add(189 * day), true, 2 * day},
	} {
		if left, got := c.head.OpenTooLong(c.at); got != c.want || left != c.left {
			t.Errorf("%s: %t, %v left; want %t, %v", c.name, got, left, c.want, c.left)
		}
	}
}
