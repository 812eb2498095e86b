//go:build proof

package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/schedule"
	"github.com/agenthandoff/handoff/protocol"
)

// firesTwice is a planted bug: a key that is forgotten, so that the supervisor that takes an instant over
// submits it again.
const firesTwice bug = "a schedule that fires twice"

func init() { bugs = append(bugs, firesTwice) }

// firings are the handoffs of schedules.
type firings struct {
	schedules broker.Schedules
	of        map[string]string // the ticket of each key
	last      map[string]string // the last ticket of each schedule
	fired     map[string]int
}

// hasSchedules is true for every fifth simulation.
func (l *simulation) hasSchedules() bool { return l.seed%5 == 3 && l.bug != refusalLost }

// keepSchedules puts a schedule for each way to overlap, each some time after the one before it, and pauses
// them when the faults end. A person answers the questions of their handoffs.
func (l *simulation) keepSchedules() {
	if !l.hasSchedules() {
		return
	}
	b, err := broker.New(l.m, broker.Config{})
	if err != nil {
		panic(err)
	}
	l.judge.mu.Lock()
	l.judge.firings = firings{b.Schedules(), map[string]string{}, map[string]string{}, map[string]int{}}
	l.judge.mu.Unlock()
	for _, overlap := range protocol.Overlaps {
		s := protocol.Schedule{Name: string(overlap), Cron: "@every 1m", Overlap: overlap, Missed: protocol.MissedAll}
		pkg := protocol.Package{Target: protocol.Target{Agent: "a"}, Reason: "again", Task: protocol.Task{Description: fmt.Sprint("again ", overlap)}}
		if _, err := b.Schedules().Put(l.ctx, s, pkg); err != nil && l.ctx.Err() == nil {
			l.judge.fault("put the schedule %s: %v", overlap, err)
		}
		l.sleep(9 * time.Second)
	}
	for paused := false; l.ctx.Err() == nil; l.sleep(20*time.Second + 7*time.Millisecond) {
		if !paused && !l.faultsOn() {
			paused = true
			l.pauseSchedules(b)
		}
		l.judge.mu.Lock()
		tickets := slices.Sorted(maps.Values(l.judge.firings.of))
		l.judge.mu.Unlock()
		p, e, b, ctx := l.process("person of schedules")
		l.poll(ctx, b, protocol.Human, tickets)
		l.closeProcess(p, e)
	}
}

func (l *simulation) pauseSchedules(b *broker.Broker) {
	for _, overlap := range protocol.Overlaps {
		_, err := b.Schedules().Change(l.ctx, string(overlap), func(s protocol.Schedule, now time.Time) (protocol.Schedule, bool) {
			s.PausedAt, s.Waiting = now, nil
			return s, true
		})
		if err != nil && l.ctx.Err() == nil {
			l.judge.fault("pause the schedule %s: %v", overlap, err)
		}
	}
}

// checkFirings: an instant has one handoff, and none begins while the previous one is open, where the
// schedule has one at a time.
func (j *judge) checkFirings(s protocol.State, events []protocol.Event) {
	if s.Schedule == "" || len(events) == 0 {
		return
	}
	submitted, is := events[0].(*protocol.Submitted)
	if !is {
		return
	}
	pkg, err := protocol.DecodePackage(submitted.Package)
	if err != nil {
		j.faultLocked("the package of %s: %v", s.Ticket, err)
	}
	f := &j.firings
	if other := f.of[pkg.Key]; other != "" {
		j.faultLocked("%s fires twice: %s and %s", pkg.Key, other, s.Ticket)
	}
	if previous := f.last[s.Schedule]; previous != "" && s.Schedule != string(protocol.OverlapAllow) && !lifecycle.HasEnded(j.heads[previous].state) {
		j.faultLocked("%s begins while %s is open", pkg.Key, previous)
	}
	f.of[pkg.Key], f.last[s.Schedule] = s.Ticket, s.Ticket
	f.fired[s.Schedule]++
}

// checkSchedules: each instant up to the pause is counted once, as fired, refused, skipped or missed, and the handoffs
// are as many as were counted.
func (j *judge) checkSchedules() {
	if !j.l.hasSchedules() {
		return
	}
	for _, overlap := range protocol.Overlaps {
		s, _, err := j.firings.schedules.Get(context.Background(), string(overlap))
		if err != nil {
			j.faultLocked("the schedule %s: %v", overlap, err)
			continue
		}
		rule, err := schedule.Parse(s.Cron, s.Zone, s.CreatedAt)
		if err != nil {
			j.faultLocked("the schedule %s: %v", overlap, err)
			continue
		}
		instants := 0
		for at := rule.Next(s.CreatedAt); !at.After(s.DecidedTo); at = rule.Next(at) {
			instants++
		}
		fired, counted := j.firings.fired[s.Name], s.FiredCount+s.SkippedCount+s.MissedCount+s.RefusedCount
		if len(s.Firing) > 0 || fired != s.FiredCount || counted > instants || overlap != protocol.OverlapQueue && counted < instants || s.PausedAt.Sub(s.DecidedTo) > 3*time.Minute {
			j.faultLocked("%d instants of the schedule %s began %d handoffs: %+v", instants, overlap, fired, s)
		}
	}
}

// Record waits for the scheduler.
func (e *engine) Record(ctx context.Context, key broker.RecordKey) ([]byte, uint64, error) {
	if err := e.await(ctx, "record "+key.Name); err != nil {
		return nil, 0, err
	}
	return e.Memory.Record(ctx, key)
}

// PutRecord may kill its process, before or after the record is stored.
func (e *engine) PutRecord(ctx context.Context, key broker.RecordKey, body []byte, rev uint64) (uint64, error) {
	if err := e.await(ctx, "put record "+key.Name); err != nil {
		return 0, err
	}
	if e.l.dies(e.p, key.Name, rev, "before") {
		return 0, e.p.gone()
	}
	next, err := e.Memory.PutRecord(ctx, key, body, rev)
	if err == nil && e.l.dies(e.p, key.Name, rev, "behind") {
		return 0, e.p.gone()
	}
	return next, err
}

// appendAgain stores the second submission of a key as another handoff, where that is the planted bug.
func (e *engine) appendAgain(ctx context.Context, ticket string, after uint64, id string, body []byte, err error) (string, []byte, uint64, error) {
	if e.l.bug != firesTwice || after != 0 || !errors.Is(err, broker.ErrConflict) || !bytes.Contains(body, []byte(`"schedule":`)) {
		return ticket, body, 0, err
	}
	again := protocol.RedriveTicket(ticket)
	body = bytes.ReplaceAll(body, []byte(ticket), []byte(again))
	seq, err := e.Memory.AppendSilently(ctx, again, 0, id, body)
	return again, body, seq, err
}
