package lifecycle

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// What every event does in every phase, written by hand. A column is a state
// that stateIn makes, a cell the phase that follows, or why none does. Two
// phases have two columns each: an offer stands (pending) or is in the hands of
// a holder that polls (claimed); a conditional asks for something (asking) or
// waits for an instant (deferred). The event is the one that eventFor makes: it
// is about offer 1, holder w1, fence 2, attempt 1 and agent a.
const wantOpen = `
event             fresh    approval  pending      claimed      asking       deferred     accepted     working      retrying  timeout   rejected  failed
submitted         pending  stale     stale        stale        stale        stale        stale        stale        stale     stale     stale     stale
offered           illegal  illegal   stale        illegal      pending      pending      illegal      illegal      pending   pending   pending   pending
claimed           illegal  stale     pending      stale        stale        stale        stale        stale        stale     stale     stale     stale
accepted          illegal  stale     accepted     accepted     stale        stale        stale        stale        stale     stale     stale     stale
started           illegal  stale     stale        stale        stale        stale        working      stale        stale     stale     stale     stale
progressed        illegal  stale     stale        stale        stale        stale        accepted     working      stale     stale     stale     stale
completed         illegal  stale     stale        stale        stale        stale        complete     complete     stale     stale     stale     stale
failed            illegal  stale     stale        stale        stale        stale        failed       failed       stale     stale     stale     stale
rejected          illegal  stale     rejected     rejected     stale        stale        rejected     rejected     stale     stale     stale     stale
conditioned       illegal  stale     conditional  conditional  stale        stale        conditional  conditional  stale     stale     stale     stale
answered          illegal  stale     stale        stale        conditional  stale        stale        stale        stale     stale     stale     stale
retry_scheduled   illegal  stale     stale        stale        stale        stale        stale        stale        stale     retrying  stale     retrying
rerouted          illegal  illegal   illegal      illegal      illegal      illegal      illegal      illegal      illegal   timeout   rejected  illegal
escalated         illegal  illegal   illegal      illegal      conditional  conditional  illegal      illegal      illegal   timeout   rejected  failed
lease_lost        illegal  stale     stale        pending      stale        stale        pending      pending      stale     stale     stale     stale
released          illegal  stale     stale        pending      stale        stale        pending      pending      stale     stale     stale     stale
reminded          illegal  stale     stale        stale        stale        stale        accepted     working      stale     stale     stale     stale
timed_out         illegal  timeout   timeout      timeout      timeout      timeout      timeout      timeout      timeout   illegal   illegal   illegal
cancel_requested  illegal  approval  pending      pending      conditional  conditional  accepted     working      retrying  timeout   rejected  failed
closed            illegal  failed    failed       failed       failed       failed       failed       failed       failed    failed    failed    failed
stuck             illegal  approval  pending      pending      conditional  conditional  accepted     working      retrying  timeout   rejected  failed
`

// Once closed, nothing changes a handoff, whatever it closed as.
const wantClosed = `
event             complete  returned  timeout  rejected  failed  cancelled
submitted         stale     stale     stale    stale     stale   stale
offered           stale     stale     stale    stale     stale   stale
claimed           stale     stale     stale    stale     stale   stale
accepted          stale     stale     stale    stale     stale   stale
started           stale     stale     stale    stale     stale   stale
progressed        stale     stale     stale    stale     stale   stale
completed         stale     stale     stale    stale     stale   stale
failed            stale     stale     stale    stale     stale   stale
rejected          stale     stale     stale    stale     stale   stale
conditioned       stale     stale     stale    stale     stale   stale
answered          stale     stale     stale    stale     stale   stale
retry_scheduled   stale     stale     stale    stale     stale   stale
rerouted          stale     stale     stale    stale     stale   stale
escalated         stale     stale     stale    stale     stale   stale
lease_lost        stale     stale     stale    stale     stale   stale
released          stale     stale     stale    stale     stale   stale
reminded          stale     stale     stale    stale     stale   stale
timed_out         stale     stale     stale    stale     stale   stale
cancel_requested  stale     stale     stale    stale     stale   stale
closed            stale     stale     stale    stale     stale   stale
stuck             stale     stale     stale    stale     stale   stale
`

// Which clock may run out in which phase: the deadline everywhere, each other
// one only where it runs. (The handoff of column timeout timed out by its work.)
const wantClocks = `
clock        fresh    approval  pending  claimed  asking   deferred  accepted  working  retrying  timeout  rejected  failed
acknowledge  illegal  stale     timeout  stale    stale    stale     stale     stale    stale     stale    stale     stale
queue        illegal  stale     timeout  stale    stale    stale     stale     stale    stale     stale    stale     stale
work         illegal  stale     stale    stale    stale    stale     timeout   timeout  stale     stale    stale     stale
condition    illegal  stale     stale    stale    timeout  timeout   stale     stale    stale     stale    stale     stale
deadline     illegal  timeout   timeout  timeout  timeout  timeout   timeout   timeout  timeout   illegal  illegal   illegal
`

// stateIn makes the state of a column of wantOpen, in the way a handoff gets there.
func stateIn(t testing.TB, column string) p.State {
	t.Helper()
	if column == "fresh" {
		return p.State{}
	}
	l := submit(t, fleet(agent("a")), nil)
	switch column {
	case "approval": // no event leads here yet
		bare, err := Apply(p.State{}, eventFor(p.EventSubmitted))
		if err != nil {
			t.Fatal(err)
		}
		bare.Phase = p.AwaitingApproval
		return bare
	case "pending":
	case "claimed":
		l.add(eventFor(p.EventClaimed))
	case "asking":
		l.add(eventFor(p.EventConditioned))
	case "deferred":
		l.add(&p.Conditioned{Meta: at(sec), Offer: 1, Agent: "a", RetryAfterMS: 60_000})
	case "rejected":
		l.add(eventFor(p.EventRejected))
	default:
		l.add(eventFor(p.EventAccepted))
		switch column {
		case "accepted":
		case "working":
			l.add(eventFor(p.EventStarted))
		case "failed":
			l.add(eventFor(p.EventFailed))
		case "retrying":
			l.add(eventFor(p.EventFailed), eventFor(p.EventRetryScheduled))
		case "timeout":
			l.add(timedOut(p.ClockWork))
		default:
			t.Fatalf("no state for column %q", column)
		}
	}
	return l.state
}

// closedIn makes the state of a column of wantClosed.
func closedIn(t testing.TB, column string) p.State {
	t.Helper()
	l := submit(t, fleet(agent("a")), nil).add(eventFor(p.EventAccepted))
	outcomes := map[string]p.Outcome{"returned": p.OutcomeRolledBack, "timeout": p.OutcomeTimeout,
		"rejected": p.OutcomeRejected, "failed": p.OutcomeFailed, "cancelled": p.OutcomeCancelled}
	if column == "complete" {
		return l.add(eventFor(p.EventCompleted)).state
	}
	return l.add(&p.Closed{Meta: at(sec), Outcome: outcomes[column], Reason: "test"}).state
}

func timedOut(c p.Clock) *p.TimedOut {
	return &p.TimedOut{Meta: at(31 * 24 * time.Hour), Clock: c, Agent: "a", Attempt: 1}
}

// eventFor makes the event of a row. Refusals and conditions name no holder:
// forHolder adds it where one has the handoff.
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
		return &p.Completed{Meta: m, Fence: 2, Status: p.Success, Result: json.RawMessage(`{}`), Tokens: 12}
	case p.EventFailed:
		return &p.Failed{Meta: m, Fence: 2, Attempt: 1, Code: "exit", Message: "exit status 1", Retryable: true}
	case p.EventRejected:
		return &p.Rejected{Meta: m, Offer: 1, Agent: "a", ReasonCode: "unable", Reason: "no", Alternative: "b"}
	case p.EventConditioned:
		return &p.Conditioned{Meta: m, Offer: 1, Agent: "a", NeedsContext: []string{"branch"}, Reason: "which?"}
	case p.EventAnswered:
		return &p.Answered{Meta: m, Offer: 1, Answer: p.Answer{Text: "main"}}
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
	case p.EventTimedOut:
		return timedOut(p.ClockDeadline)
	case p.EventCancelRequested:
		return &p.CancelRequested{Meta: m, Reason: "no longer needed"}
	case p.EventClosed:
		return &p.Closed{Meta: m, Outcome: p.OutcomeFailed, Reason: "test"}
	case p.EventStuck:
		return &p.Stuck{Meta: m, Reason: "package missing"}
	}
	panic("no event for " + e)
}

// forHolder makes an event speak for the holder of the state, as a worker's
// would: it names it where it has the handoff in its hands, and a holder that
// has only claimed has no fence.
func forHolder(s p.State, e p.Event) p.Event {
	if !s.Held() {
		switch e := e.(type) {
		case *p.Rerouted:
			e.From = s.Agent
		}
		return e
	}
	switch e := e.(type) {
	case *p.Rejected:
		e.Holder = s.Holder
	case *p.Conditioned:
		e.Holder = s.Holder
	case *p.LeaseLost:
		e.Fence = s.Fence
	case *p.Released:
		e.Fence = s.Fence
	}
	return e
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
			after, err := Apply(before, forHolder(before, event(row)))
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
	t.Run("open", func(t *testing.T) { checkGrid(t, wantOpen, len(p.EventTypes), stateIn, event) })
	t.Run("closed", func(t *testing.T) { checkGrid(t, wantClosed, len(p.EventTypes), closedIn, event) })
	t.Run("clocks", func(t *testing.T) {
		checkGrid(t, wantClocks, 5, stateIn, func(row string) p.Event { return timedOut(p.Clock(row)) })
	})
}

// TestTableIsWhole: every phase is a column, every event type a row.
func TestTableIsWhole(t *testing.T) {
	seen := map[p.Phase]bool{}
	columns, rows, _ := grid(wantOpen)
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
