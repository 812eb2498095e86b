package index

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// attention has agents ask for context, and closes handoffs that an inbox then lists.
func (w *world) attention(n int) {
	for range n {
		k := pick(w.rng, w.heads)
		if w.rng.IntN(3) == 0 {
			w.append(k, []protocol.Event{&protocol.Closed{Meta: protocol.Meta{At: w.now}, Outcome: protocol.OutcomeTimeout, Reason: "deadline",
				Inbox: pick(w.rng, []string{"ann", "lead", protocol.Human})}})
			continue
		}
		w.append(k, []protocol.Event{&protocol.Conditioned{Meta: protocol.Meta{At: w.now, By: k.Agent}, Offer: k.Offer, Agent: k.Agent,
			NeedsContext: []string{"which branch?"}}})
	}
}

// spendAll has a handoff wait for its budget.
func (w *world) spendAll(k *subject) {
	meta := protocol.Meta{At: w.now}
	accepted := &protocol.Accepted{Meta: meta, Offer: k.Offer, Agent: k.Agent, Holder: "h", LeaseMS: 30_000, Attempt: 1}
	if !w.append(k, []protocol.Event{accepted}) {
		w.t.Fatal("not accepted")
	}
	failed := &protocol.Failed{Meta: meta, Fence: k.Fence, Code: "no_tokens", Retryable: true}
	gated := &protocol.Gated{Meta: meta, GateTerms: protocol.GateTerms{Waits: []protocol.GateKind{protocol.GateBudget}, Agent: k.Agent, Approver: protocol.Human}}
	if !w.append(k, []protocol.Event{failed, gated}) {
		w.t.Fatal("not gated")
	}
}

// TestWaiting compares inboxes with what the core says of each handoff.
func TestWaiting(t *testing.T) {
	w, ix := memoryWorld(t, 23)
	reasons := map[lifecycle.InboxReason]int{}
	for range 3 {
		w.live(80, 200)
		w.attention(60)
		w.spendAll(w.submit())
		for _, approver := range []string{"ann", "lead", protocol.Human} {
			w.submit(func(pkg *protocol.Package) {
				pkg.Source, pkg.Approval = "stranger", &protocol.Approval{Required: true, By: approver}
			})
		}
		registered := &lifecycle.Directory{Agents: map[string]*protocol.Profile{"ann": {EscalatesTo: "lead"}, "lead": {EscalatesTo: "boss"}, "boss": {}}}
		for _, agent := range []string{"ann", "lead", "boss", protocol.Human, "stranger"} {
			want := map[string]lifecycle.InboxReason{}
			free, first := 0, time.Time{}
			for _, k := range w.heads {
				reason := lifecycle.InboxReasonFor(k.State, agent, registered)
				if reason == lifecycle.InboxNone {
					continue
				}
				want[k.Ticket] = reason
				reasons[reason]++
				if k.Holder == "" {
					free++
				}
				if first.IsZero() || k.UpdatedAt.Before(first) {
					first = k.UpdatedAt
				}
			}
			q := ask.WaitingQuery{Agent: agent, Limit: 1 + w.rng.IntN(30), Registered: slices.Collect(maps.Keys(registered.Agents)),
				Below: lifecycle.ApproversBelow(agent, registered)}
			got := map[string]lifecycle.InboxReason{}
			for {
				a, err := ix.Waiting(t.Context(), q)
				if err != nil || !a.Complete {
					t.Fatalf("%s: %+v, %v", agent, a.Position, err)
				}
				for _, row := range a.Handoffs {
					if _, twice := got[row.Ticket]; twice {
						t.Errorf("%s comes twice", row.Ticket)
					}
					got[row.Ticket] = row.Inbox
				}
				if q.Cursor = a.Cursor; q.Cursor == "" {
					break
				}
			}
			if !maps.Equal(got, want) {
				t.Fatalf("the inbox of %s has %d handoffs, want %d:\n%v\n%v", agent, len(got), len(want), got, want)
			}
			q.Count = true
			if a, err := ix.Waiting(t.Context(), q); err != nil || a.Counted != len(want) || !a.Since.Equal(first) || len(a.Handoffs) > 0 {
				t.Errorf("the inbox of %s has a count of %d since %v, want %d since %v: %v", agent, a.Counted, a.Since, len(want), first, err)
			}
			q.Free = true
			if a, err := ix.Waiting(t.Context(), q); err != nil || a.Counted != free {
				t.Errorf("%s has %d that no worker has, want %d: %v", agent, a.Counted, free, err)
			}
		}
	}
	for _, reason := range inboxReasons {
		if reasons[reason] == 0 {
			t.Errorf("no inbox had a handoff because of %s", reason)
		}
	}
}

// TestDead compares dead letters with what the core says of each handoff.
func TestDead(t *testing.T) {
	w, ix := memoryWorld(t, 29)
	w.live(150, 600)
	for _, k := range w.heads[:40] {
		w.append(k, []protocol.Event{&protocol.Redriven{Meta: protocol.Meta{At: w.now, By: "lead"}, Ticket: protocol.RedriveTicket(k.Ticket)}})
	}
	redriven := 0
	for _, q := range []ask.DeadQuery{{}, {Redriven: true}, {Agent: "ann"}, {Source: "bob"}, {Outcome: protocol.OutcomeFailed},
		{Since: w.heads[100].SubmittedAt}, {Agent: "nobody"}, {Source: "schedule"}, {Source: "signal:order"}, {Source: "cy", Outcome: protocol.OutcomeCancelled, Redriven: true}} {
		var want []*subject
		for _, k := range w.heads {
			if lifecycle.DeadLetter(k.State) && (q.Redriven || k.RedrivenAs == "") && (q.Agent == "" || q.Agent == k.Agent) &&
				(q.Source == "" || q.Source == k.Source || q.Source == k.From()) && (q.Outcome == "" || q.Outcome == k.Outcome) && !k.ClosedAt.Before(q.Since) {
				want = append(want, k)
			}
			if k.RedrivenAs != "" {
				redriven++
			}
		}
		slices.SortFunc(want, func(x, y *subject) int {
			if order := y.ClosedAt.Compare(x.ClosedAt); order != 0 {
				return order
			}
			return y.begun - x.begun
		})
		var got []string
		for q.Limit = 7; ; {
			a, err := ix.Dead(t.Context(), q)
			if err != nil || !a.Complete {
				t.Fatalf("%+v: %+v, %v", q, a.Position, err)
			}
			for _, row := range a.Handoffs {
				got = append(got, row.Ticket)
			}
			if q.Cursor = a.Cursor; q.Cursor == "" {
				break
			}
		}
		if !slices.EqualFunc(got, want, func(ticket string, k *subject) bool { return ticket == k.Ticket }) {
			t.Errorf("%+v: %d dead letters, want %d", q, len(got), len(want))
		}
	}
	if redriven == 0 {
		t.Error("none was redriven")
	}
}

// TestSeries compares a series with a pass over the handoffs.
func TestSeries(t *testing.T) {
	w, ix := memoryWorld(t, 31)
	w.live(200, 800)
	q := ask.SeriesQuery{Since: w.heads[20].SubmittedAt, Until: w.now.Add(-10 * time.Millisecond), BucketMS: 50, Filter: ask.Filter{Source: []string{"ann", "bob"}}}
	a, err := ix.Series(t.Context(), q)
	if err != nil || !a.Complete || len(a.Buckets) < 5 {
		t.Fatalf("%+v, %v", a, err)
	}
	for i, b := range a.Buckets {
		until := b.Since.Add(50 * time.Millisecond)
		if !b.Since.Equal(q.Since.Add(time.Duration(i) * 50 * time.Millisecond)) {
			t.Errorf("bucket %d begins at %v", i, b.Since)
		}
		within := func(at time.Time) bool { return !at.Before(b.Since) && at.Before(until) }
		var want ask.Bucket
		for _, k := range w.heads {
			if k.Source != "ann" && k.Source != "bob" {
				continue
			}
			if within(k.SubmittedAt) {
				want.Submitted++
			}
			if !k.Closed || !within(k.ClosedAt) {
				continue
			}
			want.Whole.Count++
			if k.Outcome == protocol.OutcomeSuccess || k.Outcome == protocol.OutcomePartial {
				want.Succeeded++
			} else {
				want.Failed++
			}
		}
		if b.Submitted != want.Submitted || b.Succeeded != want.Succeeded || b.Failed != want.Failed || b.Whole.Count != want.Whole.Count {
			t.Errorf("bucket %d is %+v, want %+v", i, b, want)
		}
	}
	hour := w.heads[0].SubmittedAt.Truncate(time.Hour)
	for _, until := range []time.Time{hour.Add(time.Hour), hour.Add(30 * time.Hour)} {
		q := ask.SeriesQuery{Since: hour, Until: until, BucketMS: time.Hour.Milliseconds()}
		scanned, err := ix.Series(t.Context(), q)
		q.Counts = true
		counted, noCounts := ix.Series(t.Context(), q)
		if err != nil || noCounts != nil || len(counted.Buckets) != len(scanned.Buckets) {
			t.Fatalf("%v, %v", err, noCounts)
		}
		for i, b := range scanned.Buckets {
			b.Whole = ask.Durations{}
			if counted.Buckets[i] != b {
				t.Errorf("hour %d: counted %+v, scanned %+v", i, counted.Buckets[i], b)
			}
		}
	}
	for name, wrong := range map[string]ask.SeriesQuery{
		"no beginning": {Until: w.now, BucketMS: 1}, "no span": {Since: w.now, Until: w.now, BucketMS: 1}, "no width": {Since: q.Since, Until: q.Until},
		"too many": {Since: w.now, Until: w.now.Add(time.Hour), BucketMS: 3_599},
	} {
		if _, err := ix.Series(t.Context(), wrong); err == nil {
			t.Errorf("%s was not refused", name)
		}
	}
}
