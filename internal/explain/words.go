package explain

import (
	"fmt"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// plain replaces a reason of the core by plain words.
func plain(message string) string {
	return strings.ReplaceAll(message, "the worker that had it is gone", "its worker stopped answering")
}

// wordsShown bounds the characters of a quoted reason.
const wordsShown = 300

// quoted returns a reason in quotation marks, on one line.
func quoted(words string) string {
	if words = strings.Join(strings.Fields(words), " "); words == "" {
		return ""
	}
	return `"` + strings.TrimSuffix(protocol.CutText(words, wordsShown), ".") + `"`
}

func said(words string) string { return After(", ", quoted(words)) }

// Person returns the name of an agent; the agent at the end of every escalation chain is "a
// person".
func Person(agent string) string {
	if agent == protocol.Human {
		return "a person"
	}
	return agent
}

// sentence capitalizes words that begin with an article or a pronoun, but not the name of an agent.
func sentence(words string) string {
	for _, article := range []string{"a ", "an ", "it ", "attempt "} {
		if strings.HasPrefix(words, article) {
			return capital(words)
		}
	}
	return words
}

func capital(words string) string { return strings.ToUpper(words[:1]) + words[1:] }

func partOfIt(n int) string {
	if n == 1 {
		return "a part of it"
	}
	return fmt.Sprintf("%d parts of it", n)
}

func ofThem(open, all int) string {
	switch {
	case all == 1:
		return "that"
	case open == all:
		return "all of them"
	case open == 1:
		return "one of them"
	}
	return fmt.Sprintf("%d of them", open)
}

// After puts a mark before words that are not empty.
func After(mark, words string) string {
	if words == "" {
		return ""
	}
	return mark + words
}

// enumerate joins parts like a sentence does: a, b and c.
func enumerate(parts []string) string {
	if len(parts) < 2 {
		return strings.Join(parts, "")
	}
	return strings.Join(parts[:len(parts)-1], ", ") + " and " + parts[len(parts)-1]
}

func millisSpoken(ms int64) string { return Spoken(time.Duration(ms) * time.Millisecond) }

// Spoken formats a duration in words: 12 s, 4 min, 2 h 5 min, 3 days.
func Spoken(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return "less than a second"
	case d < 2*time.Minute && d != time.Minute:
		return fmt.Sprintf("%d s", d.Round(time.Second)/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		text := fmt.Sprintf("%d h", d/time.Hour)
		if minutes := d % time.Hour / time.Minute; minutes > 0 {
			text += fmt.Sprintf(" %d min", minutes)
		}
		return text
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}

func Needs(c protocol.Conditions) string {
	var needs []string
	if len(c.NeedsContext) > 0 {
		needs = append(needs, "context ("+strings.Join(c.NeedsContext, "; ")+")")
	}
	if len(c.NeedsPermission) > 0 {
		needs = append(needs, "permission ("+strings.Join(c.NeedsPermission, "; ")+")")
	}
	return strings.Join(needs, " and ")
}

// Aggregation returns the condition on which a group succeeds.
func Aggregation(s protocol.State) string {
	if s.Aggregate == nil {
		return ""
	}
	text := map[protocol.Aggregation]string{
		protocol.AggregateAll: "when all have succeeded", protocol.AggregateAny: "when one has succeeded",
		protocol.AggregateMajority: "when more than half are in favour",
	}[s.Aggregate.Mode]
	if n := s.Aggregate.Counted.Len(); n > 0 {
		text += fmt.Sprintf(", of the %d that count", n)
	}
	if s.Aggregate.CancelRest {
		text += "; the rest is cancelled then"
	}
	return text
}

// Count formats a number of things: 1 handoff, 2 handoffs.
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func Number(f float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") }

// ForPerson returns the number of handoffs that wait for a person, and the longest wait; it is
// empty for none.
func ForPerson(n int, since, now time.Time) string {
	span := Spoken(now.Sub(since))
	switch n {
	case 0:
		return ""
	case 1:
		return "1 handoff waits for a person, for " + span
	}
	return fmt.Sprintf("%d handoffs wait for a person, for up to %s", n, span)
}

// Polls describes an agent that polls, with the time since its last poll.
func Polls(last, now time.Time) string {
	return fmt.Sprintf("polls, last %s ago", Spoken(now.Sub(last)))
}

// lastEnd returns why the last attempt ended.
func (x *explainer) lastEnd() string {
	if clock, ranOut := strings.CutSuffix(x.State.Reason, "_timeout"); ranOut {
		return ": " + x.clockRanOut(protocol.Clock(clock))
	}
	if !ofAttempt(x.State.Reason) {
		return ""
	}
	return x.because(x.State.Message)
}

// ofAttempt reports whether the message of a state can come from an attempt or a refusal. The state
// keeps only the most recent reason, which may come from a question.
func ofAttempt(reason string) bool {
	return reason != "condition" && reason != "deferred" && reason != "answer" && reason != "awaiting_returns"
}

// holder names the worker that has the handoff, and its host.
func (x *explainer) holder() string {
	agent := x.State.Agent
	h, present := x.Directory.Holders[x.State.Holder]
	switch {
	case agent == protocol.Human:
		return "a person"
	case !present:
		return "a worker of " + agent
	case h.Polling:
		return "a program that polls for " + agent + hostWords(h)
	}
	return "a worker of " + agent + hostWords(h)
}

func hostWords(h protocol.Holder) string {
	if h.Host == "" {
		return ""
	}
	return fmt.Sprintf(" on %s (process %d)", h.Host, h.PID)
}

// passedUpWords explains the core's reasons for an escalation, except for timeouts.
var passedUpWords = map[string]string{
	lifecycle.ReasonConditionsExhausted: "its agent asked more often than it may",
	lifecycle.ReasonClaimsLapsed:        "its agent claimed it again and again and never acknowledged it",
	lifecycle.ReasonAttemptsExhausted:   "all attempts there failed",
	lifecycle.ReasonCrashLoop:           "each attempt took its worker with it",
	lifecycle.ReasonDeadline:            "its deadline passed",
	lifecycle.ReasonUndelivered:         "no agent could be given it",
	lifecycle.ReasonDenied:              "it was denied, and the package names it to decide after that",
}

// passedUp names the agent that the handoff was escalated from, and the reason.
func (x *explainer) passedUp() string {
	s := x.State
	text := fmt.Sprintf("it was passed up%s to %s", After(" from ", Person(s.Chain[len(s.Chain)-1])), Person(s.Agent))
	switch clock, ranOut := strings.CutSuffix(s.Reason, "_timeout"); {
	case ranOut:
		return text + ", because " + x.clockRanOut(protocol.Clock(clock))
	case s.Attempt > 0 || !ofAttempt(s.Reason): // the message comes from another event
		return text
	case passedUpWords[s.Reason] != "":
		text += ", because " + passedUpWords[s.Reason]
	}
	return text + x.because(s.Message)
}
