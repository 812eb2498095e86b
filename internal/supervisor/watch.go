package supervisor

import (
	"sync/atomic"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Watch receives the figures of a supervisor. It is called from any goroutine, and must neither block
// nor change what it is given.
type Watch interface {
	// Followed: an entry of the ledger fell to this supervisor. Among all
	// supervisors of an engine each entry falls to one, and again to one when
	// that one died before it was done with it.
	Followed(e broker.Entry, r protocol.Record)
	// Due: a wake-up came. asked is its time; zero if it is not known.
	Due(asked time.Time)
	// Reconciled: a try to reconcile a handoff has ended, with or without an error.
	Reconciled(err error)
	// Unreadable: so many handoffs are known by now whose head cannot be read.
	Unreadable(n int)
	// Swept: a sweep has ended, over so many heads, of which so many were open. why is
	// one of SweepReasons.
	Swept(why string, heads, open int, took time.Duration, err error)
	// Tripped: this supervisor has opened the breaker of an agent.
	Tripped(agent string)
}

// Reasons for a sweep; they are values of a metric's label.
const (
	sweepAtStart     = "start"
	sweepAtInterval  = "interval"
	sweepExpired     = "may judge"
	sweepReconnected = "reconnected"
	sweepDeparture   = "departure"
)

// SweepReasons are all reasons for a sweep.
var SweepReasons = []string{sweepAtStart, sweepAtInterval, sweepExpired, sweepReconnected, sweepDeparture}

// noWatch is a Watch that counts nothing.
type noWatch struct{}

func (noWatch) Followed(broker.Entry, protocol.Record)       {}
func (noWatch) Due(time.Time)                                {}
func (noWatch) Reconciled(error)                             {}
func (noWatch) Unreadable(int)                               {}
func (noWatch) Swept(string, int, int, time.Duration, error) {}
func (noWatch) Tripped(string)                               {}

// watchEntry gives an entry of the ledger to the Watch.
func (s *Supervisor) watchEntry(e broker.Entry, done func()) {
	defer done()
	_ = s.recoverPanic(e.Ticket, func() error {
		record, err := broker.RecordOf(e)
		if err != nil {
			s.noteUnreadable(e.Ticket, e.Seq, err)
			return nil
		}
		s.noteReadable(e.Ticket, e.Seq)
		s.cfg.Watch.Followed(e, record)
		return nil
	})
}

// startedAt is when something began, in Unix nanoseconds; 0 is that nothing is under way.
type startedAt struct{ nanos atomic.Int64 }

func (s *startedAt) begin() { s.nanos.Store(time.Now().UnixNano()) }
func (s *startedAt) end()   { s.nanos.Store(0) }

// OldestReconcile is how long the oldest reconcile has been at its present try; 0 if none is under way.
// A try ends after 15 s: much more means that a loop is lost.
func (s *Supervisor) OldestReconcile() time.Duration {
	var longest time.Duration
	for i := range s.attempts {
		if began := s.attempts[i].nanos.Load(); began != 0 {
			longest = max(longest, time.Since(time.Unix(0, began)))
		}
	}
	return longest
}
