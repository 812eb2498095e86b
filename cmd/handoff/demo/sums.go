package demo

import (
	"bufio"
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Sums are what the ledger says of a run, in handoffs.
type Sums struct {
	Submitted  int `json:"submitted"`
	Closed     int `json:"closed"`
	Succeeded  int `json:"succeeded"`
	Escalated  int `json:"escalated"`
	Retried    int `json:"retried"`    // needed another attempt: the one before failed, or its worker was gone
	Rerouted   int `json:"rerouted"`   // went to another agent
	Lost       int `json:"lost"`       // acknowledged to whoever submitted, and not in the ledger or not closed
	Duplicated int `json:"duplicated"` // closed more than once, or a step of the relay done by two handoffs
}

// Sound tells whether everything that was submitted was done, once.
func (s Sums) Sound() bool {
	return s.Submitted > 0 && s.Lost == 0 && s.Duplicated == 0 && s.Closed == s.Submitted
}

// readFrom reads the ledger from a sequence on; 0 is its first message.
func readFrom(ctx context.Context, b *broker.Broker, from uint64) ([]protocol.Change, error) {
	var changes []protocol.Change
	err := b.Entries(ctx, from, func(e broker.Entry) error {
		change, err := broker.DecodeChange(e)
		changes = append(changes, change)
		return err
	})
	return changes, err
}

// readAcknowledged reads the tickets that Submit returned to the processes of a run.
func readAcknowledged(run string) ([]string, error) {
	file, err := os.Open(filepath.Join(run, acknowledged))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var tickets []string
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		tickets = append(tickets, lines.Text())
	}
	return tickets, lines.Err()
}

// account is what the ledger's entries say of one handoff.
type account struct {
	last                         protocol.State
	closings                     int
	retried, rerouted, escalated bool
}

// sum holds the ledger against the list of what was acknowledged. It counts
// events and does not trust the state that the last of them carries.
func sum(changes []protocol.Change, acknowledged []string) Sums {
	accounts := map[string]*account{}
	for _, c := range changes {
		ticket := c.Record.State.Ticket
		if accounts[ticket] == nil {
			accounts[ticket] = &account{}
		}
		accounts[ticket].add(c)
	}
	var s Sums
	done := map[string]int{} // by step
	for _, a := range accounts {
		a.addTo(&s)
		if a.closings > 0 && a.last.Phase == protocol.Complete {
			step := a.last.WorkflowID + "/" + a.last.TaskID
			if done[step]++; done[step] > 1 {
				s.Duplicated++
			}
		}
	}
	seen := map[string]bool{}
	for _, ticket := range acknowledged {
		if seen[ticket] { // acknowledged twice: the second attempt of a step hands on under the same ticket
			continue
		}
		seen[ticket] = true
		if accounts[ticket] == nil {
			s.Submitted++ // somebody was told so
		}
		if accounts[ticket] == nil || accounts[ticket].closings == 0 {
			s.Lost++
		}
	}
	return s
}

func (a *account) add(c protocol.Change) {
	a.last = c.Record.State
	for _, e := range c.Record.Events {
		switch e := e.(type) {
		case *protocol.Completed, *protocol.Closed:
			a.closings++
		case *protocol.Accepted:
			a.retried = a.retried || e.Attempt > 1
		case *protocol.Rerouted:
			a.rerouted = true
		case *protocol.Escalated:
			a.escalated = true
		}
	}
}

func (a *account) addTo(s *Sums) {
	s.Submitted++
	if a.closings > 0 {
		s.Closed++
	}
	if a.closings > 1 {
		s.Duplicated++
	}
	if a.last.Outcome == protocol.OutcomeSuccess {
		s.Succeeded++
	}
	if a.retried {
		s.Retried++
	}
	if a.rerouted {
		s.Rerouted++
	}
	if a.escalated {
		s.Escalated++
	}
}
