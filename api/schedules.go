package api

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/schedule"
	"github.com/agenthandoff/handoff/protocol"
)

// A schedule submits a package at the instants of a cron expression. Supervisors fire it; the
// source of its handoffs is protocol.ScheduleSource.

// PutSchedule is the request to create or replace a schedule.
type PutSchedule struct {
	Name    string           `json:"name"`
	Cron    string           `json:"cron" flag:"cron" doc:"the {EXPRESSION}: minute, hour, day of the month, month and day of the week; or @daily, @every 90m and the like; required"`
	Zone    string           `json:"zone,omitempty" flag:"zone" doc:"time {ZONE} of the expression, such as Europe/Berlin (default UTC)"`
	Overlap protocol.Overlap `json:"overlap,omitempty" flag:"overlap" doc:"{WHAT} follows if the previous handoff is open: skip (default), queue or allow"`
	Missed  protocol.Missed  `json:"missed,omitempty" flag:"missed" doc:"{WHICH} instants are made up at which no supervisor ran: once (default), all or none"`
	Package json.RawMessage  `json:"package"`
}

// nextShown is how many instants a status has.
const nextShown = 3

// ScheduleStatus is a schedule at the time of the answer.
type ScheduleStatus struct {
	protocol.Schedule
	Next []time.Time `json:"next"` // the next instants; none if it is paused
	// LateSince is the instant that no supervisor has fired for two minutes.
	LateSince time.Time       `json:"late_since,omitzero"`
	Package   json.RawMessage `json:"package,omitempty"`
}

// scheduleStatusAt returns the status of a schedule at an instant.
func scheduleStatusAt(s protocol.Schedule, now time.Time) ScheduleStatus {
	v := ScheduleStatus{Schedule: s, Next: []time.Time{}}
	rule, err := schedule.Of(&s)
	if err != nil || !s.PausedAt.IsZero() {
		return v
	}
	v.Next = rule.ComingOf(&s, now, nextShown)
	v.LateSince = schedule.LateSince(&s, now)
	return v
}

// setPause begins or ends a pause at an instant. It returns false if that changes nothing.
func (c *Session) setPause(pause bool, now time.Time, pausedAt, updatedAt *time.Time, by *string) bool {
	if pausedAt.IsZero() != pause {
		return false
	}
	*pausedAt, *updatedAt, *by = time.Time{}, now, c.caller.Name
	if pause {
		*pausedAt = now
	}
	return true
}

// PutSchedule creates a schedule, or replaces it. A new cron or zone begins with the next instant
// after now; otherwise no instant is left out. A field that it cannot have is refused, and nothing is changed.
func (c *Session) PutSchedule(ctx context.Context, r PutSchedule) (ScheduleStatus, error) {
	if err := c.may("PutSchedule"); err != nil {
		return ScheduleStatus{}, err
	}
	if len(r.Package) == 0 {
		return ScheduleStatus{}, protocol.Errorf(protocol.CodeMissing, "package", "is missing: each instant submits it")
	}
	pkg, err := protocol.DecodePackage(r.Package)
	if err != nil {
		return ScheduleStatus{}, broker.BelowPackage(err)
	}
	s := protocol.Schedule{Name: r.Name, Cron: r.Cron, Zone: r.Zone, Overlap: r.Overlap, Missed: r.Missed, By: c.caller.Name}
	s, err = c.s.b.Schedules().Put(ctx, s, pkg)
	if err != nil {
		return ScheduleStatus{}, err
	}
	return scheduleStatusAt(s, c.s.b.Now()), nil
}

// Schedules lists the schedules by name, without their packages.
func (c *Session) Schedules(ctx context.Context) ([]ScheduleStatus, error) {
	d, err := allowed(ctx, c, "Schedules", c.s.b.Directory)
	if err != nil {
		return nil, err
	}
	all := []ScheduleStatus{}
	for _, name := range slices.Sorted(maps.Keys(d.Schedules)) {
		all = append(all, scheduleStatusAt(d.Schedules[name], c.s.b.Now()))
	}
	return all, nil
}

// Schedule returns one schedule, with its package.
func (c *Session) Schedule(ctx context.Context, name string) (ScheduleStatus, error) {
	if err := c.may("Schedule"); err != nil {
		return ScheduleStatus{}, err
	}
	s, _, err := c.s.b.Schedules().Get(ctx, name)
	if err != nil {
		return ScheduleStatus{}, err
	}
	v := scheduleStatusAt(s, c.s.b.Now())
	v.Package, err = c.s.b.Schedules().Package(ctx, name)
	return v, err
}

// PauseSchedule stops a schedule. Its handoffs continue.
func (c *Session) PauseSchedule(ctx context.Context, name string) (ScheduleStatus, error) {
	return c.changeSchedule(ctx, "PauseSchedule", name, true)
}

// ResumeSchedule ends a pause. The instants of the pause are not made up.
func (c *Session) ResumeSchedule(ctx context.Context, name string) (ScheduleStatus, error) {
	return c.changeSchedule(ctx, "ResumeSchedule", name, false)
}

// changeSchedule pauses or resumes a schedule at an instant of whole milliseconds.
func (c *Session) changeSchedule(ctx context.Context, operation, name string, pause bool) (ScheduleStatus, error) {
	if err := c.may(operation); err != nil {
		return ScheduleStatus{}, err
	}
	s, err := c.s.b.Schedules().Change(ctx, name, func(s protocol.Schedule, now time.Time) (protocol.Schedule, bool) {
		now = now.Truncate(time.Millisecond)
		changed := c.setPause(pause, now, &s.PausedAt, &s.UpdatedAt, &s.By)
		if changed && !pause && now.After(s.DecidedTo) {
			s.DecidedTo = now
		}
		return s, changed
	})
	if err != nil {
		return ScheduleStatus{}, err
	}
	return scheduleStatusAt(s, c.s.b.Now()), nil
}

// RunSchedule submits the package of a schedule now, in addition to its instants. The schedule
// may be paused, and its previous handoff open.
func (c *Session) RunSchedule(ctx context.Context, name string) (protocol.State, error) {
	if err := c.may("RunSchedule"); err != nil {
		return protocol.State{}, err
	}
	head, err := c.s.b.Schedules().Submit(ctx, name, c.s.b.Now().Truncate(time.Millisecond))
	return head.State, err
}

// RemoveSchedule removes a schedule. Its handoffs continue.
func (c *Session) RemoveSchedule(ctx context.Context, name string) (ScheduleStatus, error) {
	if err := c.may("RemoveSchedule"); err != nil {
		return ScheduleStatus{}, err
	}
	s, err := c.s.b.Schedules().Remove(ctx, name)
	return ScheduleStatus{Schedule: s, Next: []time.Time{}}, err
}
