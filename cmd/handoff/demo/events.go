package demo

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// describe says in words what an append changed; notable is true if it is one
// of the things that the demo is there to show.
func describe(c protocol.Change) (words string, notable bool) {
	var all []string
	for _, e := range c.Record.Events {
		if text := eventWords(e); text != "" {
			all = append(all, text)
		}
		notable = notable || slices.Contains(notables, e.EventType())
	}
	return printable(strings.Join(all, "; ")), notable
}

// notables are the events that do not happen where everything goes well.
var notables = []protocol.EventType{protocol.EventFailed, protocol.EventRejected, protocol.EventConditioned, protocol.EventAnswered,
	protocol.EventRetryScheduled, protocol.EventRerouted, protocol.EventEscalated, protocol.EventLeaseLost,
	protocol.EventTimedOut, protocol.EventClosed, protocol.EventReleased}

func eventWords(e protocol.Event) string {
	switch e := e.(type) {
	case *protocol.Submitted:
		return "handed over: " + taskOf(e.Package)
	case *protocol.Offered:
		return map[string]string{"retry": "offered again", "lease_lost": "offered again to its other workers",
			"answer": "offered again, with the answer", "released": "offered again"}[e.Reason]
	case *protocol.Accepted:
		return fmt.Sprintf("taken, attempt %d", e.Attempt)
	case *protocol.Progressed:
		return fmt.Sprintf("%.0f %%: %s", e.Progress.Percent, e.Progress.Message)
	case *protocol.Completed:
		return "done: " + summaryOf(e)
	case *protocol.Failed:
		return fmt.Sprintf("attempt %d failed: %s", e.Attempt, e.Message)
	case *protocol.Rejected:
		if e.Alternative != "" {
			return fmt.Sprintf("%s refuses (%s) and names %s", e.Agent, e.Reason, e.Alternative)
		}
		return fmt.Sprintf("%s refuses (%s)", e.Agent, e.Reason)
	case *protocol.Conditioned:
		return fmt.Sprintf("%s asks for %s (%s)", e.Agent, strings.Join(e.NeedsContext, " and "), e.Reason)
	case *protocol.Answered:
		return fmt.Sprintf("%s answers %s", e.Answer.By, variableWords(e.Answer.Variables))
	case *protocol.RetryScheduled:
		return fmt.Sprintf("attempt %d follows in %s", e.Attempt+1, seconds(e.Due.Sub(e.At)))
	case *protocol.Rerouted:
		return fmt.Sprintf("rerouted from %s to %s", e.From, e.To)
	case *protocol.Escalated:
		return fmt.Sprintf("escalated from %s to %s", e.From, e.To)
	case *protocol.LeaseLost:
		if e.Reason == protocol.NotAcknowledged {
			return "the claim was not acknowledged in time"
		}
		return fmt.Sprintf("the lease of attempt %d ran out, its worker is gone", e.Attempt)
	case *protocol.TimedOut:
		return fmt.Sprintf("%s stayed silent until the %s timeout", e.Agent, e.Clock)
	case *protocol.Released:
		return "given back"
	case *protocol.Closed:
		return fmt.Sprintf("closed as %s (%s) %s", e.Outcome, e.Reason, e.Message)
	case *protocol.Claimed:
		return "claimed by a person"
	case *protocol.Stuck:
		return "stuck: " + e.Reason
	}
	return ""
}

// taskOf reads what is to be done. A large package lies elsewhere, and its
// task goes unsaid.
func taskOf(pkg json.RawMessage) string {
	var p struct {
		Task protocol.Task `json:"task"`
	}
	_ = json.Unmarshal(pkg, &p)
	return p.Task.Description
}

func summaryOf(e *protocol.Completed) string {
	var r protocol.Result
	_ = json.Unmarshal(e.Result, &r)
	if r.Summary == "" {
		return string(e.Status)
	}
	return r.Summary
}

func variableWords(variables map[string]json.RawMessage) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		all = append(all, name+" = "+string(variables[name]))
	}
	return strings.Join(all, ", ")
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

func short(ticket string) string { return ticket[:min(len(ticket), 8)] }
