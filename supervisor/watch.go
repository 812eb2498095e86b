package supervisor

import (
	"sync/atomic"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Watch is told of what a supervisor does, for figures. It is called from any
// goroutine, and must neither block nor change what it is given.
type Watch interface {
	// Followed: an entry of the ledger fell to this supervisor. Among all
	// supervisors of an engine each entry falls to one, and again to one when
	// that one died before it was done with it.
	Followed(e broker.Entry, r protocol.Record)
	// Due: a wake-up came. asked is when it was to come, zero where nobody knows.
	Due(asked time.Time)
	// Looked: a try to look at a handoff has ended, with or without an error.
	Looked(err error)
	// Unreadable: so many handoffs are known by now whose head cannot be read.
	Unreadable(n int)
	// Passed: a pass over all heads has ended, in which so many were open. why
	// is one of PassReasons.
	Passed(why string, heads, open int, took time.Duration, err error)
}

// Why a pass is made.
const (
	passAtStart     = "start"
	passAtInterval  = "interval"
	passAsJudge     = "may judge"
	passReconnected = "reconnected"
	passDeparture   = "departure"
)

// PassReasons are all reasons for a pass.
var PassReasons = []string{passAtStart, passAtInterval, passAsJudge, passReconnected, passDeparture}

// unwatched is nobody.
type unwatched struct{}

func (unwatched) Followed(broker.Entry, protocol.Record)        {}
func (unwatched) Due(time.Time)                                 {}
func (unwatched) Looked(error)                                  {}
func (unwatched) Unreadable(int)                                {}
func (unwatched) Passed(string, int, int, time.Duration, error) {}

// since is when something began, in Unix nanoseconds; 0 is that nothing is under way.
type since struct{ at atomic.Int64 }

func (s *since) begin() { s.at.Store(time.Now().UnixNano()) }
func (s *since) end()   { s.at.Store(0) }

// Looking is how long the oldest look has been at its present try; 0 is that
// nothing is looked at. A try has an end, after 15 s: much more means that a loop
// is lost.
func (s *Supervisor) Looking() time.Duration {
	var longest time.Duration
	for i := range s.trying {
		if began := s.trying[i].at.Load(); began != 0 {
			longest = max(longest, time.Since(time.Unix(0, began)))
		}
	}
	return longest
}
