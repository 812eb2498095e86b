package explain

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/internal/schedule"
	"github.com/agenthandoff/handoff/protocol"
)

// Trigger is a schedule or a rule, as a line of a list.
type Trigger struct {
	From   string    `json:"from"` // schedule:NAME or signal:NAME, as protocol.Summary.From
	On     string    `json:"on"`   // the instants, or the signals
	Paused time.Time `json:"paused_at,omitzero"`
	Next   time.Time `json:"next,omitzero"` // instant of a schedule
	LastAt time.Time `json:"last_at,omitzero"`
	Ticket string    `json:"ticket,omitempty"` // of the last handoff
	// Refused is the reason for which the last handoff was refused, Signal the id of its signal. Late is an
	// instant that no supervisor fires.
	Refused   string    `json:"refused,omitempty"`
	RefusedAt time.Time `json:"refused_at,omitzero"`
	Signal    string    `json:"signal,omitempty"`
	Late      time.Time `json:"late_since,omitzero"`
	Full      bool      `json:"full,omitempty"` // signals wait for its rate
}

// fullFor is how long a rule is full after a signal had to wait.
const fullFor = 2 * time.Minute

// Kind is schedule or rule.
func (t Trigger) Kind() string {
	if strings.HasPrefix(t.From, protocol.ScheduleSource+":") {
		return "schedule"
	}
	return "rule"
}

// Name is the name of the schedule or rule.
func (t Trigger) Name() string {
	_, name, _ := strings.Cut(t.From, ":")
	return name
}

// Trouble describes the last refusal, or the instant that nothing fires; empty if there is none. Its
// instants are in the words of clock.
func (t Trigger) Trouble(clock func(time.Time) string) string {
	switch {
	case !t.Late.IsZero():
		return "was not fired at " + clock(t.Late)
	case t.Refused == "":
		return ""
	case t.Signal != "":
		return "refused the signal " + t.Signal + " at " + clock(t.RefusedAt) + ": " + t.Refused
	}
	return "was refused at " + clock(t.RefusedAt) + ": " + t.Refused
}

// Words are the reasons for which its next handoff may not begin in time; empty without any.
func (t Trigger) Words(clock func(time.Time) string) string {
	full := ""
	switch {
	case !t.Paused.IsZero():
		return "paused since " + clock(t.Paused)
	case t.Full:
		full = "signals wait for its rate"
	}
	return Join(t.Trouble(clock), full)
}

// OfSchedule returns the line of a schedule.
func OfSchedule(s *protocol.Schedule, now time.Time) Trigger {
	from := protocol.Summary{Schedule: s.Name}
	t := Trigger{From: from.From(), On: s.Cron + " in " + cmp.Or(s.Zone, "UTC"), Paused: s.PausedAt, Late: schedule.LateSince(s, now)}
	if s.Last != nil {
		t.LastAt, t.Ticket = s.Last.FiredAt, s.Last.Ticket
	}
	if s.Refused != nil && s.Refused.FiredAt.After(t.LastAt) {
		t.Refused, t.RefusedAt = s.Refused.Message, s.Refused.At
	}
	if rule, err := schedule.Of(s); err == nil && t.Paused.IsZero() {
		for _, next := range rule.ComingOf(s, now, 1) {
			t.Next = next
		}
	}
	return t
}

// OfRule returns the line of a rule.
func OfRule(r *protocol.Rule, now time.Time) Trigger {
	from := protocol.Summary{Rule: r.Name}
	t := Trigger{From: from.From(), On: "the signal " + r.Signal, Paused: r.PausedAt, Full: now.Sub(r.FullAt) < fullFor}
	if r.If != nil {
		t.On += " if " + r.If.Words()
	}
	if r.Last != nil {
		t.LastAt, t.Ticket = r.Last.At, r.Last.Ticket
	}
	if r.Refused != nil && r.Refused.At.After(t.LastAt) {
		t.Refused, t.RefusedAt, t.Signal = r.Refused.Message, r.Refused.At, r.Refused.ID
	}
	return t
}

// SortTriggers puts those in trouble first. Schedules follow by their next instants, then rules; paused ones
// are last.
func SortTriggers(all []Trigger) {
	order := func(t Trigger) int {
		switch {
		case !t.Paused.IsZero():
			return 3
		case t.Words(Instant) != "":
			return 0
		case t.Kind() == "rule":
			return 2
		}
		return 1
	}
	slices.SortFunc(all, func(a, b Trigger) int {
		return cmp.Or(order(a)-order(b), a.Next.Compare(b.Next), cmp.Compare(a.From, b.From))
	})
}
