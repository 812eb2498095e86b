package explain

import (
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Next is the next event, if no agent or person acts before.
type Next struct {
	At    time.Time          `json:"at"`
	Event protocol.EventType `json:"event"`        // result: escalated, closed, …
	To    string             `json:"to,omitempty"` // the agent that gets it
	Words string             `json:"words"`
	// Overdue reports that the event is late: no supervisor seems to run.
	Overdue bool `json:"overdue,omitempty"`

	reminder   time.Time // when its worker is reminded, before At; zero if never
	unreminded bool      // the reminder is late
	because    string
	clock      protocol.Clock // the clock that causes it, if one does
	loose      bool           // At is the latest time, not an exact one
}

// foresee returns the next decision of the core. It returns nil if there is none.
func (x *explainer) foresee() *Next {
	s := x.State
	f, ok := x.ahead(s, x.Now)
	var reminder time.Time
	for ok && len(f.Events) == 1 && f.Events[0].EventType() == protocol.EventReminded {
		reminder, s = f.At, f.State
		f, ok = x.ahead(s, f.At)
	}
	if !ok {
		return nil
	}
	n := &Next{At: f.At.UTC(), reminder: reminder}
	x.effect(n, s, f.Events)
	x.cause(n, s, f.Events)
	since, ok := x.ahead(x.State, x.State.UpdatedAt)
	switch late := ok && x.Now.Sub(since.At) > unexpected; {
	case !late, n.loose:
	case !reminder.IsZero():
		n.reminder, n.unreminded = since.At, true
	case !dependsOnOthers(x.State, f.Events):
		n.Overdue, n.At = true, since.At.UTC()
	}
	return n
}

// ahead returns the next decision from an instant on, by the core's clocks or by the end of the
// wait for locks, whichever is earlier.
func (x *explainer) ahead(s protocol.State, from time.Time) (lifecycle.Foreseen, bool) {
	f, ok := lifecycle.Foresee(s, x.query(from))
	if locks, waits := lifecycle.ForeseeLocks(s, from); waits && (!ok || locks.At.Before(f.At)) {
		return locks, true
	}
	return f, ok
}

// dependsOnOthers reports whether a decision may have become due just now because an agent came or
// went.
func dependsOnOthers(s protocol.State, events []protocol.Event) bool {
	switch e := events[0].(type) {
	case *protocol.LeaseLost:
		return e.Reason != protocol.NotAcknowledged
	case *protocol.Offered:
		return s.Agent == "" // an agent that fits may just have come
	case *protocol.TimedOut:
		return e.Clock == protocol.ClockAcknowledge || e.Clock == protocol.ClockQueue
	case *protocol.Closed:
		return s.CancelRequested && s.Held()
	}
	return s.Policy.OnNoTaker == protocol.NoTakerQueue && s.Phase == protocol.PhaseRejected
}

// effect describes the result of the events.
func (x *explainer) effect(n *Next, s protocol.State, events []protocol.Event) {
	for _, event := range events {
		switch e := event.(type) {
		case *protocol.Closed:
			n.Event, n.To, n.Words = e.EventType(), "", closedWords(e.Outcome, s)
			return
		case *protocol.LateResultUsed:
			n.Event, n.Words = e.EventType(), "the result that came late is used, and it ends with that"
			return
		case *protocol.RetryScheduled:
			n.Event, n.To = e.EventType(), s.Agent
			n.Words = fmt.Sprintf("it is set to be tried again %s later (attempt %d of %d)", Spoken(e.Due.Sub(n.At)), s.Attempt+1, s.Policy.MaxAttempts)
			if s.Held() {
				n.Words = fmt.Sprintf("it is taken from %s and tried again (attempt %d of %d)", itsWorker(s), s.Attempt+1, s.Policy.MaxAttempts)
			}
			return
		case *protocol.Lapsed:
			n.Event, n.To, n.Words = e.EventType(), e.To, Person(e.To)+" is asked instead"
			return
		case *protocol.Escalated:
			n.Event, n.To, n.Words = e.EventType(), e.To, "it goes up to "+Person(e.To)
			return
		case *protocol.Rerouted:
			n.Event, n.To, n.Words = e.EventType(), e.To, "it goes to "+Person(e.To)+" instead"
			return
		case *protocol.Offered:
			n.Event, n.To, n.Words = e.EventType(), e.Agent, offeredWords(e, s)
		case *protocol.TimedOut:
			if e.Clock == protocol.ClockReturn {
				n.Event, n.Words = e.EventType(), "it is waited for as long again"
			}
		}
	}
}

func closedWords(o protocol.Outcome, s protocol.State) string {
	switch o {
	case protocol.OutcomeSuccess, protocol.OutcomePartial:
		return "it ends with success"
	case protocol.OutcomeCancelled:
		return "it ends as cancelled"
	case protocol.OutcomeRolledBack:
		return "it goes back to " + Person(s.Source) + " undone"
	case protocol.OutcomeRejected:
		return "it is given up as refused"
	case protocol.OutcomeTimeout:
		return "it is given up"
	}
	return "it is given up as failed"
}

func offeredWords(e *protocol.Offered, s protocol.State) string {
	switch {
	case e.Reason == lifecycle.OfferReturn:
		return Person(e.Agent) + " gets it back"
	case e.Reason == lifecycle.OfferOverdue:
		return "it is overdue, and stays with " + Person(e.Agent)
	case s.Attempt > 0:
		return fmt.Sprintf("it goes to the next worker of %s (attempt %d of %d)", Person(e.Agent), s.Attempt+1, s.Policy.MaxAttempts)
	case s.Held():
		return "others may have it"
	}
	return "it goes to " + Person(e.Agent)
}

// cause describes why the events happen then.
func (x *explainer) cause(n *Next, s protocol.State, events []protocol.Event) {
	for _, event := range events {
		switch e := event.(type) {
		case *protocol.LeaseLost: // the sentences contain it already
			if e.Reason == protocol.NotAcknowledged {
				n.because = "it has not been accepted or refused by then"
			}
			return
		case *protocol.TimedOut:
			n.clock, n.because = e.Clock, x.clockRunsOut(e.Clock, s)
			if _, seen := x.Directory.LastPresent[s.Agent]; e.Clock == protocol.ClockAcknowledge && !seen && !n.At.After(x.Now) {
				// Its last worker left at an unknown time since.
				n.loose, n.At = true, x.Now.Add(lifecycle.AckTimeout(s)).UTC()
			}
			return
		case *protocol.Escalated:
			if e.ReasonCode == lifecycle.ReasonConditionsExhausted {
				n.because = s.Agent + " has asked more often than it may"
			}
		case *protocol.Closed:
			if s.CancelRequested && s.Held() && x.Directory.Present(s.Holder) {
				n.because = "its worker has not stopped by then"
			}
			switch e.Reason {
			case lifecycle.ReasonDeadline:
				n.because = x.clockRunsOut(protocol.ClockDeadline, s)
			case string(protocol.CodeLockBusy):
				n.because = "its locks have not been free for " + Spoken(s.Locks.Wait()) + " by then"
			}
		}
	}
}

// itsWorker refers to the person or worker that a previous sentence named.
func itsWorker(s protocol.State) string {
	if s.Agent == protocol.Human {
		return "that person"
	}
	return "its worker"
}

// taker returns the role that takes the handoff from its queue.
func taker(s protocol.State) string {
	if s.Agent == protocol.Human {
		return "person"
	}
	return "worker"
}

// clockRunsOut returns the reason for a future timeout.
func (x *explainer) clockRunsOut(clock protocol.Clock, s protocol.State) string {
	switch p := s.Policy; clock {
	case protocol.ClockAcknowledge:
		if s.Agent == "" {
			return "no agent that fits has turned up by then"
		}
		return fmt.Sprintf("%s has had no worker for %s by then", s.Agent, Spoken(lifecycle.AckTimeout(s)))
	case protocol.ClockQueue:
		return fmt.Sprintf("no %s has taken it for %s by then", taker(s), millisSpoken(p.QueueTimeoutMS))
	case protocol.ClockWork:
		return fmt.Sprintf("the work may take %s at most", millisSpoken(p.WorkTimeoutMS))
	case protocol.ClockProgress:
		return fmt.Sprintf(itsWorker(s)+" has reported nothing for %s by then", millisSpoken(p.ProgressTimeoutMS))
	case protocol.ClockCondition:
		return fmt.Sprintf("no answer has come for %s by then", millisSpoken(p.ConditionTimeoutMS))
	case protocol.ClockReturn:
		return fmt.Sprintf("%s waits %s at most for its end", Person(s.Source), millisSpoken(p.ReturnTimeoutMS))
	}
	if !s.OverdueSince.IsZero() {
		return "the time to intervene is over then"
	}
	return "its deadline passes then"
}

// clockRanOut returns the reason for a past timeout.
func (x *explainer) clockRanOut(clock protocol.Clock) string {
	switch clock {
	case protocol.ClockAcknowledge:
		return "no worker was running to take it"
	case protocol.ClockQueue:
		return "it was not taken in time"
	case protocol.ClockWork:
		return "the work took too long"
	case protocol.ClockProgress:
		return "its worker reported nothing for too long"
	case protocol.ClockCondition:
		return "no answer came in time"
	case protocol.ClockReturn:
		return "its source had waited long enough for its end"
	}
	return "its deadline passed"
}

// tellNext adds the next event to the sentences and to the explanation.
func (x *explainer) tellNext(n *Next) {
	if n == nil || n.Words == "" {
		return
	}
	x.e.Next = n
	because := ""
	if n.because != "" {
		because = ", because " + n.because
	}
	switch r := n.reminder; {
	case n.unreminded:
		x.say("%s %s should have been reminded that the time is running out.", capital(x.at(r)), itsWorker(x.State))
		x.noSupervisor()
	case r.After(x.Now):
		x.say("%s %s is reminded that the time is running out.", capital(x.at(r)), itsWorker(x.State))
	}
	switch {
	case n.Overdue:
		if n.clock != "" {
			because = ", because " + x.clockRanOut(n.clock)
		}
		x.say("The next step has been due since %s: %s%s.", x.clock(n.At), n.Words, because)
		x.noSupervisor()
	case x.nextSaid && (n.Event == protocol.EventOffered || x.e.WaitingFor == lifecycle.WaitTaker):
	case n.loose:
		x.say("Unless one starts, %s by %s.", n.Words, x.clock(n.At))
		x.suggest("see what is wrong if it does not", OpDoctor)
	case !n.At.After(x.Now):
		x.say("Any moment now, %s%s.", n.Words, because)
	default:
		x.say("If nothing changes, %s %s%s.", n.Words, x.at(n.At), because)
	}
}

// noSupervisor explains why an event that is due does not happen.
func (x *explainer) noSupervisor() {
	x.say("No supervisor seems to be running, or it cannot keep up.")
	x.suggest("start a supervisor", OpSupervise)
	x.suggest("see what may be wrong", OpDoctor)
}

// clock formats an instant: 14:05, with a date unless it is today's, with seconds if the instant is
// less than 10 minutes away.
func (x *explainer) clock(at time.Time) string {
	at, now := at.In(x.Zone), x.Now.In(x.Zone)
	format := "15:04"
	if d := at.Sub(now); d.Abs() < 10*time.Minute {
		format = "15:04:05"
	}
	switch {
	case at.Format(time.DateOnly) == now.Format(time.DateOnly):
		return at.Format(format)
	case at.Year() == now.Year():
		return at.Format("2 January at " + format)
	}
	return at.Format("2 January 2006 at " + format)
}

// at returns clock after "at" or "on".
func (x *explainer) at(at time.Time) string {
	if at.In(x.Zone).Format(time.DateOnly) == x.Now.In(x.Zone).Format(time.DateOnly) {
		return "at " + x.clock(at)
	}
	return "on " + x.clock(at)
}

// span returns the time since an instant.
func (x *explainer) span(at time.Time) string { return Spoken(x.Now.Sub(at)) }

// because appends the reason that a person, an agent or the core gave, if any.
func (x *explainer) because(words string) string {
	if own := plain(words); own != words {
		return ": " + own
	}
	return After(": ", quoted(words))
}

// relatives lists the relatives that a handoff waits for, with their agents and states.
func (x *explainer) relatives(open int, what string) string {
	var parts []string
	for _, r := range x.Open {
		where, who := "about to be submitted", ""
		if r.State.Ticket != "" {
			where, who = stands(r.State), atAgent(r.State)
		}
		parts = append(parts, fmt.Sprintf("%s %d%s (%s)", what, r.N, After(", ", who), where))
	}
	if more := open - len(x.Open); more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	return enumerate(parts)
}

// stands returns the state of an open relative in one to four words.
func stands(s protocol.State) string {
	switch {
	case s.Closed:
		return "has just ended"
	case s.CancelRequested:
		return "stopping"
	case s.Phase == protocol.Pending && s.Aggregate != nil:
		return "a group under way"
	case s.Phase == protocol.Pending:
		return "waiting to be taken"
	case s.Phase == protocol.Conditional && s.Conditions != nil:
		return "waiting for an answer"
	case s.Phase == protocol.Conditional:
		return "waiting"
	case s.Phase == protocol.PhaseAccepted:
		return "accepted"
	}
	return string(s.Phase)
}
