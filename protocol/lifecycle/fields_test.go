package lifecycle

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	p "github.com/agenthandoff/handoff/protocol"
)

// What each event changes beside updated_at, by the column of wantOpen it comes
// from. Instants are named alone, "-" is a field that went, self is the append's
// own sequence.
const wantFields = `
submitted fresh:          deadline package_seq=self phase=pending policy submitted_at ticket source target
offered asking:           conditions=- offer=self offered_at phase=pending
offered deferred:         offer=self offered_at phase=pending retry_at=-
offered retrying:         accepted_at=- offer=self offered_at phase=pending retry_at=- retryable=-
offered failed:           accepted_at=- offer=self offered_at phase=pending retryable=-
offered timeout:          accepted_at=- offer=self offered_at phase=pending timed_out=-
offered rejected:         alternative=- offer=self offered_at phase=pending
claimed pending:          claimed_at holder=w1 lease_ms=30000
accepted pending:         accepted_at attempt=1 attempts_total=1 fence=self holder=w1 lease_ms=30000 phase=accepted
accepted claimed:         accepted_at attempt=1 attempts_total=1 fence=self phase=accepted
started accepted:         phase=working started_at
progressed accepted:      progress
progressed working:       progress
completed accepted:       closed=true closed_at fence=- holder=- lease_ms=- outcome=success phase=complete result_seq=self tokens=12
completed working:        closed=true closed_at fence=- holder=- lease_ms=- outcome=success phase=complete result_seq=self tokens=12
failed working:           fence=- holder=- lease_ms=- message=exit_status_1 phase=failed reason=exit retryable=true
rejected pending:         alternative=b message=no phase=rejected reason=unable refused=[a]
rejected claimed:         alternative=b holder=- lease_ms=- message=no phase=rejected reason=unable refused=[a]
rejected working:         alternative=b attempt=0 attempts_total=0 fence=- holder=- lease_ms=- message=no phase=rejected reason=unable refused=[a]
conditioned pending:      condition_rounds=1 conditioned_at conditions message=which? phase=conditional reason=condition
conditioned working:      attempt=0 attempts_total=0 condition_rounds=1 conditioned_at conditions fence=- holder=- lease_ms=- message=which? phase=conditional reason=condition
answered asking:          conditions=- reason=answer retry_at supplements=1
retry_scheduled failed:   phase=retrying retry_at
retry_scheduled timeout:  phase=retrying retry_at timed_out=-
rerouted rejected:        agent=b offer=0 reroutes=1 tried=[a_b]
rerouted timeout:         agent=b attempt=0 offer=0 reroutes=1 tried=[a_b]
escalated rejected:       agent=chief chain=[a] escalation_level=1 offer=0 tried=[a_chief]
escalated timeout:        agent=chief attempt=0 chain=[a] escalation_level=1 offer=0 tried=[a_chief]
lease_lost claimed:       holder=- lease_ms=-
lease_lost accepted:      fence=- holder=- lease_ms=- leases_lost=1 message=the_worker_that_had_it_is_gone phase=pending reason=lease_lost
lease_lost working:       fence=- holder=- lease_ms=- leases_lost=1 message=the_worker_that_had_it_is_gone phase=pending reason=lease_lost
released claimed:         holder=- lease_ms=-
released accepted:        attempt=0 attempts_total=0 fence=- holder=- lease_ms=- phase=pending
released working:         attempt=0 attempts_total=0 fence=- holder=- lease_ms=- phase=pending
reminded working:         reminded_at
timed_out pending:        phase=timeout reason=deadline_timeout timed_out=deadline
timed_out claimed:        holder=- lease_ms=- phase=timeout reason=deadline_timeout timed_out=deadline
timed_out asking:         conditions=- phase=timeout reason=deadline_timeout timed_out=deadline
timed_out working:        fence=- holder=- lease_ms=- phase=timeout reason=deadline_timeout timed_out=deadline
cancel_requested working: cancel_requested=true cancel_requested_at
closed pending:           closed=true closed_at outcome=failed phase=failed reason=test
closed asking:            closed=true closed_at conditions=- outcome=failed phase=failed reason=test
closed retrying:          closed=true closed_at outcome=failed phase=failed reason=test retry_at=-
closed working:           closed=true closed_at fence=- holder=- lease_ms=- outcome=failed phase=failed reason=test
stuck working:            stuck=package_missing
`

func TestFields(t *testing.T) {
	for _, text := range strings.Split(strings.TrimSpace(wantFields), "\n") {
		head, tail, _ := strings.Cut(text, ":")
		name, column, _ := strings.Cut(head, " ")
		before := stateIn(t, column)
		after, err := Apply(before, forHolder(before, eventFor(p.EventType(name))))
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

// TestDeniedAnswerIsARefusal: whoever asked and was denied cannot do it.
func TestDeniedAnswerIsARefusal(t *testing.T) {
	before := stateIn(t, "asking")
	after, err := Apply(before, &p.Answered{Meta: at(sec), Offer: 1, Answer: p.Answer{Deny: true, DenyReason: "secret"}})
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(changed(t, before, after), " ")
	if want := "conditions=- message=secret phase=rejected reason=denied refused=[a]"; got != want {
		t.Errorf("changed %s, want %s", got, want)
	}
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
	if after, err := Apply(before, &p.Claimed{Meta: at(sec), Offer: 1}); result(before, after, err) != "illegal" {
		t.Errorf("claimed by nobody: %v", err)
	}
}

// TestLargeDetails: details of progress that are too large for the state stay in
// the event alone.
func TestLargeDetails(t *testing.T) {
	details := json.RawMessage(`"` + strings.Repeat("x", MessageBytesMax) + `"`)
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
			if strings.HasSuffix(name, "_at") || name == "deadline" || name == "source" || name == "ticket" {
				out = append(out, name)
				continue
			}
			out = append(out, name+"="+strings.ReplaceAll(fmt.Sprint(v), " ", "_"))
		}
	}
	slices.Sort(out)
	return out
}

func fields(t *testing.T, s p.State) map[string]any {
	t.Helper()
	out := map[string]any{}
	if err := json.Unmarshal([]byte(asJSON(t, s)), &out); err != nil {
		t.Fatal(err)
	}
	return out
}
