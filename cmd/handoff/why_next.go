package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// What happens to a handoff if nothing else does, in words.

// nextView is the next thing that happens by itself.
type nextView struct {
	At    time.Time          `json:"at"`
	Event protocol.EventType `json:"event"`        // what it comes to: escalated, closed, …
	To    string             `json:"to,omitempty"` // the agent that has it then
	Words string             `json:"words"`
	// Overdue says that it should have happened by now: no supervisor seems to run.
	Overdue bool `json:"overdue,omitempty"`

	reminder   time.Time // of its worker, before that
	unreminded bool      // and it should have come by now
	because    string
	clock      protocol.Clock // that runs out then, if one does
	loose      bool           // At is the latest, not the exact instant
}

// foresee asks the core; nil where it says nothing, or chokes on the state.
func (t *teller) foresee() (next *nextView) {
	s := t.state
	defer func() {
		if recover() != nil { // as a supervisor's look would: the handoff is stuck
			next = nil
		}
	}()
	f, ok := lifecycle.Foresee(s, t.directory, t.now)
	var reminder time.Time
	for ok && onlyReminds(f.Events) {
		reminder = f.At
		var err error
		if s, err = lifecycle.ApplyAll(s, f.Events); err != nil {
			return nil
		}
		f, ok = lifecycle.Foresee(s, t.directory, f.At)
	}
	if !ok {
		return nil
	}
	n := &nextView{At: f.At.UTC(), reminder: reminder}
	t.effect(n, s, f.Events)
	t.cause(n, s, f.Events)
	since, ok := lifecycle.Foresee(t.state, t.directory, t.state.UpdatedAt)
	switch late := ok && t.now.Sub(since.At) > unexpected; {
	case !late, n.loose:
	case !reminder.IsZero():
		n.reminder, n.unreminded = since.At, true
	case !dependsOnOthers(t.state, f.Events):
		n.Overdue, n.At = true, since.At.UTC()
	}
	return n
}

func onlyReminds(events []protocol.Event) bool {
	return len(events) == 1 && events[0].EventType() == protocol.EventReminded
}

// dependsOnOthers tells whether a decision that is due may have become so only
// just now, because somebody came or went.
func dependsOnOthers(s protocol.State, events []protocol.Event) bool {
	switch e := events[0].(type) {
	case *protocol.LeaseLost:
		return e.Reason != protocol.NotAcknowledged
	case *protocol.Offered:
		return s.Agent == "" // somebody fit has come
	case *protocol.TimedOut:
		return e.Clock == protocol.ClockAcknowledge || e.Clock == protocol.ClockQueue
	case *protocol.Closed:
		return s.CancelRequested && s.Held()
	}
	return s.Policy.OnNoTaker == protocol.NoTakerQueue && s.Phase == protocol.PhaseRejected
}

// effect says what the events come to.
func (t *teller) effect(n *nextView, s protocol.State, events []protocol.Event) {
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
			n.Words = fmt.Sprintf("it is set to be tried again %s later (attempt %d of %d)", spoken(e.Due.Sub(n.At)), s.Attempt+1, s.Policy.MaxAttempts)
			if s.Held() {
				n.Words = fmt.Sprintf("it is taken from %s and tried again (attempt %d of %d)", itsWorker(s), s.Attempt+1, s.Policy.MaxAttempts)
			}
			return
		case *protocol.Escalated:
			n.Event, n.To, n.Words = e.EventType(), e.To, "it goes up to "+person(e.To)
			return
		case *protocol.Rerouted:
			n.Event, n.To, n.Words = e.EventType(), e.To, "it goes to "+person(e.To)+" instead"
			return
		case *protocol.Offered:
			n.Event, n.To, n.Words = e.EventType(), e.Agent, offeredWords(e, s)
		case *protocol.TimedOut:
			if s.Aggregate != nil && e.Clock == protocol.ClockDeadline {
				n.Event, n.Words = e.EventType(), "it is overdue, and still waits for its members"
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
		return "it goes back to " + person(s.Source) + " undone"
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
		return person(e.Agent) + " gets it back"
	case e.Reason == lifecycle.OfferOverdue:
		return "it is overdue, and stays with " + person(e.Agent)
	case s.Attempt > 0:
		return fmt.Sprintf("it goes to the next worker of %s (attempt %d of %d)", person(e.Agent), s.Attempt+1, s.Policy.MaxAttempts)
	case s.Held():
		return "others may have it"
	}
	return "it goes to " + person(e.Agent)
}

// cause says why it happens then.
func (t *teller) cause(n *nextView, s protocol.State, events []protocol.Event) {
	for _, event := range events {
		switch e := event.(type) {
		case *protocol.LeaseLost: // the sentences say it already
			if e.Reason == protocol.NotAcknowledged {
				n.because = "it has not been said by then whether it is taken"
			}
			return
		case *protocol.TimedOut:
			n.clock, n.because = e.Clock, t.clockRunsOut(e.Clock, s)
			if _, seen := t.directory.LastPresent[s.Agent]; e.Clock == protocol.ClockAcknowledge && !seen && !n.At.After(t.now) {
				// Its last worker went since, and we did not see when.
				n.loose, n.At = true, t.now.Add(lifecycle.AckTimeout(s)).UTC()
			}
			return
		case *protocol.Closed:
			if s.CancelRequested && s.Held() && t.directory.Present(s.Holder) {
				n.because = "its worker has not stopped by then"
			}
			if e.Reason == "deadline" {
				n.because = t.clockRunsOut(protocol.ClockDeadline, s)
			}
		}
	}
}

// itsWorker is who has a handoff, where that was said before.
func itsWorker(s protocol.State) string {
	if s.Agent == protocol.Human {
		return "that person"
	}
	return "its worker"
}

// clockRunsOut says what will be the case when a clock has run out.
func (t *teller) clockRunsOut(clock protocol.Clock, s protocol.State) string {
	switch p := s.Policy; clock {
	case protocol.ClockAcknowledge:
		if s.Agent == "" {
			return "no agent that fits has turned up by then"
		}
		return fmt.Sprintf("%s has had no worker for %s by then", s.Agent, spoken(lifecycle.AckTimeout(s)))
	case protocol.ClockQueue:
		return fmt.Sprintf("nobody has taken it for %s by then", millisSpoken(p.QueueTimeoutMS))
	case protocol.ClockWork:
		return fmt.Sprintf("the work may take %s at most", millisSpoken(p.WorkTimeoutMS))
	case protocol.ClockProgress:
		return fmt.Sprintf(itsWorker(s)+" has reported nothing for %s by then", millisSpoken(p.ProgressTimeoutMS))
	case protocol.ClockCondition:
		if s.ConditionRounds > p.MaxConditions {
			return s.Agent + " has asked more often than it may"
		}
		return fmt.Sprintf("nobody has answered for %s by then", millisSpoken(p.ConditionTimeoutMS))
	case protocol.ClockReturn:
		return fmt.Sprintf("%s waits %s at most for its end", person(s.Source), millisSpoken(p.ReturnTimeoutMS))
	}
	if !s.OverdueSince.IsZero() {
		return "the time to intervene is over then"
	}
	return "its deadline passes then"
}

// clockRanOut says what was the case when a clock had run out.
func (t *teller) clockRanOut(clock protocol.Clock) string {
	switch clock {
	case protocol.ClockAcknowledge:
		return "no worker was there to take it"
	case protocol.ClockQueue:
		return "nobody took it in time"
	case protocol.ClockWork:
		return "the work took too long"
	case protocol.ClockProgress:
		return "its worker reported nothing for too long"
	case protocol.ClockCondition:
		return "nobody answered in time"
	case protocol.ClockReturn:
		return "its source had waited long enough for its end"
	}
	return "its deadline passed"
}

// tellNext adds what happens next to the sentences, and to the explanation.
func (t *teller) tellNext(n *nextView) {
	if n == nil || n.Words == "" {
		if t.e.Next == nil && t.e.WaitingFor == "" {
			t.waits(waitsDecision)
		}
		return
	}
	t.e.Next = n
	because := ""
	if n.because != "" {
		because = ", because " + n.because
	}
	switch r := n.reminder; {
	case n.unreminded:
		t.say("%s %s should have been reminded that the time is running out.", capital(t.at(r)), itsWorker(t.state))
		t.noSupervisor()
	case r.After(t.now):
		t.say("%s %s is reminded that the time is running out.", capital(t.at(r)), itsWorker(t.state))
	}
	switch {
	case n.Overdue:
		if n.clock != "" {
			because = ", because " + t.clockRanOut(n.clock)
		}
		t.say("What comes next has been due since %s: %s%s.", t.clock(n.At), n.Words, because)
		t.noSupervisor()
	case t.told && (n.Event == protocol.EventOffered || t.e.WaitingFor == waitsTaker):
	case n.loose:
		t.say("Unless one starts, %s by %s.", n.Words, t.clock(n.At))
		t.command("handoff doctor", "see what is wrong if it does not")
	case !n.At.After(t.now):
		t.say("Any moment now, %s%s.", n.Words, because)
	default:
		t.say("If nothing changes, %s %s%s.", n.Words, t.at(n.At), because)
	}
}

// noSupervisor says why what is due does not happen.
func (t *teller) noSupervisor() {
	t.say("No supervisor seems to be running, or it cannot keep up.")
	t.command("handoff supervise", "start a supervisor")
	t.command("handoff doctor", "see what may be wrong")
}

// clock writes an instant as a watch has it: 14:05, with the date where that is
// not today's, with seconds where it is near.
func (t *teller) clock(at time.Time) string {
	at, now := at.In(t.zone), t.now.In(t.zone)
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

// at is clock with the word before it that it has in a sentence.
func (t *teller) at(at time.Time) string {
	if at.In(t.zone).Format(time.DateOnly) == t.now.In(t.zone).Format(time.DateOnly) {
		return "at " + t.clock(at)
	}
	return "on " + t.clock(at)
}

// span says for how long something has been so.
func (t *teller) span(at time.Time) string { return spoken(t.now.Sub(at)) }

// because adds a reason that somebody gave, or the core, if there is one.
func (t *teller) because(words string) string {
	if own := plain(words); own != words {
		return ": " + own
	}
	return after(": ", quoted(words))
}

// relatives lists where those stand that a handoff waits for.
func (t *teller) relatives(open int, what string) string {
	var parts []string
	for _, r := range t.open {
		where := "about to be submitted"
		who := ""
		if r.state.Ticket != "" {
			where = stands(r.state)
			who = person(r.state.Agent)
			if r.state.Agent == "" {
				who = r.state.TargetWords()
			}
		}
		parts = append(parts, fmt.Sprintf("%s %d%s (%s)", what, r.n, after(", ", who), where))
	}
	if more := open - len(t.open); more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	return enumerate(parts)
}

// stands says in a word or two where a handoff stands.
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

// plainly are the core's own reasons in words for those who do not know it.
var plainly = strings.NewReplacer(
	"the worker that had it is gone", "its worker stopped answering",
)

func plain(message string) string { return plainly.Replace(message) }

// wordsShown is how much of somebody's words a sentence quotes.
const wordsShown = 300

// quoted is what somebody said, on one line.
func quoted(words string) string {
	if words = strings.Join(strings.Fields(words), " "); words == "" {
		return ""
	}
	return `"` + strings.TrimSuffix(protocol.CutText(words, wordsShown), ".") + `"`
}

func said(words string) string { return after(", ", quoted(words)) }

// person names an agent; the last of every chain is a person.
func person(agent string) string {
	if agent == protocol.Human {
		return "a person"
	}
	return agent
}

// sentence begins a sentence; names of agents are written as they are.
func sentence(words string) string {
	for _, article := range []string{"a ", "an ", "it ", "attempt "} {
		if strings.HasPrefix(words, article) {
			return capital(words)
		}
	}
	return words
}

func capital(words string) string { return strings.ToUpper(words[:1]) + words[1:] }

func areWorkers(n int) string {
	if n == 1 {
		return "1 worker is"
	}
	return fmt.Sprintf("%d workers are", n)
}

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

// after puts something before what is not empty.
func after(mark, words string) string {
	if words == "" {
		return ""
	}
	return mark + words
}

// enumerate is a list as it is spoken: a, b and c.
func enumerate(parts []string) string {
	if len(parts) < 2 {
		return strings.Join(parts, "")
	}
	return strings.Join(parts[:len(parts)-1], ", ") + " and " + parts[len(parts)-1]
}

func millisSpoken(ms int64) string { return spoken(time.Duration(ms) * time.Millisecond) }

// spoken is a duration as somebody would say it: 12 s, 4 min, 2 h 5 min, 3 days.
func spoken(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return "less than a second"
	case d < 2*time.Minute && d != time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
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
