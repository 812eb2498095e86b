package protocol

import (
	"cmp"
	"slices"
	"strings"

	"github.com/agenthandoff/handoff/internal/wirejson"
)

// Schedule submits a package at the instants of a cron expression. It is a record in the directory,
// which supervisors change by compare-and-set; its package is an entry of its own.
type Schedule struct {
	Name string `json:"name"`
	Cron string `json:"cron"`
	Zone string `json:"zone,omitempty"` // an IANA time zone; absent is UTC
	// Overlap decides about an instant while the previous handoff is open; absent is skip.
	Overlap Overlap `json:"overlap,omitempty"`
	// Missed decides about the instants at which no supervisor ran; absent is once.
	Missed    Missed `json:"missed,omitempty"`
	By        string `json:"by,omitempty"` // who wrote it last
	CreatedAt Time   `json:"created_at"`
	UpdatedAt Time   `json:"updated_at"`
	PausedAt  Time   `json:"paused_at,omitzero"`

	// DecidedTo is the last instant that was decided: to be submitted, skipped or missed.
	DecidedTo Time `json:"decided_to"`
	// Firing are the instants whose handoffs are being submitted, since FiringSince. Waiting are those
	// that wait for the end of the previous handoff.
	Firing      []Time `json:"firing,omitempty"`
	FiringSince Time   `json:"firing_since,omitzero"`
	Waiting     []Time `json:"waiting,omitempty"`
	// Last is the last firing that was submitted, and Refused the last whose package was refused.
	Last    *Firing `json:"last,omitempty"`
	Refused *Firing `json:"refused,omitempty"`
	// How many instants were submitted, refused, missed, and skipped because of an open handoff.
	FiredCount   int `json:"fired_count,omitempty"`
	RefusedCount int `json:"refused_count,omitempty"`
	MissedCount  int `json:"missed_count,omitempty"`
	SkippedCount int `json:"skipped_count,omitempty"`
}

// Firing is one instant of a schedule, with its handoff or the reason that it has none.
type Firing struct {
	At      Time   `json:"at"`      // the instant of the schedule
	FiredAt Time   `json:"done_at"` // when it was submitted or refused
	Ticket  string `json:"ticket,omitempty"`
	Code    Code   `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// Overlap decides about an instant of a schedule while its previous handoff is open.
type Overlap string

const (
	OverlapSkip  Overlap = "skip"  // nothing is submitted
	OverlapQueue Overlap = "queue" // it is submitted after the end of the previous one
	OverlapAllow Overlap = "allow" // it is submitted at once
)

// Overlaps lists all of them, the default first.
var Overlaps = []Overlap{OverlapSkip, OverlapQueue, OverlapAllow}

// Missed decides about the instants of a schedule at which no supervisor ran.
type Missed string

const (
	MissedOnce Missed = "once" // one handoff, for the last of them
	MissedAll  Missed = "all"  // a handoff for each of the last ScheduleMissedMax
	MissedNone Missed = "none" // no handoff
)

// MissedModes lists all of them, the default first.
var MissedModes = []Missed{MissedOnce, MissedAll, MissedNone}

const (
	// ScheduleSource is the source of the handoffs of all schedules, a reserved name.
	ScheduleSource = "schedule"
	// SchedulesMax is how many schedules a fleet has at most.
	SchedulesMax = 256
	// ScheduleMissedMax is how many missed instants are made up at most.
	ScheduleMissedMax = 100
	// ScheduleWaitingMax is how many instants wait for the end of the previous handoff at most.
	ScheduleWaitingMax = 100
	// SchedulePackageBytesMax bounds the package of a schedule.
	SchedulePackageBytesMax = 256 << 10
	// ScheduleBytesMax bounds the record of a schedule.
	ScheduleBytesMax = 32 << 10
	// CronBytesMax bounds a cron expression.
	CronBytesMax = 256
	zoneBytesMax = 64

	scheduleKeyPrefix = "schedule:"
)

// ScheduleKey returns the idempotency key of an instant of a schedule.
func ScheduleKey(name string, at Time) string {
	return scheduleKeyPrefix + name + ":" + at.UTC().Format("2006-01-02T15:04:05.999Z07:00")
}

// ScheduleOf returns the schedule that submits a package with this source and key; empty if none does.
func ScheduleOf(source, key string) string {
	if source != ScheduleSource {
		return ""
	}
	return namedInKey(key, scheduleKeyPrefix)
}

// namedInKey returns the name in a key of the form prefix NAME:…; empty in another one.
func namedInKey(key, prefix string) string {
	rest, is := strings.CutPrefix(key, prefix)
	if name, _, whole := strings.Cut(rest, ":"); is && whole && CheckID("name", name) == nil {
		return name
	}
	return ""
}

// From returns the source, or the schedule or rule that submitted the handoff, as schedule:NAME or
// signal:NAME.
func (s *Summary) From() string {
	switch {
	case s.Schedule != "":
		return scheduleKeyPrefix + s.Schedule
	case s.Rule != "":
		return signalKeyPrefix + s.Rule
	}
	return s.Source
}

// Validate checks all fields except for the meaning of cron and zone, which schedule.Parse checks.
func (s *Schedule) Validate() error {
	if err := CheckID("name", s.Name); err != nil {
		return err
	}
	switch {
	case strings.TrimSpace(s.Cron) == "":
		return Errorf(CodeMissing, "cron", `is missing, for example "0 9 * * 1-5"`)
	case len(s.Cron) > CronBytesMax:
		return tooLarge("cron", len(s.Cron), CronBytesMax)
	case len(s.Zone) > zoneBytesMax:
		return Errorf(CodeInvalid, "zone", "is %q, which is no time zone", wirejson.Clip(s.Zone))
	}
	if err := cmp.Or(oneOf("overlap", s.Overlap, Overlaps), oneOf("missed", s.Missed, MissedModes)); err != nil {
		return err
	}
	if n := max(len(s.Firing), len(s.Waiting)); n > max(ScheduleMissedMax, ScheduleWaitingMax) {
		return Errorf(CodeTooLarge, "firing", "lists %d instants", n)
	}
	return nil
}

// IsFiring reports whether the handoff of an instant is being submitted.
func (s *Schedule) IsFiring(at Time) bool { return slices.ContainsFunc(s.Firing, at.Equal) }
