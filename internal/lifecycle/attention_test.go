package lifecycle

import (
	"testing"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// checkAttention holds what an append says that it calls for against what the
// core decides: who believes it must miss nothing, whatever the directory says
// and whenever within the span the append is read.
func (w *world) checkAttention(h *thread) {
	s, says := h.state, AttentionOf(h.state)
	if says == AttentionNow || w.seq%4 != 0 { // the rest is enough, and much of it
		return
	}
	*w.hits.trusted(says)++
	duties := DutiesOf(s)
	if NotifiesParent(s) || NotifiesOrigin(s) || hasDutiesNow(s) || NotifiesChain(s) || duties.Return || duties.CancelChildren ||
		duties.Mark && s.Phase == p.Conditional {
		w.fail(h, "says %s, with duties %+v", says, duties)
	}
	missing := duties.Children && s.Children.Made.Without(s.Children.Closed) != ""
	if (says == AttentionNone) != (s.Closed && !missing && !duties.Chain) {
		w.fail(h, "says %s, closed %t, children that may not have been submitted: %t", says, s.Closed, missing)
	}
	end := s.UpdatedAt.Add(attentionSpan)
	for _, now := range []time.Time{s.UpdatedAt, end.Add(-attentionSpan / 2), end.Add(-1)} {
		for _, d := range w.anyDirectory(s) {
			if events := mustDecide(s, d, now).Events; len(events) > 0 {
				w.fail(h, "says %s, and %s is due %v after it", says, brief(events), now.Sub(s.UpdatedAt))
			}
		}
		if next := NextReconcile(s, now); !s.Closed && next.Before(end) {
			w.fail(h, "says %s, and is to be reconciled within %v", says, next.Sub(s.UpdatedAt))
		}
	}
}

// anyDirectory are directories that say as different things as they can, apart
// from that the holder of s, if there is one, is present.
func (w *world) anyDirectory(s p.State) []*Directory {
	since := s.SubmittedAt.Add(-time.Hour)
	gone := &Directory{Agents: w.d.Agents, LastPresent: map[string]time.Time{s.Agent: since}, ConnectedSince: since}
	nobody := &Directory{ConnectedSince: since}
	all := []*Directory{w.d, gone, nobody}
	if s.Held() {
		for i, d := range all {
			all[i] = d.With(p.Holder{ID: s.Holder, Agent: s.Agent})
		}
		return all
	}
	return append(all, nil)
}

// TestAttentionOfShortHandoff: the appends of a handoff that nothing befalls call
// for nothing, or for nothing yet. It is those that there are most of.
func TestAttentionOfShortHandoff(t *testing.T) {
	wants := func(l *line, want Attention, what string) {
		t.Helper()
		if got := AttentionOf(l.state); got != want {
			t.Errorf("%s calls for %q, want %q", what, got, want)
		}
	}
	l := submit(t, fleet(agent("a")), nil)
	wants(l, AttentionLater, "a submission with its offer")
	polling := *l
	wants(polling.add(&p.Claimed{Meta: at(sec), Agent: "a", Holder: "w", Offer: l.state.Offer, LeaseMS: lease}), AttentionLater, "a claim")
	brief := *l
	wants(brief.add(&p.Accepted{Meta: at(sec), Agent: "a", Holder: "w", Offer: l.state.Offer, LeaseMS: 1_000}), AttentionNow, "a lease that ends with the hold")
	l.accept("w", sec)
	wants(l, AttentionLater, "an acceptance")
	failed := *l
	wants(failed.add(&p.Failed{Meta: at(2 * sec), Fence: l.state.Fence, Attempt: 1, Code: "x", Retryable: true}), AttentionNow, "a failure")
	l.add(&p.Completed{Meta: at(2 * sec), Fence: l.state.Fence, Status: "success"})
	wants(l, AttentionNone, "a completion")

	expected := submit(t, fleet(agent("a"), agent("src")), func(s *p.Summary) { s.ReturnExpected = true }).accept("w", sec)
	wants(expected.add(&p.Completed{Meta: at(2 * sec), Fence: expected.state.Fence, Status: "success"}), AttentionNow, "an end that is to be returned")
	child := submit(t, fleet(agent("a")), func(s *p.Summary) { s.Parent, s.N = ticket, 1 })
	wants(child, AttentionLater, "a child")
	clock := submit(t, fleet(agent("a")), func(s *p.Summary) { s.Overrides.AckTimeoutMS = ptr(int64(1_000)) })
	wants(clock, AttentionNow, "an offer whose time is short")
}

func BenchmarkAttention(b *testing.B) {
	for _, in := range []string{"pending", "working"} {
		b.Run(in, func(b *testing.B) {
			s := stateIn(b, in)
			b.ReportAllocs()
			for b.Loop() {
				AttentionOf(s)
			}
		})
	}
}
