package explain

import (
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// The places that keep the end of a handoff without success. Each names the others.
const (
	KeptInInbox      = "inbox"
	KeptAsReturn     = "return"
	KeptAsDeadLetter = "dead letters"
)

// Kept names the places that keep an end without success, without the one that is shown.
func Kept(s protocol.State, shown string) string {
	if !s.Closed || s.Outcome == protocol.OutcomeSuccess || s.Outcome == protocol.OutcomePartial {
		return ""
	}
	var places []string
	if s.ReturnTicket != "" && shown != KeptAsReturn {
		places = append(places, fmt.Sprintf("return to %s (%s)", s.Source, s.ReturnTicket))
	}
	if s.Inbox != "" && shown != KeptInInbox {
		places = append(places, "inbox of "+s.Inbox)
	}
	if lifecycle.DeadLetter(s) && shown != KeptAsDeadLetter {
		places = append(places, "dead letters")
	}
	return Join(places...)
}

// Overdue says since when an open handoff is overdue, and when it closes.
func Overdue(s protocol.State) string {
	if s.Closed || s.OverdueSince.IsZero() {
		return ""
	}
	return fmt.Sprintf("since %s, closes %s", Instant(s.OverdueSince), Instant(lifecycle.Deadline(s)))
}

// OverdueMark marks an overdue handoff in a list.
func OverdueMark(s protocol.State, now time.Time) string {
	if s.Closed || s.OverdueSince.IsZero() {
		return ""
	}
	return "overdue, closes in " + Spoken(lifecycle.Deadline(s).Sub(now))
}
