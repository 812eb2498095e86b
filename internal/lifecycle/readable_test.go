package lifecycle

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/record"
	p "github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/tests/mutate"
)

// TestMutatedStates mutates records of random lives. What CheckRead lets pass the core
// can decide about, at any time, and what follows can be encoded and read again.
func TestMutatedStates(t *testing.T) {
	const worlds, turns, every, mutations = 120, 60, 2, 5
	refused, passed, choked := 0, 0, 0
	for seed := range uint64(worlds) {
		rng := rand.New(rand.NewPCG(seed, 48))
		w := newWorld(seeded{rand.New(rand.NewPCG(seed, 0))}, new(tally))
		w.seen = func(h *thread) {
			if rng.IntN(every) != 0 || len(h.log) == 0 {
				return
			}
			body, err := record.Encode(p.Record{ID: "id", Events: h.log[len(h.log)-1].events, State: h.state})
			if err != nil {
				t.Fatal(err)
			}
			for range mutations {
				bad := mutate.Record(rng, body)
				_, s, err := record.DecodeState(bad, w.seq)
				if err == nil {
					err = CheckRead(h.ticket, w.seq, &s)
				}
				if err != nil {
					refused++
					continue
				}
				passed++
				// A contradiction that only a decision meets is rare, and a supervisor's
				// to catch: that handoff is stuck, with an event.
				if broken := decideAt(s, w.d, w.now); broken != "" {
					choked++
					t.Logf("%s, of %.200s", broken, bad)
					continue
				}
				if broken := chew(s, w.d, w.now); broken != "" {
					t.Fatalf("seed %d: %s, of\n%s", seed, broken, bad)
				}
				if record, err := record.Decode(bad, w.seq); err == nil { // as who verifies does
					_, _ = ApplyAll(h.state, record.Events)
					_, _ = ApplyAll(p.State{}, record.Events)
					_ = CheckWriters(s, record.Events)
				}
			}
		}
		for range 1 + w.n(3) {
			w.submit()
		}
		for range turns {
			w.turn()
		}
	}
	t.Logf("%d mutated states refused, %d let pass, the core choked on %d", refused, passed, choked)
	if refused < 1_000 || passed < 1_000 || choked > 3+passed/1_000 {
		t.Errorf("%d refused, %d let pass: few; or the core choked on more than one in a thousand: %d", refused, passed, choked)
	}
}

// waits are the times after which a state is reconciled again.
var waits = []time.Duration{0, time.Minute, 24 * time.Hour, 400 * 24 * time.Hour}

// decideAt decides about a state, and says what was wrong with that.
func decideAt(s p.State, d *Directory, now time.Time) (broken string) {
	defer func() {
		if r := recover(); r != nil {
			broken = fmt.Sprint("panic: ", r)
		}
	}()
	for _, later := range waits {
		at := now.Add(later)
		if s.UpdatedAt.After(at) {
			at = s.UpdatedAt
		}
		step := mustDecide(s, d, at)
		next := step.State
		if _, err := record.Append(nil, "id", step.Events, &next); err != nil && len(step.Events) > 0 {
			continue // too large to go on: that append fails
		}
		_, _ = EndedBetween(s, next)
		_ = AttentionOf(next)
	}
	return ""
}

// chew does with a state what else is done with one that was read.
func chew(s p.State, d *Directory, now time.Time) (broken string) {
	defer func() {
		if r := recover(); r != nil {
			broken = fmt.Sprint("panic: ", r)
		}
	}()
	if s.UpdatedAt.After(now) {
		now = s.UpdatedAt
	}
	for _, later := range waits {
		at := now.Add(later)
		if next := NextReconcile(s, at); !s.Closed && !next.After(at) {
			return "reconciled again at once, for ever"
		}
		_ = AbsenceKnownAt(s, d)
		_ = Wake(s)
	}
	duties := DutiesOf(s)
	if duties.Offer && (p.CheckID("agent", s.Agent) != nil || s.Priority == "") {
		return "an offer that has no subject"
	}
	_, _, _, _ = HasPendingDuties(s), NotifiesParent(s), NotifiesOrigin(s), OfferStands(s)
	_ = InboxReasonFor(s, "coder", d)
	_, _ = Limit(s)
	_, _ = MarkChildren(s, d.At(now), []p.ChildClosed{{N: 0, Outcome: p.OutcomeSuccess}, {N: s.N - 1, Outcome: p.OutcomeFailed}})
	_, _ = FollowSource(s, s, d.At(now))
	_, _ = Cancel(s, d.At(now), "lead", "why", false)
	_, _ = RollBack(s, d.At(now), "lead", "why")
	_, _ = RerouteTo(s, d.At(now), "b", "lead", "why", time.Time{})
	_, _ = TakeNow(s, d.At(now), Claimant{Agent: "b", Holder: "h", LeaseMS: 1000}, "why")
	_, _ = Apply(s, &p.Stuck{Meta: p.Meta{At: now}, Reason: "r"})
	return ""
}

// TestCheckRead: each kind of state that nothing may be decided by is refused, and says
// which field is wrong.
func TestCheckRead(t *testing.T) {
	ticket := p.NewTicket()
	summary := p.Summary{Type: p.Sequential, Source: "s", Target: p.Target{Agent: "a"}, Priority: p.Normal, Digest: "sha256:0"}
	step, err := Submit(ticket, summary, p.Submitted{}, fleet(agent("a")).At(t0))
	if err != nil {
		t.Fatal(err)
	}
	good := step.State
	good.Bind(7)
	if err := CheckRead(ticket, 7, &good); err != nil {
		t.Fatal(err)
	}
	group := &p.Aggregate{Size: p.ChildrenMax, Mode: p.AggregateAll}
	for name, c := range map[string]struct {
		change func(*p.State)
		want   string
	}{
		"another ticket":       {func(s *p.State) { s.Ticket = p.NewTicket() }, "state.ticket"},
		"no ticket":            {func(s *p.State) { s.Ticket = "x" }, "state.ticket"},
		"no source":            {func(s *p.State) { s.Source = "" }, "state.source"},
		"no agent":             {func(s *p.State) { s.Agent = "" }, "agent"},
		"no agent's name":      {func(s *p.State) { s.Agent = "a.b" }, "state.agent"},
		"no priority":          {func(s *p.State) { s.Priority = "" }, "state.priority"},
		"no phase":             {func(s *p.State) { s.Phase = "" }, "state.phase"},
		"a phase that is none": {func(s *p.State) { s.Phase = "x" }, "state.phase"},
		"no type":              {func(s *p.State) { s.Type = "" }, "state.type"},
		"a parent of all":      {func(s *p.State) { s.Parent = "*" }, "state.parent"},
		"a child of none":      {func(s *p.State) { s.N = 1 }, "state.parent"},
		"from the future":      {func(s *p.State) { s.Offer = 8 }, "state.offer"},
		"no package":           {func(s *p.State) { s.PackageSeq = 0 }, "state.package_seq"},
		"no instant":           {func(s *p.State) { s.UpdatedAt = p.Time{} }, "state.submitted_at"},
		"attempts under 0":     {func(s *p.State) { s.Attempt = -1 }, "state.attempt"},
		"attempts":             {func(s *p.State) { s.Attempt, s.AttemptsTotal = countMax+1, countMax+1 }, "state.attempt"},
		"a lease of none":      {func(s *p.State) { s.Holder, s.ClaimedAt = "h", t0 }, "state.lease_ms"},
		"a lease for ever":     {func(s *p.State) { s.LeaseMS = spanMaxMS + 1 }, "state.lease_ms"},
		"a policy of none":     {func(s *p.State) { s.Policy.MaxAttempts = 0 }, "state.policy.max_attempts"},
		"a policy for ever":    {func(s *p.State) { s.Policy.BackoffBaseMS = p.BackoffBaseMaxMS + 1 }, "state.policy.backoff_base_ms"},
		"a group of none":      {func(s *p.State) { s.Aggregate = group }, "state.children"},
		"a group too large": {func(s *p.State) {
			s.Aggregate, s.Children = &p.Aggregate{Size: p.ChildrenMax + 1, Mode: p.AggregateAll}, &p.Children{}
		}, "state.aggregate"},
		"children":           {func(s *p.State) { s.Children = &p.Children{Count: p.ChildrenMax + 1} }, "state.children.count"},
		"a child beyond":     {func(s *p.State) { s.Children = &p.Children{Count: 1, Made: p.Bits("").With(1)} }, "state.children"},
		"closed, no outcome": {func(s *p.State) { s.Closed = true }, "state: closed"},
		"held by nobody":     {func(s *p.State) { s.Phase = p.Working }, "state: held"},
	} {
		s := good
		c.change(&s)
		err := CheckRead(ticket, 7, &s)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want a word of %s", name, err, c.want)
		}
	}
	// At the limits.
	s := good
	s.Policy.BackoffBaseMS, s.Policy.BackoffCapMS = p.BackoffBaseMaxMS, 1 // a package's base, an agent's cap
	s.Reroutes, s.RetryAfterMS = countMax, spanMaxMS
	s.Children = &p.Children{Count: p.ChildrenMax, Made: p.AllBits(p.ChildrenMax)}
	if err := CheckRead(ticket, 7, &s); err != nil {
		t.Error(err)
	}
	for _, size := range []int{-1, 0, p.ChildrenMax + 1, 1 << 60} {
		_, err := Apply(p.State{}, &p.Submitted{Ticket: ticket, Summary: p.Summary{Aggregate: &p.Aggregate{Size: size}}})
		if err == nil {
			t.Errorf("a group of %d was submitted", size)
		}
	}
}
