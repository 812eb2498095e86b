package explain

import (
	"slices"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// TestTriggers: a line has the next instant, or the reason that there is none, and those in trouble come
// first.
func TestTriggers(t *testing.T) {
	now := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	schedule := func(name, cron string, change func(*protocol.Schedule)) Trigger {
		s := protocol.Schedule{Name: name, Cron: cron, DecidedTo: now}
		change(&s)
		return OfSchedule(&s, now)
	}
	all := []Trigger{
		schedule("paused", "@daily", func(s *protocol.Schedule) { s.PausedAt = now }),
		schedule("daily", "@daily", func(s *protocol.Schedule) {
			s.Refused = &protocol.Firing{FiredAt: now.Add(-2 * time.Hour), Message: "of before"}
			s.Last = &protocol.Firing{FiredAt: now.Add(-time.Hour), Ticket: "t"}
		}),
		schedule("soon", "30 12 * * *", func(*protocol.Schedule) {}),
		schedule("late", "0 * * * *", func(s *protocol.Schedule) { s.DecidedTo = now.Add(-90 * time.Minute) }),
		schedule("refused", "@daily", func(s *protocol.Schedule) {
			s.Refused = &protocol.Firing{At: now, FiredAt: now, Message: "no agent"}
		}),
		OfRule(&protocol.Rule{Name: "order", Signal: "order", Rate: 60}, now),
		OfRule(&protocol.Rule{Name: "full", Signal: "order", Rate: 60, FullAt: now.Add(-time.Minute)}, now),
		OfRule(&protocol.Rule{Name: "refusing", Signal: "order", Refused: &protocol.Signalled{ID: "7", At: now, Message: "no /id"}}, now),
	}
	SortTriggers(all)
	var got []string
	for _, a := range all {
		next := ""
		if !a.Next.IsZero() {
			next = a.Next.Format("15:04")
		}
		got = append(got, Join(a.From, next, a.Words(Instant)))
	}
	want := []string{
		"signal:full, signals wait for its rate",
		"signal:refusing, refused the signal 7 at 2026-03-02 12:00:00Z: no /id",
		"schedule:late, 13:00, was not fired at 2026-03-02 11:00:00Z",
		"schedule:refused, 00:00, was refused at 2026-03-02 12:00:00Z: no agent",
		"schedule:soon, 12:30",
		"schedule:daily, 00:00",
		"signal:order",
		"schedule:paused, paused since 2026-03-02 12:00:00Z",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
