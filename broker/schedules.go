package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/schedule"
	"github.com/agenthandoff/handoff/protocol"
)

// Schedules are the schedules of the fleet. A schedule is decided by compare-and-set of its record,
// so one supervisor decides about each instant, once. Its handoff is submitted afterwards, under a
// key that has the instant: if that supervisor dies, another submits it, and two make one handoff.
// The ledger has a key for LedgerAge; DecidedTo covers older instants.
type Schedules struct{ records[protocol.Schedule] }

// Schedules returns the schedules of the fleet.
func (b *Broker) Schedules() Schedules {
	return Schedules{records[protocol.Schedule]{b: b, kind: ScheduleRecord, body: PackageRecord, largest: "cron", bytesMax: protocol.ScheduleBytesMax,
		most: protocol.SchedulesMax, decode: ScheduleIn, count: func(d *lifecycle.Directory) int { return len(d.Schedules) }}}
}

// ScheduleIn decodes the record of a schedule.
func ScheduleIn(name string, body []byte) (protocol.Schedule, error) {
	return EntryIn("schedule", name, body, protocol.ScheduleBytesMax, func(s *protocol.Schedule) string { return s.Name })
}

// Put creates a schedule, or replaces its fields and its package. A new cron or zone begins with
// the next instant after now; otherwise no instant is left out.
func (c Schedules) Put(ctx context.Context, s protocol.Schedule, pkg protocol.Package) (protocol.Schedule, error) {
	now := c.b.Now().UTC().Truncate(time.Millisecond)
	if err := s.Validate(); err != nil {
		return s, err
	}
	if _, err := schedule.Parse(s.Cron, s.Zone, now); err != nil {
		return s, err
	}
	body, err := c.check(ctx, s.Name, pkg, now)
	if err != nil {
		return s, err
	}
	return c.replace(ctx, s.Name, body, func(next protocol.Schedule, exists bool) protocol.Schedule {
		if !exists {
			next = s
			next.CreatedAt, next.DecidedTo = now, now
		} else if s.Cron != next.Cron || s.Zone != next.Zone {
			next.DecidedTo, next.Waiting = now, nil
		}
		next.Cron, next.Zone, next.Overlap, next.Missed, next.By, next.UpdatedAt = s.Cron, s.Zone, s.Overlap, s.Missed, s.By, now
		return next
	})
}

// check refuses a package that no instant could submit, by the field below package, and returns its
// form to store.
func (c Schedules) check(ctx context.Context, name string, pkg protocol.Package, now time.Time) ([]byte, error) {
	if err := refuseOwn(pkg, protocol.ScheduleSource, "is of each instant of a schedule: leave it out"); err != nil {
		return nil, BelowPackage(err)
	}
	_, body, err := c.prepare(ctx, name, pkg, now, true)
	err = BelowPackage(err)
	if err == nil && len(body) > protocol.SchedulePackageBytesMax {
		err = protocol.Errorf(protocol.CodeTooLarge, "package", "%s; hand large files over as artifacts", protocol.OverSize(len(body), protocol.SchedulePackageBytesMax))
	}
	return body, err
}

// refuseOwn refuses the fields of a package that each of its handoffs has for itself. own is the reason.
func refuseOwn(pkg protocol.Package, source, own string) error {
	switch {
	case pkg.Source != "" && pkg.Source != source:
		return protocol.Errorf(protocol.CodeConflict, "source", "is %s for its handoffs: leave it out", source)
	case pkg.Key != "":
		return protocol.Errorf(protocol.CodeConflict, "key", "%s", own)
	case !pkg.CreatedAt.IsZero():
		return protocol.Errorf(protocol.CodeConflict, "created_at", "%s", own)
	case !pkg.StartAt.IsZero():
		return protocol.Errorf(protocol.CodeConflict, "start_at", "%s", own)
	case !pkg.Constraints.Deadline.IsZero():
		return protocol.Errorf(protocol.CodeConflict, "constraints.deadline", "would pass once; expectations.timeout_ms bounds each handoff")
	case pkg.Parent != "":
		return protocol.Errorf(protocol.CodeConflict, "parent", "would be the parent of all its handoffs: leave it out")
	}
	return nil
}

// BelowPackage names the field of a refusal of a package within the request that has the package.
func BelowPackage(err error) error {
	var refused *protocol.Error
	if !errors.As(err, &refused) {
		return err
	}
	below := *refused
	below.Field = strings.TrimSuffix("package."+strings.TrimPrefix(refused.Field, "package"), ".")
	return &below
}

// prepare prepares the package of an instant, and returns the package to store. With look it also
// refuses a target that no agent has.
func (c Schedules) prepare(ctx context.Context, name string, pkg protocol.Package, at time.Time, look bool) (Prepared, []byte, error) {
	pkg.Source, pkg.Key = "", ""
	body, _, err := c.b.encodePackage(ctx, pkg)
	if err != nil {
		return Prepared{}, nil, err
	}
	pkg.Source, pkg.Key = protocol.ScheduleSource, protocol.ScheduleKey(name, at)
	in, err := c.b.Prepare(ctx, pkg)
	if err == nil && look {
		err = c.b.checkAgent(ctx, in)
	}
	return in, body, err
}

// checkAgent refuses a target that no agent has. All else about it may change until it is submitted.
func (b *Broker) checkAgent(ctx context.Context, in Prepared) error {
	_, err := b.CheckTarget(ctx, in)
	var refused *protocol.Error
	if errors.As(err, &refused) && (refused.Code == protocol.CodeUnknownAgent || refused.Code == protocol.CodeNoAgent) {
		return err
	}
	return nil
}

// Submit submits the handoff of one instant of a schedule. Repeating it returns the same handoff.
func (c Schedules) Submit(ctx context.Context, name string, at time.Time) (Head, error) {
	body, err := c.Package(ctx, name)
	if err != nil {
		return Head{}, err
	}
	pkg, err := protocol.DecodePackage(body)
	if err != nil {
		return Head{}, err
	}
	in, _, err := c.prepare(ctx, name, pkg, at, false)
	if err != nil {
		return Head{}, err
	}
	head, err := c.b.Submit(ctx, in)
	if errors.Is(err, &protocol.Error{Code: protocol.CodeKeyReused}) { // submitted before the package was replaced
		return c.b.Head(ctx, in.Ticket, 0)
	}
	return head, err
}

// submitWithin bounds the submission of one instant. Its supervisor tries again afterwards.
const submitWithin = 10 * time.Second

// takeOverAfter is the time after which another supervisor submits the instants that one has decided.
const takeOverAfter = 5 * time.Second

// Fire decides about the instants of a schedule that are due, and submits their handoffs. It reports
// whether it submitted any. Any number of processes may call it at once.
func (c Schedules) Fire(ctx context.Context, name string) (fired bool, err error) {
	s, rev, err := c.Get(ctx, name)
	if err != nil {
		return false, err
	}
	now := c.b.Now().UTC()
	if len(s.Firing) == 0 {
		rule, err := schedule.Of(&s)
		if err != nil || !rule.IsDue(&s, now) {
			return false, err
		}
		open, err := c.isOpen(ctx, s)
		if err != nil {
			return false, err
		}
		decided, changed := rule.Decide(s, now, open)
		if !changed {
			return false, nil
		}
		if err := c.put(ctx, name, decided, rev); err != nil {
			if errors.Is(err, ErrConflict) { // another supervisor has decided
				err = nil
			}
			return false, err
		}
		s = decided
	} else if now.Sub(s.FiringSince) < takeOverAfter {
		return false, nil
	}
	for _, at := range s.Firing {
		if err := c.submitInstant(ctx, name, at); err != nil {
			return fired, err
		}
		fired = true
	}
	return fired, nil
}

// submitInstant submits the handoff of an instant, and records it.
func (c Schedules) submitInstant(ctx context.Context, name string, at time.Time) error {
	limited, cancel := context.WithTimeout(ctx, submitWithin)
	defer cancel()
	head, err := c.Submit(limited, name, at)
	f := protocol.Firing{At: at, Ticket: head.Ticket}
	var refused *protocol.Error
	switch {
	case errors.As(err, &refused) && refused.Code != protocol.CodeUnreachable:
		f.Ticket, f.Code, f.Message = "", refused.Code, protocol.CutText(refused.Error(), 512)
		c.b.log.Warn("schedule refused", "schedule", name, "instant", at, "err", err)
	case err != nil:
		return fmt.Errorf("schedule %s at %s: %w", name, at.Format(time.RFC3339), err)
	}
	_, err = c.Change(ctx, name, func(s protocol.Schedule, now time.Time) (protocol.Schedule, bool) {
		f.FiredAt = now
		return schedule.Done(s, f)
	})
	if errors.Is(err, &protocol.Error{Code: protocol.CodeNotFound}) { // it was removed meanwhile
		err = nil
	}
	return err
}

// isOpen reports whether the previous handoff of a schedule is open, if its rule asks.
func (c Schedules) isOpen(ctx context.Context, s protocol.Schedule) (bool, error) {
	if s.Overlap == protocol.OverlapAllow || s.Last == nil {
		return false, nil
	}
	head, err := c.b.Head(ctx, s.Last.Ticket, 0)
	if isAbsent(err) {
		return false, nil
	}
	return err == nil && !lifecycle.HasEnded(head.State), err
}
