package supervisor

import (
	"context"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// suspectDeadlock has a sweep look for circles, where a handoff keeps its slot for one that has stood
// for long in a queue.
func (s *Supervisor) suspectDeadlock(ctx context.Context, head broker.Head) error {
	_, keepsSlot, err := broker.WaitersOf(ctx, s.b.Head, head.State)
	if err == nil && keepsSlot {
		select {
		case s.suspects <- struct{}{}:
		default: // it looks for all of them
		}
	}
	return err
}

// resolveDeadlocks has the circles resolved that a sweep has found among the handoffs it saw.
func (s *Supervisor) resolveDeadlocks(ctx context.Context, waits *lifecycle.WaitGraph) {
	directory, err := s.b.Directory(ctx)
	if err != nil {
		return // the next sweep finds them
	}
	for _, found := range waits.Deadlocks(directory) {
		s.enqueue(ctx, request{ticket: found.Youngest.Ticket, deadlock: &found, childrenSwept: true})
	}
}

// breakDeadlock takes the youngest handoff out of a circle. A sweep reads heads one after the other,
// and some may have moved on before it read the last. So the circle is read again, and one that does
// not stand by itself is left to the next sweep.
func (s *Supervisor) breakDeadlock(ctx context.Context, r *request) error {
	var waits lifecycle.WaitGraph
	var youngest broker.Head
	for _, ticket := range r.deadlock.Cycle {
		head, err := s.b.Head(ctx, ticket, 0)
		if err != nil {
			return err
		}
		if waits.Add(&head.State, s.b.Now()); ticket == r.ticket {
			youngest = head
		}
	}
	directory, err := s.b.Directory(ctx)
	if err != nil {
		return err
	}
	for _, found := range waits.Deadlocks(directory) {
		if found.Youngest.Ticket != r.ticket {
			continue
		}
		before := youngest.State
		head, appended, err := s.b.UpdateFrom(ctx, youngest, func(h broker.Head, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
			return lifecycle.BreakDeadlock(h.State, d, found, now)
		})
		if err != nil || !appended {
			return err
		}
		s.logDecision(before, head)
		return s.reconcileOpen(ctx, head, &request{ticket: r.ticket, childrenSwept: true})
	}
	return nil
}
