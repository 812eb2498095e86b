package lifecycle

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	p "github.com/agenthandoff/handoff/protocol"
)

// What each event changes beside updated_at, by the column of wantOpen it comes
// from, or of another table where its name stands before a slash. Instants and
// tickets are named alone, "-" is a field that went, self is the append's own
// sequence.
const wantFields = `
submitted fresh:          deadline package_seq=self phase=pending policy submitted_at ticket source target
offered asking:           conditions=- offer=self offered_at phase=pending
offered waiting:          accepted_at=- children offer=self offered_at phase=pending started_at=-
offered deferred:         offer=self offered_at phase=pending retry_at=-
offered retrying:         accepted_at=- offer=self offered_at phase=pending retry_at=- retryable=-
offered failed:           accepted_at=- offer=self offered_at phase=pending retryable=-
offered timeout:          accepted_at=- offer=self offered_at phase=pending timed_out=-
offered rejected:         alternative=- offer=self offered_at phase=pending
claimed pending:          claimed_at holder=w1 lease_ms=30000
accepted pending:         accepted_at attempt=1 attempts_total=1 fence=self holder=w1 lease_ms=30000 phase=accepted
accepted claimed:         accepted_at attempt=1 attempts_total=1 fence=self phase=accepted
started accepted:         phase=working started_at
progressed accepted:      progress progress_at
progressed working:       progress progress_at
completed accepted:       closed=true closed_at fence=- holder=- lease_ms=- outcome=success phase=complete result_seq=self usage
completed working:        closed=true closed_at fence=- holder=- lease_ms=- outcome=success phase=complete result_seq=self usage
failed working:           fence=- holder=- lease_ms=- message=exit_status_1 phase=failed reason=exit retryable=true
rejected pending:         alternative=b message=no phase=rejected reason=unable refused=[a]
rejected claimed:         alternative=b holder=- lease_ms=- message=no phase=rejected reason=unable refused=[a]
rejected working:         alternative=b attempt=0 attempts_total=0 fence=- holder=- lease_ms=- message=no phase=rejected reason=unable refused=[a]
conditioned pending:      condition_rounds=1 conditioned_at conditions message=which? phase=conditional questions=1 reason=condition
conditioned working:      attempt=0 attempts_total=0 condition_rounds=1 conditioned_at conditions fence=- holder=- lease_ms=- message=which? phase=conditional questions=1 reason=condition
answered asking:          conditions=- reason=answer retry_at supplements=1
answered above:           agent=a chain=- escalation_level=0 escalation_question=- offer=0 reason=answer refused=- supplements=1
answered judged:          agent=a attempt=0 attempts_total=0 chain=- escalation_level=0 escalation_question=- fence=- holder=- lease_ms=- offer=0 phase=pending reason=answer refused=- supplements=1
denied asking:            conditions=- denied=src message=secret phase=rejected reason=denied refused=[a]
denied above:             denied=src message=secret phase=rejected reason=denied refused=[a_chief]
denied judged:            attempt=0 attempts_total=0 denied=src fence=- holder=- lease_ms=- message=secret phase=rejected reason=denied refused=[a_chief]
retry_scheduled failed:   phase=retrying retries=1 retry_at
retry_scheduled timeout:  phase=retrying retries=1 retry_at timed_out=-
rerouted rejected:        agent=b offer=0 reroutes=1 tried=[a_b]
rerouted timeout:         agent=b attempt=0 offer=0 reroutes=1 tried=[a_b]
reroute_by_hand pending:  agent=b offer=0 tried=[a_b]
reroute_by_hand working:  agent=b attempt=0 attempts_total=0 fence=- holder=- lease_ms=- offer=0 phase=pending tried=[a_b]
reroute_by_hand waiting:  agent=b offer=0 tried=[a_b]
reroute_by_hand above:    agent=b offer=0 tried=[a_chief_b]
escalated rejected:       agent=chief chain=[a] escalation_level=1 escalation_question=1 questions=1 escalations=1 offer=0 tried=[a_chief]
escalated timeout:        agent=chief attempt=0 chain=[a] escalation_level=1 escalation_question=1 questions=1 escalations=1 offer=0 timed_out=- tried=[a_chief]
holder_escalates working: agent=chief attempt=0 chain=[a] escalation_level=1 escalation_question=1 questions=1 escalations=1 fence=- holder=- lease_ms=- message=over_my_head offer=0 phase=pending reason=escalated tried=[a_chief]
holder_escalates judged:  chain=[a_chief] escalation_level=2 escalation_question=2 questions=2 escalations=2 fence=- holder=- lease_ms=- message=over_my_head offer=0 phase=pending reason=escalated
lease_lost claimed:       holder=- lapsed_claims=1 lease_ms=- queued_since
lease_lost accepted:      fence=- holder=- lease_ms=- leases_lost=1 message=the_worker_that_had_it_is_gone phase=pending reason=lease_lost retries=1
lease_lost working:       fence=- holder=- lease_ms=- leases_lost=1 message=the_worker_that_had_it_is_gone phase=pending reason=lease_lost retries=1
released claimed:         holder=- lease_ms=- queued_since
released accepted:        attempt=0 attempts_total=0 fence=- holder=- lease_ms=- phase=pending
released working:         attempt=0 attempts_total=0 fence=- holder=- lease_ms=- phase=pending
reminded working:         reminded_at
extended working:         extended_at extended_until=2026-03-01T14:00:00Z
timed_out pending:        overdue_since phase=timeout reason=deadline_timeout timed_out=deadline
timed_out claimed:        holder=- lease_ms=- overdue_since phase=timeout reason=deadline_timeout timed_out=deadline
timed_out asking:         conditions=- overdue_since phase=timeout reason=deadline_timeout timed_out=deadline
timed_out working:        fence=- holder=- lease_ms=- overdue_since phase=timeout reason=deadline_timeout timed_out=deadline
timed_out waiting:        children overdue_since phase=timeout reason=deadline_timeout timed_out=deadline
timed_out group:          phase=timeout reason=deadline_timeout timed_out=deadline
return clocked/pending:   phase=timeout reason=return_timeout return_since return_timeouts=1 timed_out=return
return clocked/rejected:  phase=timeout reason=return_timeout return_since return_timeouts=1 timed_out=return
progress clocked/working: fence=- holder=- lease_ms=- phase=timeout reason=progress_timeout timed_out=progress
cancel_requested working: cancel_by=test cancel_reason=no_longer_needed cancel_requested=true cancel_requested_at
closed pending:           closed=true closed_at outcome=failed phase=failed reason=test
closed asking:            closed=true closed_at conditions=- outcome=failed phase=failed reason=test
closed retrying:          closed=true closed_at outcome=failed phase=failed reason=test retry_at=-
closed working:           closed=true closed_at fence=- holder=- lease_ms=- outcome=failed phase=failed reason=test
closed waiting:           children closed=true closed_at outcome=failed phase=failed reason=test
stuck working:            stuck=package_missing
handed_off working:       children
suspended working:        attempt=0 attempts_total=0 children conditioned_at fence=- holder=- lease_ms=- phase=conditional reason=awaiting_returns
children_closed waiting:  children
children_closed group:    children
assigned group:  children
taken pending:            accepted_at agent=human attempt=1 attempts_total=1 fence=self holder=somebody lease_ms=30000 offer=self offered_at phase=accepted tried=[a_human]
taken waiting:            agent=human attempt=1 attempts_total=1 children fence=self holder=somebody lease_ms=30000 offer=self offered_at phase=accepted reason=- started_at=- tried=[a_human]
taken working:            agent=human attempts_total=2 children fence=self holder=somebody offer=self offered_at phase=accepted started_at=- tried=[a_human]
taken asking:             accepted_at agent=human attempt=1 attempts_total=1 condition_rounds=- conditions=- fence=self holder=somebody lease_ms=30000 offer=self offered_at phase=accepted reason=- tried=[a_human]
taken retrying:           agent=human attempts_total=2 children fence=self holder=somebody lease_ms=30000 offer=self offered_at phase=accepted reason=- retries=- retry_at=- retryable=- tried=[a_human]
taken rejected:           accepted_at agent=human alternative=- attempt=1 attempts_total=1 fence=self holder=somebody lease_ms=30000 offer=self offered_at phase=accepted reason=- tried=[a_human]
rolled_back pending:      cancel_by=test cancel_reason=not_ours closed=true closed_at inbox=human message=not_ours outcome=rolled_back phase=returned reason=returned result_seq=self
rolled_back waiting:      cancel_by=test cancel_reason=not_ours children closed=true closed_at inbox=human message=not_ours outcome=rolled_back phase=returned reason=returned result_seq=self
rolled_back working:      closed=true closed_at fence=- holder=- inbox=human lease_ms=- message=not_ours outcome=rolled_back phase=returned reason=returned result_seq=self
late_result_used late/failed: closed=true closed_at message=- outcome=success phase=complete reason=late_result result_seq=8
result_parked working:    late_fences=[77] late_seq=self late_status=success usage
result_parked closed/failed:   late_fences=[77] late_seq=self late_status=success usage
children_closed owing/failed:  children
return_sent owing/failed:      return_ticket
return_sent closed/returned:   return_ticket
returned owing/complete:       phase=returned returned_at
returned closed/returned:      returned_at
redriven owing/failed:         inbox=- redriven_as
dismissed owing/failed:        inbox=-
`

func TestFields(t *testing.T) {
	for _, text := range strings.Split(strings.TrimSpace(wantFields), "\n") {
		head, tail, _ := strings.Cut(text, ":")
		name, column, _ := strings.Cut(head, " ")
		before := stateOf(t, column)
		after, err := Apply(before, about(before, rowEvent(name)))
		if err != nil {
			t.Errorf("%s: %v", head, err)
			continue
		}
		want := strings.Fields(tail)
		slices.Sort(want)
		if got := changed(t, before, after); !slices.Equal(got, want) {
			t.Errorf("%s changed\n  %s\nwant\n  %s", head, strings.Join(got, " "), strings.Join(want, " "))
		}
	}
}

// stateOf makes the state of a column of any table.
func stateOf(t *testing.T, column string) p.State {
	t.Helper()
	table, column, named := strings.Cut(column, "/")
	if !named {
		return stateIn(t, table)
	}
	return map[string]func(testing.TB, string) p.State{"late": lateIn, "clocked": clockedIn, "closed": closedIn, "owing": owingIn}[table](t, column)
}

// rowEvent makes the event of a row of any table.
func rowEvent(name string) p.Event {
	if clock := p.Clock(name); clock == p.ClockReturn || clock == p.ClockProgress {
		return timedOut(clock)
	}
	return variantFor(name)
}

// TestNobody: events that name nobody where somebody must be are illegal.
func TestNobody(t *testing.T) {
	for column, e := range map[string]p.Event{
		"fresh":    &p.Submitted{Meta: at(0)},
		"pending":  &p.Accepted{Meta: at(sec), Offer: 1},
		"deferred": &p.Offered{Meta: at(sec)},
	} {
		before := stateIn(t, column)
		if after, err := Apply(before, e); result(before, after, err) != "illegal" {
			t.Errorf("%s by or to nobody: %v", e.EventType(), err)
		}
	}
	before := stateIn(t, "pending")
	for _, e := range []p.Event{&p.Taken{Meta: at(sec), Agent: "a"}, &p.Taken{Meta: at(sec), Holder: "w1"},
		&p.Rerouted{Meta: at(sec), From: "a", Manual: true}} {
		if after, err := Apply(before, e); result(before, after, err) != "illegal" {
			t.Errorf("%s by or to nobody: %v", e.EventType(), err)
		}
	}
	if after, err := Apply(before, &p.Claimed{Meta: at(sec), Offer: 1}); result(before, after, err) != "illegal" {
		t.Errorf("claimed by nobody: %v", err)
	}
}

// TestLargeDetails: details of progress that are too large for the state stay in
// the event alone.
func TestLargeDetails(t *testing.T) {
	details := json.RawMessage(`"` + strings.Repeat("x", messageBytesMax) + `"`)
	after, err := Apply(stateIn(t, "working"), &p.Progressed{Meta: at(sec), Fence: 2, Progress: p.Progress{Percent: 7, Details: details}})
	if err != nil || after.Progress.Details != nil || after.Progress.Percent != 7 {
		t.Errorf("%v, progress %+v", err, after.Progress)
	}
}

// TestUnknownEvent: an event of a newer program is illegal, not a crash.
func TestUnknownEvent(t *testing.T) {
	before := stateIn(t, "working")
	if after, err := Apply(before, unheard{}); result(before, after, err) != "illegal" {
		t.Errorf("an event nobody knows: %v", err)
	}
}

type unheard struct{ p.Meta }

func (unheard) EventType() p.EventType { return "unheard" }

var nameAlone = regexp.MustCompile(`_at$|_since$|^deadline$|^source$|ticket$|^redriven_as$`)

// changed lists the top-level fields of the wire that differ, with scalar
// values; updated_at aside, which every event moves.
func changed(t *testing.T, before, after p.State) []string {
	t.Helper()
	a, b := fields(t, before), fields(t, after)
	out := []string{}
	for name := range b {
		if _, ok := a[name]; !ok {
			a[name] = nil
		}
	}
	for name, was := range a {
		is := b[name]
		if name == "updated_at" || fmt.Sprint(was) == fmt.Sprint(is) {
			continue
		}
		switch v := is.(type) {
		case nil:
			out = append(out, name+"=-")
		case map[string]any:
			out = append(out, name)
		case float64:
			if v == float64(p.Self) {
				out = append(out, name+"=self")
				continue
			}
			out = append(out, fmt.Sprintf("%s=%v", name, v))
		default:
			if nameAlone.MatchString(name) {
				out = append(out, name)
				continue
			}
			out = append(out, name+"="+strings.ReplaceAll(fmt.Sprint(v), " ", "_"))
		}
	}
	slices.Sort(out)
	return out
}

func fields(t *testing.T, s any) map[string]any {
	t.Helper()
	out := map[string]any{}
	if err := json.Unmarshal([]byte(asJSON(t, s)), &out); err != nil {
		t.Fatal(err)
	}
	return out
}
