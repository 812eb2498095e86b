package demo

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/record"
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

// describe says in words what an append changed. notable is true for what the demo is
// there to show.
func describe(c protocol.Change) (words string, notable bool) {
	var all []string
	for _, e := range c.Record.Events {
		text, unusual := eventWords(e)
		if text != "" {
			all = append(all, text)
		}
		notable = notable || unusual
	}
	return plain(strings.Join(all, "; ")), notable
}

// eventWords is an event in words; unusual is one that does not happen where all goes well.
func eventWords(e protocol.Event) (words string, unusual bool) {
	switch e := e.(type) {
	case *protocol.Submitted:
		description, _, _ := record.PackageText(e.Package)
		return "handed over: " + description, false
	case *protocol.Offered:
		return map[string]string{"retry": "offered again", "lease_lost": "offered again to its other workers",
			"answer": "offered again, with the answer", "released": "offered again"}[e.Reason], false
	case *protocol.Accepted:
		return fmt.Sprintf("taken, attempt %d", e.Attempt), false
	case *protocol.Progressed:
		return fmt.Sprintf("%.0f %%: %s", e.Progress.Percent, e.Progress.Message), false
	case *protocol.Completed:
		result, _ := protocol.DecodeResult(e.Result)
		return "done: " + result.Summary, false
	case *protocol.Failed:
		return fmt.Sprintf("attempt %d failed: %s", e.Attempt, e.Message), true
	case *protocol.Rejected:
		return fmt.Sprintf("%s refuses (%s) and names %s", e.Agent, e.Reason, e.Alternative), true
	case *protocol.Conditioned:
		return fmt.Sprintf("%s asks for %s (%s)", e.Agent, strings.Join(e.NeedsContext, " and "), e.Reason), true
	case *protocol.Answered:
		var all []string
		for _, name := range slices.Sorted(maps.Keys(e.Answer.Variables)) {
			all = append(all, name+" = "+string(e.Answer.Variables[name]))
		}
		return fmt.Sprintf("%s answers %s", e.Answer.By, strings.Join(all, ", ")), true
	case *protocol.RetryScheduled:
		return fmt.Sprintf("attempt %d follows in %s", e.Attempt+1, seconds(e.Due.Sub(e.At))), true
	case *protocol.Rerouted:
		return fmt.Sprintf("rerouted from %s to %s", e.From, e.To), true
	case *protocol.Escalated:
		return fmt.Sprintf("escalated from %s to %s", e.From, e.To), true
	case *protocol.LeaseLost:
		return fmt.Sprintf("the lease of attempt %d ran out, its worker is gone", e.Attempt), true
	case *protocol.TimedOut:
		return fmt.Sprintf("%s stayed silent until the %s timeout", e.Agent, e.Clock), true
	case *protocol.Released:
		return "released by its worker", true
	case *protocol.Closed:
		return fmt.Sprintf("closed as %s (%s) %s", e.Outcome, e.Reason, e.Message), true
	case *protocol.Stuck:
		return "stuck: " + e.Reason, true
	}
	return "", false
}
