package worker

import (
	"sync/atomic"
	"time"
)

// Stats counts what became of the handoffs of one worker, from its start.
// Claimed is the sum of the others and of those in hand.
type Stats struct {
	Claimed   int64 // accepted
	Completed int64
	Failed    int64 // attempts that failed
	Refused   int64 // rejected or conditional after they were accepted
	Released  int64 // released without charge: cancelled, shut down, unfit
	Lost      int64 // another's, or closed, before the report

	Suspended  int64 // waiting for what they have handed off
	Escalated  int64 // passed up the chain of authority
	Answered   int64 // sent back to the agent that had escalated them
	RolledBack int64 // returned to their source

	Declined int64 // rejected or conditional before they were accepted: not in Claimed
	Busy     int   // slots in use now
	Slots    int
}

type counters struct {
	claimed, completed, failed, refused, released, lost, declined,
	suspended, escalated, answered, rolledBack atomic.Int64
}

// Stats returns the counts so far. It is safe to call at any time.
func (w *Worker) Stats() Stats {
	c := &w.counts
	return Stats{
		Claimed: c.claimed.Load(), Completed: c.completed.Load(), Failed: c.failed.Load(), Refused: c.refused.Load(),
		Released: c.released.Load(), Lost: c.lost.Load(), Declined: c.declined.Load(),
		Suspended: c.suspended.Load(), Escalated: c.escalated.Load(), Answered: c.answered.Load(), RolledBack: c.rolledBack.Load(),
		Busy: w.runs.len(), Slots: int(w.slotCount.Load()),
	}
}

// heartbeat is what others may read of a worker's beats while it runs.
type heartbeat struct {
	presence atomic.Pointer[presence]
	tickedAt atomic.Int64 // Unix nanoseconds; 0 before the first turn
}

func (p *heartbeat) tick() { p.tickedAt.Store(time.Now().UnixNano()) }

// Present tells whether the engine has confirmed within the lease that this
// worker is there. Without that it takes nothing.
func (w *Worker) Present() bool {
	p := w.heartbeat.presence.Load()
	return p != nil && p.isHeld()
}

// Overdue returns how late the next heartbeat is, whether or not the engine answers. It is 0
// where none is late, and before the first one. More than a few seconds mean that the loop
// is lost.
func (w *Worker) Overdue() time.Duration {
	tickedAt := w.heartbeat.tickedAt.Load()
	if tickedAt == 0 {
		return 0
	}
	return max(0, time.Since(time.Unix(0, tickedAt))-w.cfg.Beat-w.cfg.BeatTimeout)
}
