// Package schedule decides at which instants a schedule submits a handoff. It is pure: the caller
// has the clock.
package schedule

import (
	"slices"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	p "github.com/agenthandoff/handoff/protocol"
)

const (
	// periodMin is the shortest period of a schedule.
	periodMin = time.Minute
	// onTime is how late an instant may be decided without being missed.
	onTime = time.Minute
	// horizon is how far back missed instants are counted.
	horizon = 90 * 24 * time.Hour
)

// Rule is a parsed cron expression in a time zone.
type Rule struct {
	spec cron.Schedule
	zone *time.Location
	// every is a rule by real time: each minute at which the clock on the wall matches. Another rule
	// names hours, and the change of a clock neither omits nor repeats an instant of it.
	every bool
	delay bool // the rule is a delay from one instant to the next
}

var parser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// Parse checks a cron expression and a zone at the instant now. It refuses, by the field, an
// expression that never fires, and one that fires more often than once a minute. Empty zone is UTC.
func Parse(expression, zone string, now time.Time) (*Rule, error) {
	text := strings.TrimSpace(expression)
	fields := strings.Fields(text)
	switch {
	case len(expression) > p.CronBytesMax:
		return nil, p.Errorf(p.CodeTooLarge, "cron", "%s", p.OverSize(len(expression), p.CronBytesMax))
	case text == "":
		return nil, p.Errorf(p.CodeMissing, "cron", `is missing, for example "0 9 * * 1-5"`)
	case strings.HasPrefix(text, "TZ=") || strings.HasPrefix(text, "CRON_TZ="):
		return nil, p.Errorf(p.CodeConflict, "cron", "names a time zone: the field zone is for that")
	case len(fields) == 6 && text[0] != '@':
		return nil, p.Errorf(p.CodeInvalid, "cron", "is %q, which has 6 fields: seconds are not supported, and the shortest period is one minute", p.CutText(text, 64))
	}
	loc, err := time.LoadLocation(zone)
	if err != nil || zone == "Local" {
		return nil, p.Errorf(p.CodeInvalid, "zone", "is %q, which is no time zone; an example is Europe/Berlin", p.CutText(zone, 64))
	}
	spec, err := parser.Parse(text)
	if err != nil {
		return nil, p.Errorf(p.CodeInvalid, "cron", "is %q: %s; the five fields are minute, hour, day of the month, month and day of the week", p.CutText(text, 64), p.CutText(err.Error(), 200))
	}
	r := &Rule{spec: spec, zone: loc}
	if delay, is := spec.(cron.ConstantDelaySchedule); is {
		if given, err := time.ParseDuration(strings.TrimPrefix(text, "@every ")); err != nil || given < periodMin || delay.Delay < periodMin {
			return nil, p.Errorf(p.CodeInvalid, "cron", "is %q, and the shortest period is one minute", p.CutText(text, 64))
		}
		r.delay = true
		return r, nil
	}
	r.spec.(*cron.SpecSchedule).Location = time.UTC // Next counts in the time of the wall clock
	r.every = text == "@hourly" || text[0] != '@' && (fields[0][0] == '*' || fields[1][0] == '*')
	if r.Next(now).IsZero() {
		return nil, p.Errorf(p.CodeInvalid, "cron", "is %q, which never fires", p.CutText(text, 64))
	}
	return r, nil
}

// Of returns the rule of a stored schedule.
func Of(s *p.Schedule) (*Rule, error) { return Parse(s.Cron, s.Zone, s.DecidedTo) }

// Next returns the first instant after t; zero if there is none within five years.
//
// At a change of the clock a rule with a fixed hour fires once: for times that the change omits at
// the change, and for times that the change repeats the first time. A rule whose minute or hour
// begins with * fires whenever the clock on the wall matches, so each hour has its instants.
func (r *Rule) Next(t time.Time) time.Time {
	if r.delay {
		return r.spec.Next(t).UTC()
	}
	t = t.In(r.zone)
	wall := wallOf(t)
	for {
		start, end := t.ZoneBounds()
		offset := offsetOf(t)
		if !r.every && !start.IsZero() { // the period before has had these times
			if had := start.Add(offsetOf(start.Add(-time.Second))).UTC().Add(-time.Second); wall.Before(had) {
				wall = had
			}
		}
		next := r.spec.Next(wall)
		if next.IsZero() {
			return time.Time{}
		}
		at := next.Add(-offset)
		if end.IsZero() || at.Before(end) {
			return at
		}
		after := end.Add(offsetOf(end)).UTC() // the time on the wall after the change
		if !r.every && next.Before(after) {   // the change omits it
			return end.UTC()
		}
		t, wall = end, after.Add(-time.Second)
	}
}

// offsetOf returns by how much the clock on the wall is ahead of UTC.
func offsetOf(t time.Time) time.Duration {
	_, seconds := t.Zone()
	return time.Duration(seconds) * time.Second
}

// wallOf returns the time on the wall, as if it were UTC.
func wallOf(t time.Time) time.Time { return t.Add(offsetOf(t)).UTC() }

// coming returns the next n instants after t.
func (r *Rule) coming(t time.Time, n int) (all []time.Time) {
	for range n {
		if t = r.Next(t); t.IsZero() {
			break
		}
		all = append(all, t)
	}
	return all
}

// ComingOf returns the next n instants of a schedule after now. A delay counts from the last instant.
func (r *Rule) ComingOf(s *p.Schedule, now time.Time, n int) []time.Time {
	return r.coming(r.since(s.DecidedTo, now), n)
}

// since returns from, or if t is later a time until t after which the instants of a rule are the same
// as those after t.
func (r *Rule) since(from, t time.Time) time.Time {
	every, delay := r.spec.(cron.ConstantDelaySchedule)
	switch {
	case !t.After(from):
		return from
	case !delay:
		return t
	}
	for past := t.Sub(from); past >= every.Delay; past = t.Sub(from) { // again: Sub has at most 292 years
		from = from.Add(past.Truncate(every.Delay))
	}
	return from
}

// first returns the first instant of a schedule that is not decided, within the horizon.
func (r *Rule) first(s *p.Schedule, now time.Time) time.Time {
	return r.Next(r.since(s.DecidedTo, now.Add(-horizon)))
}

// IsDue reports whether Decide may change a schedule at the instant now.
func (r *Rule) IsDue(s *p.Schedule, now time.Time) bool {
	if !s.PausedAt.IsZero() || len(s.Firing) > 0 {
		return false
	}
	next := r.first(s, now)
	return len(s.Waiting) > 0 || !next.IsZero() && !next.After(now)
}

// lateAfter is how long an instant may be due until its schedule is late.
const lateAfter = 2 * time.Minute

// LateSince returns the instant of a schedule that no supervisor has fired for two minutes; zero if
// there is none.
func LateSince(s *p.Schedule, now time.Time) time.Time {
	rule, err := Of(s)
	if err != nil || !s.PausedAt.IsZero() {
		return time.Time{}
	}
	due, since := rule.first(s, now), time.Time{}
	if since = due; len(s.Firing) > 0 {
		due, since = s.Firing[0], s.FiringSince
	}
	if due.IsZero() || now.Sub(since) <= lateAfter {
		return time.Time{}
	}
	return due
}

// Decide returns the schedule after a decision about all instants until now: those in Firing are to
// be submitted. open reports whether its previous handoff is open. The next decision follows when
// Firing is empty again. It reports whether anything has changed.
func (r *Rule) Decide(s p.Schedule, now time.Time, open bool) (p.Schedule, bool) {
	if !r.IsDue(&s, now) {
		return s, false
	}
	due, n := r.due(&s, now)
	if n > 0 {
		s.DecidedTo = due[len(due)-1]
	}
	switch {
	case n == 0:
	case s.Missed == p.MissedAll:
	case s.Missed == p.MissedNone && now.Sub(s.DecidedTo) > onTime:
		due = nil
	default:
		due = due[len(due)-1:]
	}
	s.MissedCount += n - len(due)
	switch s.Overlap {
	case p.OverlapAllow:
		s.Firing = due
	case p.OverlapQueue:
		s.Waiting = slices.Concat(s.Waiting, due)
		if more := len(s.Waiting) - p.ScheduleWaitingMax; more > 0 {
			s.Waiting, s.SkippedCount = s.Waiting[:p.ScheduleWaitingMax], s.SkippedCount+more
		}
		if !open && len(s.Waiting) > 0 {
			s.Firing, s.Waiting = s.Waiting[:1], s.Waiting[1:]
		}
	default:
		if !open && len(due) > 0 {
			s.Firing, due = due[:1], due[1:]
		}
		s.SkippedCount += len(due)
	}
	if len(s.Firing) > 0 {
		s.FiringSince = now.UTC()
	}
	return s, n > 0 || len(s.Firing) > 0
}

// due returns the last ScheduleMissedMax instants that are not decided until now, and how many there
// are.
func (r *Rule) due(s *p.Schedule, now time.Time) (last []time.Time, n int) {
	for at := r.first(s, now); !at.IsZero() && !at.After(now); at = r.Next(at) {
		if n++; len(last) == p.ScheduleMissedMax {
			last = last[1:]
		}
		last = append(last, at)
	}
	return last, n
}

// Done returns the schedule after the submission of an instant, which is no longer Firing.
func Done(s p.Schedule, f p.Firing) (p.Schedule, bool) {
	if !s.IsFiring(f.At) {
		return s, false
	}
	s.Firing = slices.DeleteFunc(slices.Clone(s.Firing), f.At.Equal)
	if len(s.Firing) == 0 {
		s.Firing, s.FiringSince = nil, time.Time{}
	}
	if f.Ticket == "" {
		s.Refused, s.RefusedCount = &f, s.RefusedCount+1
	} else {
		s.Last, s.FiredCount = &f, s.FiredCount+1
	}
	return s, true
}
