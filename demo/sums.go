package demo

import (
	"context"
	"fmt"
	"slices"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/explain"
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
	Lost       int `json:"lost"`       // given to an agent, and not in the ledger or not closed
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

// tickets are those that the relay was given: the first, and what each handoff has handed off.
func tickets(first string, changes []protocol.Change) []string {
	all := []string{first}
	for _, c := range changes {
		if children := c.Record.State.Children; children != nil {
			for _, n := range children.Made.Numbers() {
				all = append(all, protocol.ChildTicketN(c.Record.State.Ticket, n))
			}
		}
	}
	return all
}

// words says what the sums mean.
func (s Sums) words() string {
	return fmt.Sprintf("%s submitted, %d closed, %d of them with success. On the way %d escalated, %d tried again, %d rerouted.\n"+
		"By the ledger, read from its first message and held against the tickets that the agents were given: %d lost, %d done twice.",
		explain.Count(s.Submitted, "handoff"), s.Closed, s.Succeeded, s.Escalated, s.Retried, s.Rerouted, s.Lost, s.Duplicated)
}

// sum holds the ledger against the tickets that were given. It counts
// events and does not trust the state that the last of them carries.
func sum(changes []protocol.Change, given []string) Sums {
	last := map[string]protocol.State{}
	closings, retried, rerouted, escalated := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	for _, c := range changes {
		ticket := c.Record.State.Ticket
		last[ticket] = c.Record.State
		for _, e := range c.Record.Events {
			switch e := e.(type) {
			case *protocol.Completed, *protocol.Closed:
				closings[ticket]++
			case *protocol.Accepted:
				if e.Attempt > 1 {
					retried[ticket]++
				}
			case *protocol.Rerouted:
				rerouted[ticket]++
			case *protocol.Escalated:
				escalated[ticket]++
			}
		}
	}
	s := Sums{Submitted: len(last), Closed: len(closings), Retried: len(retried), Rerouted: len(rerouted), Escalated: len(escalated)}
	done := map[string]bool{} // steps
	for ticket, state := range last {
		if state.Outcome == protocol.OutcomeSuccess {
			s.Succeeded++
		}
		step := state.WorkflowID + "/" + state.TaskID
		completed := closings[ticket] > 0 && state.Phase == protocol.Complete
		if closings[ticket] > 1 || completed && done[step] {
			s.Duplicated++
		}
		done[step] = done[step] || completed
	}
	slices.Sort(given)
	for _, ticket := range slices.Compact(given) { // each later state of its parent names it again
		if _, there := last[ticket]; !there {
			s.Submitted++ // an agent was told so
		}
		if closings[ticket] == 0 {
			s.Lost++
		}
	}
	return s
}
