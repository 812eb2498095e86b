package index

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// naive is what Filter promises, said once more and without an index.
func naive(f ask.Filter, k *subject) bool {
	has := func(values []string, value string) bool { return len(values) == 0 || slices.Contains(values, value) }
	party := func(values []string, asked string) bool {
		return len(values) == 0 || slices.Contains(values, asked) || slices.ContainsFunc(values, func(agent string) bool { return k.had[agent] })
	}
	if !party(f.From, k.Source) && !party(f.From, k.From()) || !party(f.To, k.TargetWords()) {
		return false
	}
	words := map[string]bool{}
	wordsOf(k.description+" "+k.why, func(word []byte) { words[string(word)] = true })
	for _, given := range strings.Fields(f.Text) {
		beginning := strings.HasSuffix(given, "*")
		var wanted []string
		wordsOf(given, func(word []byte) { wanted = append(wanted, string(word)) })
		for i, word := range wanted {
			found := words[word]
			for have := range words {
				found = found || beginning && i == len(wanted)-1 && strings.HasPrefix(have, word)
			}
			if !found {
				return false
			}
		}
	}
	return has(f.Agent, k.Agent) && (has(f.Source, k.Source) || has(f.Source, k.From())) && has(f.Target, k.TargetWords()) &&
		(f.Phase == nil || slices.Contains(f.Phase, k.Phase)) && (f.Outcome == nil || slices.Contains(f.Outcome, k.Outcome)) &&
		(f.Open == nil || *f.Open != k.Closed) && (f.Priority == nil || slices.Contains(f.Priority, k.Priority)) &&
		(f.Type == nil || slices.Contains(f.Type, k.Type)) && has(f.WorkflowID, k.WorkflowID) &&
		has(f.ConversationID, k.ConversationID) && has(f.TaskID, k.TaskID) && has(f.Variant, k.Variant) && has(f.Parent, k.Parent) && has(f.Ticket, k.Ticket) &&
		(f.Gate == nil || slices.Contains(f.Gate, k.Gate.First())) && (!f.Barred || k.barred) &&
		(f.Since.IsZero() || !k.SubmittedAt.Before(f.Since)) && (f.Until.IsZero() || k.SubmittedAt.Before(f.Until)) &&
		(f.UpdatedSince.IsZero() || !k.UpdatedAt.Before(f.UpdatedSince))
}

func (w *world) randomFilter() (f ask.Filter) {
	some := func(set func()) {
		if w.rng.IntN(6) == 0 {
			set()
		}
	}
	at := func() time.Time { return pick(w.rng, w.heads).SubmittedAt }
	open := w.rng.IntN(2) == 0
	some(func() { f.Agent = []string{pick(w.rng, testAgents), pick(w.rng, testAgents)} })
	some(func() { f.Source = []string{pick(w.rng, testFrom)} })
	some(func() { f.Target = []string{pick(w.rng, testAgents), "nobody"} })
	some(func() { f.From = []string{pick(w.rng, testFrom), "nobody"} })
	some(func() { f.To = []string{pick(w.rng, append(testAgents, "human")), pick(w.rng, testAgents)} })
	some(func() { f.Phase = []protocol.Phase{pick(w.rng, protocol.Phases), protocol.Pending} })
	some(func() { f.Outcome = []protocol.Outcome{pick(w.rng, protocol.Outcomes), protocol.OutcomeSuccess} })
	some(func() { f.Open = &open })
	some(func() { f.Priority = []protocol.Priority{pick(w.rng, protocol.Priorities)} })
	some(func() { f.Type = []protocol.Type{protocol.Sequential} })
	some(func() { f.WorkflowID = []string{pick(w.rng, w.heads).WorkflowID, "flow-1"} })
	some(func() { f.ConversationID = []string{"conversation 1", "conversation 2"} })
	some(func() { f.TaskID = []string{pick(w.rng, w.heads).TaskID} })
	some(func() {
		if variant := pick(w.rng, w.heads).Variant; variant != "" {
			f.Variant = []string{variant}
		}
	})
	some(func() { f.Parent = []string{pick(w.rng, w.heads).Ticket} })
	some(func() { f.Ticket = []string{pick(w.rng, w.heads).Ticket, pick(w.rng, w.heads).Ticket} })
	some(func() { f.Gate = []protocol.GateKind{pick(w.rng, protocol.GateKinds), protocol.GateApproval} })
	some(func() { f.Barred = true })
	some(func() { f.Since = at() })
	some(func() { f.Until = at() })
	some(func() { f.UpdatedSince = at() })
	some(func() { f.Text = pick(w.rng, testWords) })
	some(func() { f.Text = pick(w.rng, testWords) + " dat*" })
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		f.Until = time.Time{}
	}
	return f
}

func (w *world) selected(f ask.Filter, sort ask.Sort) (tickets []string) {
	var all []*subject
	for _, k := range w.heads {
		if naive(f, k) {
			all = append(all, k)
		}
	}
	slices.SortFunc(all, func(a, b *subject) int {
		order := a.SubmittedAt.Compare(b.SubmittedAt)
		if sort == ask.SortUpdated {
			order = a.UpdatedAt.Compare(b.UpdatedAt)
			if order == 0 {
				order = a.SubmittedAt.Compare(b.SubmittedAt)
			}
		}
		if order == 0 {
			order = a.begun - b.begun
		}
		if sort != ask.SortOldest {
			order = -order
		}
		return order
	})
	for _, k := range all {
		tickets = append(tickets, k.Ticket)
	}
	return tickets
}

// TestAgainstAScan compares lists and counts with a scan over where the handoffs stand.
func TestAgainstAScan(t *testing.T) {
	for _, seed := range []uint64{1, 2} {
		w, ix := memoryWorld(t, seed)
		for range 4 {
			w.live(120, 400)
			for range 60 {
				w.compare(ix, w.randomFilter())
			}
		}
	}
}

func (w *world) compare(ix *Index, f ask.Filter) {
	w.t.Helper()
	sort := pick(w.rng, ask.Sorts)
	want := w.selected(f, sort)
	q := ask.ListQuery{Filter: f, Sort: sort, Limit: 1 + w.rng.IntN(40)}
	var got []string
	for {
		a, err := ix.List(w.t.Context(), q)
		if err != nil {
			w.t.Fatalf("%s: %v", dump(q), err)
		}
		if !a.Complete || a.Behind != 0 {
			w.t.Fatalf("%s: %+v", dump(q), a.Position)
		}
		for _, row := range a.Handoffs {
			got = append(got, row.Ticket)
			w.compareRow(row)
		}
		if q.Cursor = a.Cursor; q.Cursor == "" {
			break
		}
		if len(a.Handoffs) != q.Limit {
			w.t.Fatalf("a page of %d has %d", q.Limit, len(a.Handoffs))
		}
	}
	if !slices.Equal(got, want) {
		w.t.Fatalf("%s sorted by %s: %d handoffs, want %d", dump(f), sort, len(got), len(want))
	}
	by := []ask.By{pick(w.rng, ask.Bys)}
	count, err := ix.Count(w.t.Context(), ask.CountQuery{Filter: f, By: by})
	if err != nil {
		w.t.Fatalf("count %s: %v", dump(f), err)
	}
	var sum int64
	for _, g := range count.Groups {
		sum += g.Count
	}
	if count.Count != int64(len(want)) || sum != count.Count || !count.Complete {
		w.t.Fatalf("count %s by %s is %d, of the groups %d, want %d", dump(f), by, count.Count, sum, len(want))
	}
	w.compareHad(ix, f, want)
}

// compareHad compares the count by target with the agents that had each handoff.
func (w *world) compareHad(ix *Index, f ask.Filter, selected []string) {
	w.t.Helper()
	type told struct{ count, had int64 }
	want := map[string]told{}
	for _, ticket := range selected {
		k := w.by[ticket]
		asked := want[k.TargetWords()]
		asked.count++
		want[k.TargetWords()] = asked
		for agent := range k.had {
			had := want[agent]
			had.had++
			want[agent] = had
		}
	}
	count, err := ix.Count(w.t.Context(), ask.CountQuery{Filter: f, By: []ask.By{ask.ByTarget}, Had: true})
	if err != nil {
		w.t.Fatalf("count %s by target: %v", dump(f), err)
	}
	got := map[string]told{}
	for _, g := range count.Groups {
		got[g.Values[0]] = told{g.Count, g.Had}
	}
	if count.Count != int64(len(selected)) || !maps.Equal(got, want) {
		w.t.Fatalf("count %s by target is %d, %v, want %d, %v", dump(f), count.Count, got, len(selected), want)
	}
}

func (w *world) compareRow(r ask.Row) {
	w.t.Helper()
	k := w.by[r.Ticket]
	if r.Seq != k.seq || r.Phase != k.Phase || r.Closed != k.Closed || r.Outcome != k.Outcome || r.Agent != k.Agent ||
		r.Source != k.Source || r.Schedule != k.Schedule || r.Rule != k.Rule || r.Attempts != k.AttemptsTotal || r.Reroutes != k.Reroutes || r.Reason != k.Reason ||
		r.Priority != k.Priority || r.Type != k.Type || r.WorkflowID != k.WorkflowID || r.ConversationID != k.ConversationID ||
		r.TaskID != k.TaskID || r.Variant != k.Variant || r.Parent != k.Parent || r.Holder != k.Holder || r.Level != k.EscalationLevel ||
		r.Description != k.description || r.Why != k.why || !r.SubmittedAt.Equal(k.SubmittedAt) ||
		!r.UpdatedAt.Equal(k.UpdatedAt) || !r.ClosedAt.Equal(k.ClosedAt) || r.Tokens != k.Usage.Total().Tokens || r.CostMicros != k.Usage.Total().CostMicros || (r.WholeMS != nil) != k.Closed || r.Gate != k.Gate.First() || r.GatedAt.IsZero() != (r.Gate == "") || r.Barred != k.barred {
		w.t.Fatalf("the row is\n%s, the state\n%s", dump(r), dump(k.State))
	}
}
