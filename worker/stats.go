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
	Released  int64 // given back without charge: cancelled, shut down, unfit
	Lost      int64 // another's, or closed, before the report

	Suspended  int64 // waiting for what they have handed off
	Escalated  int64 // passed up the chain of authority
	Answered   int64 // sent back to the agent that had escalated them
	HandedBack int64 // returned to their source

	Declined int64 // rejected or conditional before they were accepted: not in Claimed
	Busy     int   // slots in use now
	Slots    int
}

type counters struct {
	claimed, completed, failed, refused, released, lost, declined,
	suspended, escalated, answered, handedBack atomic.Int64
}

// Stats returns the counts so far. It is safe to call at any time.
func (w *Worker) Stats() Stats {
	c := &w.counts
	return Stats{
		Claimed: c.claimed.Load(), Completed: c.completed.Load(), Failed: c.failed.Load(), Refused: c.refused.Load(),
		Released: c.released.Load(), Lost: c.lost.Load(), Declined: c.declined.Load(),
		Suspended: c.suspended.Load(), Escalated: c.escalated.Load(), Answered: c.answered.Load(), HandedBack: c.handedBack.Load(),
		Busy: w.runs.len(), Slots: int(w.slotCount.Load()),
	}
}

// pulse is what others may read of a worker's beats while it runs.
type pulse struct {
	presence atomic.Pointer[presence]
	turned   atomic.Int64 // Unix nanoseconds; 0 before the first turn
}

func (p *pulse) turn() { p.turned.Store(time.Now().UnixNano()) }

// Present tells whether the engine has confirmed within the lease that this
// worker is there. Without that it takes nothing.
func (w *Worker) Present() bool {
	p := w.pulse.presence.Load()
	return p != nil && p.isHeld()
}

// Overdue is by how much the next turn of the loop that beats is late, whether or
// not the engine answers; 0 where it is not, or Run has not come that far. More than
// a few seconds mean that the loop is lost.
func (w *Worker) Overdue() time.Duration {
	turned := w.pulse.turned.Load()
	if turned == 0 {
		return 0
	}
	return max(0, time.Since(time.Unix(0, turned))-w.cfg.Beat-w.cfg.BeatTimeout)
}
