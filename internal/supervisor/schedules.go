package supervisor

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/internal/schedule"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	// scheduleEvery is the time between two looks at the schedules in the snapshot of the directory. A
	// look makes a request only for a schedule that is due.
	scheduleEvery = time.Second
	// scheduleAgain is the time between two reads of a schedule that waits for the end of its previous
	// handoff, or whose last submission failed.
	scheduleAgain = 5 * time.Second
)

// scheduleLoop fires the schedules that are due, until ctx ends.
func (s *Supervisor) scheduleLoop(ctx context.Context) error {
	looked := map[string]time.Time{}
	return everyTick(ctx, scheduleEvery, func() { s.fireDue(ctx, looked) })
}

// fireDue fires the schedules that are due. looked has the times of the last attempts that submitted
// nothing, by name.
func (s *Supervisor) fireDue(ctx context.Context, looked map[string]time.Time) {
	d, err := s.b.Directory(ctx)
	if err != nil || len(d.Schedules) == 0 { // the usual case
		return
	}
	now := s.b.Now()
	for _, name := range slices.Sorted(maps.Keys(d.Schedules)) {
		of := d.Schedules[name]
		if now.Sub(looked[name]) < scheduleAgain || !mayFire(&of, now) {
			continue
		}
		fired, err := s.b.Schedules().Fire(ctx, name)
		if ctx.Err() != nil {
			return
		}
		if looked[name] = now; fired && err == nil {
			delete(looked, name)
		}
		if err != nil && !errors.Is(err, &protocol.Error{Code: protocol.CodeNotFound}) {
			s.log.Warn("schedule not fired; trying again", "schedule", name, "err", err)
		}
	}
	maps.DeleteFunc(looked, func(name string, at time.Time) bool { return now.Sub(at) >= scheduleAgain })
}

// mayFire reports whether a schedule, as the snapshot has it, is to be read.
func mayFire(of *protocol.Schedule, now time.Time) bool {
	if len(of.Firing) > 0 {
		return true
	}
	rule, err := schedule.Of(of)
	return err == nil && rule.IsDue(of, now)
}
