package lifecycle

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// What every event does in every phase, written by hand. A column is a state
// that stateIn makes, a cell the phase that follows, or why none does. Some
// phases have several columns: an offer stands (pending), is in the hands of a
// holder that polls (claimed), stands before an authority (above), or there is
// none because it is a group; a conditional asks for something (asking), waits
// for an instant (deferred) or for its children (waiting); the work is an agent's
// (working) or an authority's (judged). The event is the one that eventFor makes,
// about the offer, the holder, the agent and the level of the column's state.
const wantOpen = `
event             fresh    approval  source    pending      claimed      above        group     asking       deferred     waiting      accepted     working      judged       retrying  timeout   rejected  failed
submitted         pending  stale     stale     stale        stale        stale        stale     stale        stale        stale        stale        stale        stale        stale     stale     stale     stale
offered           illegal  illegal   illegal   stale        illegal      stale        illegal   pending      pending      pending      illegal      illegal      illegal      pending   pending   pending   pending
claimed           illegal  stale     stale     pending      stale        pending      stale     stale        stale        stale        stale        stale        stale        stale     stale     stale     stale
accepted          illegal  stale     stale     accepted     accepted     accepted     stale     stale        stale        stale        stale        stale        stale        stale     stale     stale     stale
started           illegal  stale     stale     stale        stale        stale        stale     stale        stale        stale        working      stale        stale        stale     stale     stale     stale
progressed        illegal  stale     stale     stale        stale        stale        stale     stale        stale        stale        accepted     working      working      stale     stale     stale     stale
completed         illegal  stale     stale     stale        stale        stale        stale     stale        stale        stale        complete     complete     complete     stale     stale     stale     stale
failed            illegal  stale     stale     stale        stale        stale        stale     stale        stale        stale        failed       failed       failed       stale     stale     stale     stale
rejected          illegal  stale     stale     rejected     rejected     rejected     stale     stale        stale        stale        rejected     rejected     rejected     stale     stale     stale     stale
conditioned       illegal  stale     stale     conditional  conditional  conditional  stale     stale        stale        stale        conditional  conditional  conditional  stale     stale     stale     stale
answered          illegal  stale     stale     stale        stale        pending      stale     conditional  stale        stale        stale        stale        pending      stale     stale     stale     stale
retry_scheduled   illegal  stale     stale     stale        stale        stale        stale     stale        stale        stale        stale        stale        stale        stale     retrying  stale     retrying
rerouted          illegal  illegal   illegal   illegal      illegal      illegal      illegal   illegal      illegal      illegal      illegal      illegal      illegal      illegal   timeout   rejected  illegal
escalated         illegal  illegal   illegal   pending      stale        pending      illegal   conditional  conditional  conditional  stale        stale        stale        illegal   timeout   rejected  failed
lease_lost        illegal  stale     stale     stale        pending      stale        stale     stale        stale        stale        pending      pending      pending      stale     stale     stale     stale
released          illegal  stale     stale     stale        pending      stale        stale     stale        stale        stale        pending      pending      pending      stale     stale     stale     stale
reminded          illegal  stale     stale     stale        stale        stale        stale     stale        stale        stale        accepted     working      working      stale     stale     stale     stale
extended          illegal  stale     stale     stale        stale        stale        stale     stale        stale        stale        accepted     working      working      stale     stale     stale     stale
timed_out         illegal  stale     stale     timeout      timeout      timeout      timeout   timeout      timeout      timeout      timeout      timeout      timeout      timeout   timeout   timeout   timeout
cancel_requested  illegal  approval  source    pending      pending      pending      pending   conditional  conditional  conditional  accepted     working      working      retrying  timeout   rejected  failed
closed            illegal  failed    failed    failed       failed       failed       failed    failed       failed       failed       failed       failed       failed       failed    failed    failed    failed
stuck             illegal  approval  source    pending      pending      pending      pending   conditional  conditional  conditional  accepted     working      working      retrying  timeout   rejected  failed
handed_off        illegal  stale     stale     stale        stale        stale        stale     stale        stale        stale        accepted     working      working      stale     stale     stale     stale
suspended         illegal  stale     stale     stale        stale        stale        stale     stale        stale        stale        conditional  conditional  conditional  stale     stale     stale     stale
children_closed   illegal  stale     stale     stale        stale        stale        pending   stale        stale        conditional  stale        stale        stale        stale     stale     stale     stale
assigned          illegal  illegal   illegal   illegal      illegal      illegal      pending   illegal      illegal      illegal      illegal      illegal      illegal      illegal   illegal   illegal   illegal
taken             illegal  illegal   illegal   accepted     accepted     accepted     illegal   accepted     accepted     accepted     accepted     accepted     accepted     accepted  accepted  accepted  accepted
rolled_back       illegal  returned  returned  returned     stale        returned     returned  returned     returned     returned     returned     returned     returned     returned  returned  returned  returned
late_result_used  illegal  stale     stale     stale        stale        stale        stale     stale        stale        stale        stale        stale        stale        stale     stale     stale     stale
result_parked     illegal  approval  illegal   pending      pending      pending      illegal   conditional  conditional  conditional  accepted     working      working      retrying  timeout   rejected  failed
return_sent       illegal  illegal   illegal   illegal      illegal      illegal      illegal   illegal      illegal      illegal      illegal      illegal      illegal      illegal   illegal   illegal   illegal
returned          illegal  illegal   illegal   illegal      illegal      illegal      illegal   illegal      illegal      illegal      illegal      illegal      illegal      illegal   illegal   illegal   illegal
redriven          illegal  illegal   illegal   illegal      illegal      illegal      illegal   illegal      illegal      illegal      illegal      illegal      illegal      illegal   illegal   illegal   illegal
dismissed         illegal  illegal   illegal   illegal      illegal      illegal      illegal   illegal      illegal      illegal      illegal      illegal      illegal      illegal   illegal   illegal   illegal
source_completed  illegal  stale     pending   stale        stale        stale        stale     stale        stale        stale        stale        stale        stale        stale     stale     stale     stale
`

// The same event said by somebody else, or in another way: a reroute that a
// person asks for, an escalation by the holder, an answer that denies, a
// take-over by the very holder that has it, and a parked result put to use
// (where there can be one, there is one here).
const wantVariants = `
variant           fresh    approval  source   pending   claimed  above     group    asking       deferred     waiting      accepted  working  judged    retrying  timeout   rejected  failed
reroute_by_hand   illegal  illegal   illegal  pending   pending  pending   illegal  conditional  conditional  conditional  pending   pending  pending   retrying  timeout   rejected  failed
holder_escalates  illegal  stale     stale    stale     stale    stale     stale    stale        stale        stale        pending   pending  pending   stale     stale     stale     stale
denied            illegal  stale     stale    stale     stale    rejected  stale    rejected     stale        stale        stale     stale    rejected  stale     stale     stale     stale
taken_again       illegal  illegal   illegal  accepted  stale    accepted  illegal  accepted     accepted     accepted     stale     stale    stale     accepted  accepted  accepted  accepted
late_result_used  illegal  illegal   stale    complete  illegal  complete  stale    illegal      illegal      illegal      illegal   illegal  illegal   illegal   complete  illegal   complete
`

// Once closed, nothing changes how a handoff ended. What may still be said of it:
// a late result is kept, it is submitted again, its return is sent and settled.
// These columns expect no return, are listed nowhere and wait for no children;
// one that was rolled back always owes its source a return.
const wantClosed = `
event             complete  returned  timeout  rejected  failed   cancelled
submitted         stale     stale     stale    stale     stale    stale
offered           stale     stale     stale    stale     stale    stale
claimed           stale     stale     stale    stale     stale    stale
accepted          stale     stale     stale    stale     stale    stale
started           stale     stale     stale    stale     stale    stale
progressed        stale     stale     stale    stale     stale    stale
completed         stale     stale     stale    stale     stale    stale
failed            stale     stale     stale    stale     stale    stale
rejected          stale     stale     stale    stale     stale    stale
conditioned       stale     stale     stale    stale     stale    stale
answered          stale     stale     stale    stale     stale    stale
retry_scheduled   stale     stale     stale    stale     stale    stale
rerouted          stale     stale     stale    stale     stale    stale
escalated         stale     stale     stale    stale     stale    stale
lease_lost        stale     stale     stale    stale     stale    stale
released          stale     stale     stale    stale     stale    stale
reminded          stale     stale     stale    stale     stale    stale
extended          stale     stale     stale    stale     stale    stale
timed_out         stale     stale     stale    stale     stale    stale
cancel_requested  stale     stale     stale    stale     stale    stale
closed            stale     stale     stale    stale     stale    stale
stuck             stale     stale     stale    stale     stale    stale
handed_off        stale     stale     stale    stale     stale    stale
suspended         stale     stale     stale    stale     stale    stale
children_closed   stale     stale     stale    stale     stale    stale
assigned          illegal  illegal  illegal  illegal  illegal  illegal
taken             stale     stale     stale    stale     stale    stale
rolled_back       stale     stale     stale    stale     stale    stale
late_result_used  stale     stale     stale    stale     stale    stale
result_parked     complete  returned  timeout  rejected  failed   cancelled
return_sent       illegal   returned  illegal  illegal   illegal  illegal
returned          illegal   returned  illegal  illegal   illegal  illegal
redriven          illegal   returned  timeout  rejected  failed   cancelled
dismissed         stale     stale     stale    stale     stale    stale
source_completed  stale     stale     stale    stale     stale    stale
`

// The same where something is owed: a return is expected, a person's inbox
// lists it (what completed is listed in none), and a child is to be cancelled.
// The two last columns are a success and a failure whose return has arrived.
const wantOwing = `
event            complete  returned  timeout   rejected  failed    cancelled  arrived  bad_news
children_closed  complete  returned  timeout   rejected  failed    cancelled  returned returned
result_parked    complete  returned  timeout   rejected  failed    cancelled  returned returned
return_sent      complete  returned  timeout   rejected  failed    cancelled  stale    stale
returned         returned  returned  returned  returned  returned  returned   stale    stale
redriven         illegal   returned  timeout   rejected  failed    cancelled  illegal  returned
dismissed        stale     returned  timeout   rejected  failed    cancelled  stale    returned
`

// Which clock may run out in which phase: the deadline everywhere, each other
// one only where it runs. (The handoff of column timeout timed out by its work.)
const wantClocks = `
clock        fresh    approval  source   pending  claimed  above    group    asking   deferred  waiting  accepted  working  judged   retrying  timeout  rejected  failed
acknowledge  illegal  stale     stale    timeout  stale    timeout  stale    stale    stale     stale    stale     stale    stale    stale     stale    stale     stale
queue        illegal  stale     stale    timeout  timeout  timeout  stale    stale    stale     stale    stale     stale    stale    stale     stale    stale     stale
work         illegal  stale     stale    stale    stale    stale    stale    stale    stale     stale    timeout   timeout  timeout  stale     stale    stale     stale
progress     illegal  stale     stale    stale    stale    stale    stale    stale    stale     stale    timeout   timeout  timeout  stale     stale    stale     stale
condition    illegal  stale     stale    stale    stale    stale    stale    timeout  stale     stale    stale     stale    stale    stale     stale    stale     stale
return       illegal  stale     stale    timeout  timeout  timeout  timeout  timeout  timeout   timeout  timeout   timeout  timeout  timeout   stale    timeout   stale
deadline     illegal  stale     stale    timeout  timeout  timeout  timeout  timeout  timeout   timeout  timeout   timeout  timeout  timeout   timeout  timeout   timeout
`

// stateIn makes the state of a column of wantOpen, in the way a handoff gets
// there. Whoever accepted it has handed off child 0.
func stateIn(t testing.TB, column string) p.State {
	t.Helper()
	if column == "fresh" {
		return p.State{}
	}
	l := submit(t, fleet(agent("a")), func(s *p.Summary) {
		if column == "group" {
			s.Type, s.Target, s.Aggregate = p.Broadcast, p.Target{}, &p.Aggregate{Size: 3, Mode: p.AggregateAll}
		}
	})
	say := func(events ...p.EventType) {
		t.Helper()
		for _, e := range events {
			l.add(about(l.state, eventFor(e)))
		}
	}
	accept := func() {
		t.Helper()
		say(p.EventAccepted)
		l.add(&p.HandedOff{Meta: at(sec), Fence: l.state.Fence, N: 0, Ticket: p.ChildTicketN(ticket, 0)})
	}
	above := func() {
		t.Helper()
		say(p.EventRejected)
		l.add(eventFor(p.EventEscalated), &p.Offered{Meta: at(sec), Agent: "chief", Reason: "escalation"})
	}
	switch column {
	case "approval":
		return submit(t, fleet(agent("a")), func(s *p.Summary) { s.Approval = &p.Approval{Required: true} }).state
	case "source":
		return submit(t, fleet(agent("a")), func(s *p.Summary) { s.AwaitsSource, s.Parent, s.N = true, "parent", 1 }).state
	case "pending", "group":
	case "above":
		above()
	case "judged":
		above()
		accept()
		say(p.EventStarted)
	case "claimed":
		say(p.EventClaimed)
	case "asking":
		say(p.EventConditioned)
	case "deferred":
		l.add(&p.Conditioned{Meta: at(sec), Offer: 1, Agent: "a", RetryAfterMS: 60_000})
	case "rejected":
		say(p.EventRejected)
	default:
		accept()
		switch column {
		case "accepted":
		case "working":
			say(p.EventStarted)
		case "waiting":
			say(p.EventStarted, p.EventSuspended)
		case "failed":
			say(p.EventFailed)
		case "retrying":
			say(p.EventFailed, p.EventRetryScheduled)
		case "timeout":
			l.add(timedOut(p.ClockWork))
		default:
			t.Fatalf("no state for column %q", column)
		}
	}
	return l.state
}

var closedOutcomes = map[string]p.Outcome{"returned": p.OutcomeRolledBack, "timeout": p.OutcomeTimeout, "rejected": p.OutcomeRejected,
	"failed": p.OutcomeFailed, "cancelled": p.OutcomeCancelled}

// closedIn makes the state of a column of wantClosed.
func closedIn(t testing.TB, column string) p.State {
	t.Helper()
	l := submit(t, fleet(agent("a")), nil).add(eventFor(p.EventAccepted))
	if column == "complete" {
		return l.add(eventFor(p.EventCompleted)).state
	}
	return l.add(&p.Closed{Meta: at(sec), Outcome: closedOutcomes[column], Reason: "test"}).state
}

// owingIn makes the state of a column of wantOwing.
func owingIn(t testing.TB, column string) p.State {
	t.Helper()
	l := submit(t, fleet(agent("a")), func(s *p.Summary) { s.ReturnExpected = true }).add(eventFor(p.EventAccepted))
	l.add(&p.HandedOff{Meta: at(sec), Fence: 2, N: 0, Ticket: p.ChildTicketN(ticket, 0)})
	l.add(&p.CancelRequested{Meta: at(sec), Children: true})
	end := func(outcome p.Outcome) {
		l.add(&p.Closed{Meta: at(sec), Outcome: outcome, Reason: "test", Inbox: p.Human})
	}
	arrive := func() { l.add(eventFor(p.EventReturnSent)).add(eventFor(p.EventReturned)) }
	switch column {
	case "complete":
		l.add(eventFor(p.EventCompleted))
	case "arrived":
		l.add(eventFor(p.EventCompleted))
		arrive()
	case "bad_news":
		end(p.OutcomeFailed)
		arrive()
	default:
		end(closedOutcomes[column])
	}
	return l.state
}

// clockedIn is a column's state in which every clock is set that runs there.
func clockedIn(t testing.TB, column string) p.State {
	t.Helper()
	s := stateIn(t, column)
	if column == "fresh" {
		return s
	}
	s.Policy.QueueTimeoutMS, s.Policy.ProgressTimeoutMS, s.Policy.ReturnTimeoutMS = 60_000, 60_000, 60_000
	s.ReturnExpected, s.ReturnSince = true, s.SubmittedAt
	return s
}

// lateIn is a column's state with a result parked, where it can have one.
func lateIn(t testing.TB, column string) p.State {
	t.Helper()
	s := stateIn(t, column)
	next, err := Apply(s, eventFor(p.EventResultParked))
	if err != nil {
		return s
	}
	next.Bind(8)
	return next
}

func timedOut(c p.Clock) *p.TimedOut {
	return &p.TimedOut{Meta: at(31 * 24 * time.Hour), Clock: c, Agent: "a", Attempt: 1}
}

// eventFor makes the event of a row.
func eventFor(e p.EventType) p.Event {
	m := at(sec)
	switch e {
	case p.EventSubmitted:
		return &p.Submitted{Meta: m, Ticket: ticket, Summary: p.Summary{Source: "src", Target: p.Target{Agent: "a"}}, Policy: p.DefaultPolicy()}
	case p.EventOffered:
		return &p.Offered{Meta: m, Agent: "a", Reason: "retry"}
	case p.EventClaimed:
		return &p.Claimed{Meta: m, Offer: 1, Agent: "a", Holder: "w1", LeaseMS: lease}
	case p.EventAccepted:
		return &p.Accepted{Meta: m, Offer: 1, Agent: "a", Holder: "w1", LeaseMS: lease, Attempt: 1}
	case p.EventStarted:
		return &p.Started{Meta: m, Fence: 2}
	case p.EventProgressed:
		return &p.Progressed{Meta: m, Fence: 2, Progress: p.Progress{Percent: 50, Message: "half"}}
	case p.EventCompleted:
		return &p.Completed{Meta: m, Fence: 2, Status: p.Success, Result: json.RawMessage(`{}`), Usage: &p.Usage{Tokens: 12}}
	case p.EventFailed:
		return &p.Failed{Meta: m, Fence: 2, Attempt: 1, Code: "exit", Message: "exit status 1", Retryable: true}
	case p.EventRejected:
		return &p.Rejected{Meta: m, Offer: 1, Agent: "a", ReasonCode: "unable", Reason: "no", Alternative: "b"}
	case p.EventConditioned:
		return &p.Conditioned{Meta: m, Offer: 1, Agent: "a", NeedsContext: []string{"branch"}, Reason: "which?"}
	case p.EventAnswered:
		return &p.Answered{Meta: m, Answer: p.Answer{Question: 1, Text: "main"}}
	case p.EventRetryScheduled:
		return &p.RetryScheduled{Meta: m, Attempt: 1, Due: t0.Add(time.Minute)}
	case p.EventRerouted:
		return &p.Rerouted{Meta: m, From: "a", To: "b"}
	case p.EventEscalated:
		return &p.Escalated{Meta: m, Level: 1, From: "a", To: "chief"}
	case p.EventLeaseLost:
		return &p.LeaseLost{Meta: m, Holder: "w1", Fence: 2, Attempt: 1}
	case p.EventReleased:
		return &p.Released{Meta: m, Holder: "w1", Fence: 2}
	case p.EventReminded:
		return &p.Reminded{Meta: m, Fence: 2}
	case p.EventExtended:
		return &p.Extended{Meta: m, Fence: 2, Until: t0.Add(2 * time.Hour), Reason: "more of it than I thought"}
	case p.EventTimedOut:
		return timedOut(p.ClockDeadline)
	case p.EventCancelRequested:
		return &p.CancelRequested{Meta: m, Reason: "no longer needed"}
	case p.EventClosed:
		return &p.Closed{Meta: m, Outcome: p.OutcomeFailed, Reason: "test"}
	case p.EventStuck:
		return &p.Stuck{Meta: m, Reason: "package missing"}
	case p.EventHandedOff:
		return &p.HandedOff{Meta: m, Fence: 2, N: 1, Ticket: p.ChildTicketN(ticket, 1), Type: p.Delegation, Target: "b"}
	case p.EventSuspended:
		return &p.Suspended{Meta: m, Fence: 2, Children: []int{0}}
	}
	return eventAfter(e, m)
}

// eventAfter makes those of children, of interventions, and of what comes late.
func eventAfter(e p.EventType, m p.Meta) p.Event {
	switch e {
	case p.EventChildrenClosed:
		return &p.ChildrenClosed{Meta: m, Children: []p.ChildClosed{{N: 0, Outcome: p.OutcomeSuccess}}}
	case p.EventAssigned:
		return &p.Assigned{Meta: m, N: 0, Agent: "b"}
	case p.EventTaken:
		return &p.Taken{Meta: m, Agent: p.Human, Holder: "somebody", LeaseMS: lease, Reason: "faster myself"}
	case p.EventRolledBack:
		return &p.RolledBack{Meta: m, Reason: "not ours", Inbox: p.Human, Result: json.RawMessage(`{}`)}
	case p.EventLateResultUsed:
		return &p.LateResultUsed{Meta: m, Seq: 8}
	case p.EventResultParked:
		return &p.ResultParked{Meta: m, Holder: "w0", Fence: 77, Attempt: 1, Status: p.Success, Usage: &p.Usage{Tokens: 5}}
	case p.EventReturnSent:
		return &p.ReturnSent{Meta: m, Ticket: p.ReturnTicket(ticket), To: "src"}
	case p.EventReturned:
		return &p.Returned{Meta: m, Delivered: true}
	case p.EventRedriven:
		return &p.Redriven{Meta: m, Ticket: p.RedriveTicket(ticket)}
	case p.EventDismissed:
		return &p.Dismissed{Meta: m, Note: "seen"}
	case p.EventSourceCompleted:
		return &p.SourceCompleted{Meta: m}
	}
	return vectorEvent(e, m)
}

// variantFor makes the event of a row of wantVariants.
func variantFor(row string) p.Event {
	switch row {
	case "reroute_by_hand":
		return &p.Rerouted{Meta: at(sec), From: "a", To: "b", Manual: true}
	case "holder_escalates":
		return &p.Escalated{Meta: at(sec), Level: 1, From: "a", To: "chief", Fence: 2, Reason: "over my head", Assessment: "two readings"}
	case "denied":
		return &p.Answered{Meta: at(sec), Answer: p.Answer{Question: 1, Deny: true, DenyReason: "secret"}}
	case "taken_again":
		return &p.Taken{Meta: at(sec), Agent: "a", Holder: "w1", LeaseMS: lease}
	}
	return eventFor(p.EventType(row))
}

// about makes an event be about what is current in a state: its offer, agent,
// level and attempt, and the holder that has it in its hands, as whoever has read
// the head would write it. A holder that has only claimed has no fence.
func about(s p.State, e p.Event) p.Event {
	switch e := e.(type) {
	case *p.Offered:
		if s.Agent != "" {
			e.Agent = s.Agent
		}
	case *p.Claimed:
		e.Offer, e.Agent = offerOf(s), s.Agent
	case *p.Accepted:
		e.Offer, e.Agent = offerOf(s), s.Agent
	case *p.Rejected:
		e.Offer, e.Agent, e.Holder = offerOf(s), s.Agent, s.Holder
	case *p.Conditioned:
		e.Offer, e.Agent, e.Holder = offerOf(s), s.Agent, s.Holder
	case *p.Answered:
		e.Answer.Question = max(1, QuestionOf(s).N)
	case *p.Rerouted:
		e.From = s.Agent
	case *p.Escalated:
		e.Level, e.From = s.EscalationLevel+1, s.Agent
		if e.Fence != 0 && s.Fence != 0 {
			e.Fence = s.Fence
		}
	case *p.TimedOut:
		e.Agent, e.Attempt = s.Agent, s.Attempt
	case *p.RolledBack:
		e.Fence = s.Fence
	}
	if !s.Held() {
		return e
	}
	switch e := e.(type) {
	case *p.Escalated, *p.ResultParked: // whose fence is no current one
		return e
	case *p.Failed:
		e.Attempt = s.Attempt
	}
	if fence := reflect.ValueOf(e).Elem().FieldByName("Fence"); fence.IsValid() {
		fence.SetUint(s.Fence)
	}
	return e
}

// offerOf is the state's offer; 1 where it has none, so that the event names one.
func offerOf(s p.State) uint64 {
	if s.Offer == 0 {
		return 1
	}
	return s.Offer
}

// grid reads a table of words.
func grid(text string) (columns []string, rows map[string][]string, order []string) {
	rows = map[string][]string{}
	for i, text := range strings.Split(strings.TrimSpace(text), "\n") {
		words := strings.Fields(text)
		if i == 0 {
			columns = words[1:]
			continue
		}
		rows[words[0]] = words[1:]
		order = append(order, words[0])
	}
	return columns, rows, order
}

// result is a cell: what became of an event.
func result(before, after p.State, err error) string {
	switch {
	case errors.Is(err, ErrStale) && errors.Is(err, ErrIllegal):
		return "both"
	case errors.Is(err, ErrStale):
		return "stale"
	case errors.Is(err, ErrIllegal):
		return "illegal"
	case err != nil:
		return err.Error()
	case after.Phase == p.AwaitingApproval:
		return "approval"
	case after.Phase == p.AwaitingSource:
		return "source"
	}
	return string(after.Phase)
}

func checkGrid(t *testing.T, text string, rowCount int, make func(testing.TB, string) p.State, event func(row string) p.Event) {
	t.Helper()
	columns, rows, order := grid(text)
	if len(order) != rowCount {
		t.Fatalf("%d rows, want %d", len(order), rowCount)
	}
	for _, row := range order {
		if len(rows[row]) != len(columns) {
			t.Fatalf("row %s has %d cells, want %d", row, len(rows[row]), len(columns))
		}
		for i, column := range columns {
			before := make(t, column)
			was := asJSON(t, before)
			after, err := Apply(before, about(before, event(row)))
			want := rows[row][i]
			if got := result(before, after, err); got != want {
				t.Errorf("%s in %s: %s, want %s (%v)", row, column, got, want, err)
			}
			if err != nil && asJSON(t, after) != was {
				t.Errorf("%s in %s: refused, but the state changed", row, column)
			}
			if asJSON(t, before) != was {
				t.Errorf("%s in %s: Apply changed the state it was given", row, column)
			}
		}
	}
}

func TestTable(t *testing.T) {
	event := func(row string) p.Event { return eventFor(p.EventType(row)) }
	t.Run("open", func(t *testing.T) { checkGrid(t, wantOpen+rowsOf(t, "open"), len(p.EventTypes), stateIn, event) })
	t.Run("closed", func(t *testing.T) { checkGrid(t, wantClosed+rowsOf(t, "closed"), len(p.EventTypes), closedIn, event) })
	t.Run("clocks", func(t *testing.T) {
		checkGrid(t, wantClocks, 7, clockedIn, func(row string) p.Event { return timedOut(p.Clock(row)) })
	})
	t.Run("variants", func(t *testing.T) { checkGrid(t, wantVariants, 5, lateIn, variantFor) })
	t.Run("owing", func(t *testing.T) { checkGrid(t, wantOwing, 6, owingIn, event) })
}

// TestTableIsWhole: every phase is a column, every event type a row.
func TestTableIsWhole(t *testing.T) {
	seen := map[p.Phase]bool{}
	columns, rows, _ := grid(wantOpen + rowsOf(t, "open"))
	for _, c := range columns {
		seen[stateIn(t, c).Phase] = true
	}
	columns, _, _ = grid(wantClosed)
	for _, c := range columns {
		s := closedIn(t, c)
		if !s.Closed || string(s.Phase) != c {
			t.Errorf("column %s: phase %s, closed %v", c, s.Phase, s.Closed)
		}
		seen[s.Phase] = true
	}
	for _, phase := range append(p.Phases, fresh) {
		if !seen[phase] {
			t.Errorf("no column for phase %q", phase)
		}
	}
	for _, e := range p.EventTypes {
		if rows[string(e)] == nil {
			t.Errorf("no row for %s", e)
		}
	}
}

// TestOutcomes: which phase each outcome closes in.
func TestOutcomes(t *testing.T) {
	want := map[p.Outcome]string{p.OutcomeFailed: "failed", p.OutcomeTimeout: "timeout", p.OutcomeRejected: "rejected",
		p.OutcomeCancelled: "cancelled", p.OutcomeRolledBack: "returned",
		p.OutcomeSuccess: "illegal", p.OutcomePartial: "illegal", "": "illegal", "unheard_of": "illegal"}
	for outcome, phase := range want {
		before := stateIn(t, "working")
		after, err := Apply(before, &p.Closed{Meta: at(sec), Outcome: outcome, Reason: "why"})
		if got := result(before, after, err); got != phase {
			t.Errorf("closed as %q: %s, want %s", outcome, got, phase)
		}
	}
	for status, outcome := range map[p.ResultStatus]p.Outcome{p.Success: p.OutcomeSuccess, "": p.OutcomeSuccess, p.Partial: p.OutcomePartial} {
		after, err := Apply(stateIn(t, "working"), &p.Completed{Meta: at(sec), Fence: 2, Status: status})
		if err != nil || after.Outcome != outcome {
			t.Errorf("completed with status %q: %s, %v", status, after.Outcome, err)
		}
	}
}
