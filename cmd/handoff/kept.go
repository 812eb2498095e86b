package main

import (
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Where an end is to be found that was no success. Each place names the others.
const (
	keptInInbox = "inbox"
	keptReturn  = "return"
	keptAsDead  = "dead letters"
)

// keptText names the places where the end of a handoff without success is kept, but
// for the one that is shown.
func keptText(s protocol.State, shown string) string {
	if !s.Closed || s.Outcome == protocol.OutcomeSuccess || s.Outcome == protocol.OutcomePartial {
		return ""
	}
	var places []string
	if s.ReturnTicket != "" && shown != keptReturn {
		places = append(places, fmt.Sprintf("return to %s (%s)", s.Source, s.ReturnTicket))
	}
	if s.Inbox != "" && shown != keptInInbox {
		places = append(places, "inbox of "+s.Inbox)
	}
	if lifecycle.DeadLetter(s) && shown != keptAsDead {
		places = append(places, "dead letters")
	}
	return join(places...)
}

// overdueText says since when an open handoff is overdue, and when it closes.
func overdueText(s protocol.State) string {
	if s.Closed || s.OverdueSince.IsZero() {
		return ""
	}
	return fmt.Sprintf("since %s, closes %s", when(s.OverdueSince), when(lifecycle.Deadline(s)))
}

// overdueWords marks what is overdue in a list.
func overdueWords(s protocol.State, now time.Time) string {
	if s.Closed || s.OverdueSince.IsZero() {
		return ""
	}
	return "overdue, closes in " + spoken(lifecycle.Deadline(s).Sub(now))
}
