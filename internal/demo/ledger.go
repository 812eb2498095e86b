package demo

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// Screen receives the show: one line for each append to the ledger.
type Screen struct {
	Out    io.Writer
	Colour bool
}

func (s Screen) note(format string, args ...any) { fmt.Fprintf(s.Out, format+"\n", args...) }

// show writes the line of an append.
func (r *run) show(c protocol.Change) {
	words, notable := describe(c)
	if words == "" {
		return
	}
	s := c.Record.State
	agent := s.Agent
	if s.Gate != nil { // it has no offer yet
		agent = s.Gate.Agent
	}
	colour, end := "", "\x1b[0m"
	switch {
	case !r.cfg.Screen.Colour:
		end = ""
	case s.Closed && s.Outcome == protocol.OutcomeSuccess:
		colour = "\x1b[32m" // green
	case s.Closed:
		colour = "\x1b[31m" // red
	case notable:
		colour = "\x1b[33m" // yellow
	}
	r.cfg.Screen.note("%s%5.1f s  %s  %-22s  %-17s  %s%s", colour, c.At.Sub(r.began).Seconds(), s.Ticket[:8], s.Source+" → "+agent, s.Phase, words, end)
}

// shown are the events of the show; true marks those that need attention.
var shown = map[protocol.EventType]bool{
	protocol.EventSubmitted: false, protocol.EventAccepted: false, protocol.EventProgressed: false, protocol.EventCompleted: false,
	protocol.EventFailed: true, protocol.EventRejected: true, protocol.EventConditioned: true, protocol.EventAnswered: true,
	protocol.EventRetryScheduled: true, protocol.EventRerouted: true, protocol.EventEscalated: true, protocol.EventLeaseLost: true,
	protocol.EventTimedOut: true, protocol.EventReleased: true, protocol.EventClosed: true, protocol.EventStuck: true,
	protocol.EventGated: true, protocol.EventApproved: true,
}

// describe returns the events of an append in words, and whether one of them is notable.
func describe(c protocol.Change) (words string, notable bool) {
	var all []string
	for _, e := range c.Record.Events {
		unusual, known := shown[e.EventType()]
		if !known {
			continue
		}
		_, detail := explain.Event(e)
		switch e := e.(type) {
		case *protocol.Submitted:
			detail = steps[stepIndex(c.Record.State.TaskID)].task
		case *protocol.Completed:
			result, _ := protocol.DecodeResult(e.Result)
			detail = result.Summary
		}
		all = append(all, strings.ReplaceAll(string(e.EventType()), "_", " ")+": "+detail)
		notable = notable || unusual
	}
	return plain(strings.Join(all, "; ")), notable
}

// Sums counts the handoffs of a run by its ledger.
type Sums struct {
	Submitted  int `json:"submitted"`
	Closed     int `json:"closed"`
	Succeeded  int `json:"succeeded"`
	Escalated  int `json:"escalated"`
	Retried    int `json:"retried"` // needed more than one attempt
	Rerouted   int `json:"rerouted"`
	Lost       int `json:"lost"`       // given to an agent, and not in the ledger or not closed
	Duplicated int `json:"duplicated"` // closed more than once, or repeats a step of the relay
}

// Sound reports whether every submitted handoff closed exactly once.
func (s Sums) Sound() bool {
	return s.Submitted > 0 && s.Lost == 0 && s.Duplicated == 0 && s.Closed == s.Submitted
}

// readFrom reads the ledger from a sequence on; 0 is its first entry.
func readFrom(ctx context.Context, b *broker.Broker, from uint64) ([]protocol.Change, error) {
	var changes []protocol.Change
	err := b.Entries(ctx, broker.From(from), func(e broker.Entry) error {
		change, err := broker.DecodeChange(e)
		changes = append(changes, change)
		return err
	})
	return changes, err
}

// tickets are those that the agents were given: the first, and the children of each handoff.
func tickets(first string, changes []protocol.Change) []string {
	all := []string{first}
	for _, c := range changes {
		if children := c.Record.State.Children; children != nil {
			for _, n := range children.Made.Numbers() {
				all = append(all, c.Record.State.ChildTicket(n))
			}
		}
	}
	return all
}

// words returns the sums in words.
func (s Sums) words() string {
	return fmt.Sprintf("%s submitted, %d closed, %d of them with success. On the way %d escalated, %d tried again, %d rerouted.\n"+
		"By the ledger, read from its first message and held against the tickets that the agents were given: %d lost, %d done twice.",
		explain.Count(s.Submitted, "handoff"), s.Closed, s.Succeeded, s.Escalated, s.Retried, s.Rerouted, s.Lost, s.Duplicated)
}

// sum compares the ledger with the tickets that were given. It counts closing events: the state
// that comes with them does not count.
func sum(changes []protocol.Change, given []string) Sums {
	last, closings := map[string]protocol.State{}, map[string]int{}
	retried, rerouted, escalated := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, c := range changes {
		ticket := c.Record.State.Ticket
		last[ticket] = c.Record.State
		for _, e := range c.Record.Events {
			o := protocol.OutlineOf(e)
			if o.Closes {
				closings[ticket]++
			}
			switch e.EventType() {
			case protocol.EventAccepted:
				if o.Attempt > 1 {
					retried[ticket] = true
				}
			case protocol.EventRerouted:
				rerouted[ticket] = true
			case protocol.EventEscalated:
				escalated[ticket] = true
			}
		}
	}
	s := Sums{Submitted: len(last), Closed: len(closings), Retried: len(retried), Rerouted: len(rerouted), Escalated: len(escalated)}
	done := map[string]bool{} // steps
	for ticket, state := range last {
		if state.Outcome == protocol.OutcomeSuccess {
			s.Succeeded++
		}
		completed := closings[ticket] > 0 && state.Phase == protocol.Complete
		if closings[ticket] > 1 || completed && done[state.TaskID] {
			s.Duplicated++
		}
		done[state.TaskID] = done[state.TaskID] || completed
	}
	slices.Sort(given)
	for _, ticket := range slices.Compact(given) { // every later state of a parent names its children again
		if _, found := last[ticket]; !found {
			s.Submitted++ // an agent got the ticket
		}
		if closings[ticket] == 0 {
			s.Lost++
		}
	}
	return s
}
