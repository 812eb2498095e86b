package demo

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// Screen is where a run shows itself: one line for each change of the ledger.
type Screen struct {
	Out    io.Writer
	Colour bool
}

func (s Screen) note(format string, args ...any) { fmt.Fprintf(s.Out, format+"\n", args...) }

// aside is a line on what the demo itself does.
func (s Screen) aside(format string, args ...any) { s.note("         "+format, args...) }

// show writes the line of a change.
func (r *run) show(c protocol.Change) {
	words, notable := describe(c)
	if words == "" {
		return
	}
	s := c.Record.State
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
	r.cfg.Screen.note("%s%7s  %s  %-22s  %-11s  %s%s", colour, seconds(c.At.Sub(r.began)), s.Ticket[:8], s.Source+" → "+s.Agent, s.Phase, words, end)
}

// shown are the events that are told; true are those that the demo is there to show.
var shown = map[protocol.EventType]bool{
	protocol.EventSubmitted: false, protocol.EventAccepted: false, protocol.EventProgressed: false, protocol.EventCompleted: false,
	protocol.EventFailed: true, protocol.EventRejected: true, protocol.EventConditioned: true, protocol.EventAnswered: true,
	protocol.EventRetryScheduled: true, protocol.EventRerouted: true, protocol.EventEscalated: true, protocol.EventLeaseLost: true,
	protocol.EventTimedOut: true, protocol.EventReleased: true, protocol.EventClosed: true, protocol.EventStuck: true,
}

// describe says in words what an append changed, and whether that is notable.
func describe(c protocol.Change) (words string, notable bool) {
	var all []string
	for _, e := range c.Record.Events {
		unusual, told := shown[e.EventType()]
		if !told {
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

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

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
	last, closings := map[string]protocol.State{}, map[string]int{}
	retried, rerouted, escalated := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, c := range changes {
		ticket := c.Record.State.Ticket
		last[ticket] = c.Record.State
		for _, e := range c.Record.Events {
			switch e := e.(type) {
			case *protocol.Completed, *protocol.Closed:
				closings[ticket]++
			case *protocol.Accepted:
				if e.Attempt > 1 {
					retried[ticket] = true
				}
			case *protocol.Rerouted:
				rerouted[ticket] = true
			case *protocol.Escalated:
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
