package demo

import (
	"fmt"
	"io"
	"strings"
	"time"

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
	line := fmt.Sprintf("%7s  %s  %-22s  %-11s  %s", seconds(c.At.Sub(r.began)), s.Ticket[:8], s.Source+" → "+s.Agent, s.Phase, words)
	if r.cfg.Screen.Colour {
		colour := 0
		switch {
		case s.Closed && s.Outcome == protocol.OutcomeSuccess:
			colour = 32 // green
		case s.Closed:
			colour = 31 // red
		case notable:
			colour = 33 // yellow
		}
		line = fmt.Sprintf("\x1b[%dm%s\x1b[0m", colour, line)
	}
	r.cfg.Screen.note("%s", line)
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
