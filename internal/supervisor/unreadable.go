package supervisor

import (
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/agenthandoff/handoff/broker"
)

const (
	// unreadableMax is how many handoffs with an unreadable head are remembered.
	unreadableMax = 100_000
	// unreadableLogged is how many of them the log names, each once. handoff doctor
	// names the others.
	unreadableLogged = 100
)

// unreadable are the handoffs whose head cannot be read. They are stuck: the supervisor
// passes over them, at the cost of the reading, until another entry follows.
type unreadable struct {
	mu       sync.Mutex
	seqs     map[string]uint64 // of the head, by ticket
	reported int
}

// noteUnreadable notes that an entry cannot be read.
func (s *Supervisor) noteUnreadable(ticket string, seq uint64, err error) {
	u := &s.unreadable
	u.mu.Lock()
	known, there := u.seqs[ticket]
	if there && known >= seq {
		u.mu.Unlock()
		return
	}
	if there || len(u.seqs) < unreadableMax {
		if u.seqs == nil {
			u.seqs = map[string]uint64{}
		}
		u.seqs[ticket] = seq
	}
	u.reported++
	said, n := u.reported, len(u.seqs)
	u.mu.Unlock()
	s.cfg.Watch.Unreadable(n)
	switch {
	case said < unreadableLogged:
		s.log.Error("handoff is stuck: its entry cannot be read", "ticket", ticket, "seq", seq, "err", err)
	case said == unreadableLogged:
		s.log.Error("handoff is stuck: its entry cannot be read; further ones are not logged, the doctor counts them", "ticket", ticket, "seq", seq, "err", err)
	}
}

// noteReadable notes that the head of a handoff can be read.
func (s *Supervisor) noteReadable(ticket string, seq uint64) {
	u := &s.unreadable
	u.mu.Lock()
	known, there := u.seqs[ticket]
	if there && seq > known {
		delete(u.seqs, ticket)
	}
	n := len(u.seqs)
	u.mu.Unlock()
	if there && seq > known {
		s.cfg.Watch.Unreadable(n)
	}
}

// headOf reads the head of a handoff out of an entry that a sweep came by.
func (s *Supervisor) headOf(e broker.Entry) (broker.Head, bool) {
	head, err := broker.HeadOf(e)
	if err != nil {
		s.noteUnreadable(e.Ticket, e.Seq, err)
		return head, false
	}
	s.noteReadable(e.Ticket, e.Seq)
	return head, true
}

// recoverPanic is the last net under what is done about one handoff: a panic makes it that
// handoff's error. What is read is checked, so this is a bug, and is logged as one.
func (s *Supervisor) recoverPanic(ticket string, do func() error) (err error) {
	defer func() {
		if broken := recover(); broken != nil {
			s.log.Error("panic over a handoff: this is a bug", "ticket", ticket, "panic", broken, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w about %s: %v", errPanic, ticket, broken)
		}
	}()
	return do()
}
