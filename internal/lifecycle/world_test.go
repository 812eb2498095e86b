package lifecycle

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// chance is where a trace takes its choices from: a seeded generator, or the
// bytes of a fuzzer.
type chance interface {
	n(n int) int // 0 to n-1
	over() bool  // there is no more
}

type seeded struct{ *rand.Rand }

func (s seeded) n(n int) int { return s.IntN(n) }
func (s seeded) over() bool  { return false }

type bytesChance struct{ left []byte }

func (b *bytesChance) over() bool { return len(b.left) == 0 }
func (b *bytesChance) n(n int) int {
	if len(b.left) == 0 {
		return 0
	}
	x := int(b.left[0])
	b.left = b.left[1:]
	return x % n
}

// world is a small fleet and its handoffs: agents and holders come and go, the
// judge is cut off and comes back, time goes on, and everybody does what they
// may, may not, or did already.
type world struct {
	chance
	now   time.Time
	d     *Directory
	all   []*thread
	by    map[string]*thread // by ticket
	cur   *thread            // whose turn it is
	seq   uint64
	polls int
	hits  *tally
	wild  bool          // decisions too come out of nowhere
	home  bool          // everybody has gone home
	seen  func(*thread) // of each append, if not nil
}

// thread is one handoff of a world, and its ledger.
type thread struct {
	ticket string
	parent *thread // whose child it is, or of which group; nil where nobody's
	kids   map[int]p.Summary
	lost   []lostClaim
	state  p.State
	start  p.State // before the first append
	log    []entry
	next   time.Time // the next reconcile, once all workers have gone
}

type entry struct {
	seq    uint64
	events []p.Event
}

// lostClaim is a holder that had the handoff taken away, and may not know it.
type lostClaim struct {
	holder  string
	fence   uint64
	attempt int
}

var (
	agents  = []string{"a", "b", "c", "chief", p.Human}
	holders = []string{"h0", "h1", "h2", "h3", "h4", "h5"}
)

const (
	threadsSubmitted = 5 // at most, by somebody
	threadsMax       = 8 // with children, returns and redrives, while the world goes on
)

func newWorld(c chance, hits *tally) *world {
	w := &world{chance: c, now: t0, hits: hits, d: fleet(), by: map[string]*thread{}}
	for _, id := range agents[:4] {
		w.profile(id)
	}
	if w.n(4) > 0 {
		w.profile("src")
	}
	for range w.n(4) {
		w.come()
	}
	if w.n(4) == 0 {
		w.d.Fleet = &p.Fleet{Breaker: &p.Breaker{Threshold: ptr(1 + w.n(2)), OpenMS: ptr(one(w, int64(1_000), 30_000, 600_000))}}
	}
	w.wild = w.n(5) < 2
	if w.n(8) == 0 {
		w.d.ConnectedSince = time.Time{}
	}
	return w
}

// count takes the end of an attempt into the health of its agent, as a supervisor does.
func (w *world) count(a Attempt) {
	h := w.d.Health[a.Agent]
	h.Health = Fold(h.Health, a, w.d.BreakerPolicy(a.Agent), w.now)
	w.d = w.d.WithHealth(a.Agent, h)
}

func one[T any](w *world, of ...T) T { return of[w.n(len(of))] }

// profile writes an agent's entry anew.
func (w *world) profile(id string) {
	profile := p.Profile{ID: id, EscalatesTo: one(w, "", "chief", "b", p.Human, "nobody"), Paused: w.n(12) == 0}
	if w.n(10) == 0 {
		profile.AcceptsHandoffs = ptr(false)
	}
	for _, capability := range []string{"x", "y"} {
		if w.n(4) > 0 {
			profile.Bids = w.n(3) > 0
			profile.Capabilities = append(profile.Capabilities, p.Capability{ID: capability, Proficiency: float64(w.n(5)) / 4})
		}
	}
	profile.Policy = w.policy()
	w.d.Agents[id] = &profile
	w.d.Revision++
}

func (w *world) policy() (o p.PolicyOverrides) {
	if w.n(3) == 0 {
		o.MaxAttempts = ptr(1 + w.n(3))
		o.MaxReroutes = ptr(w.n(4))
		o.MaxEscalations = ptr(w.n(4))
		o.MaxConditions = ptr(w.n(3))
	}
	if w.n(3) == 0 {
		o.OnNoTaker = ptr(one(w, p.NoTakerClose, p.NoTakerQueue, p.NoTakerReturn, p.NoTakerEscalate))
		o.OnTimeout = ptr(one(w, p.OnTimeoutEscalate, p.OnTimeoutFail, p.OnTimeoutRetry))
		o.OnReturnTimeout = ptr(one(w, p.OnTimeoutEscalate, p.OnTimeoutFail, p.OnTimeoutRetry))
		o.LateResult = ptr(one(w, p.LateUse, p.LateIgnore))
		o.OnDeadline = ptr(one(w, p.DeadlineEscalate, p.DeadlineClose))
		o.OnExhausted = ptr(one(w, p.ExhaustedEscalate, p.ExhaustedFail))
	}
	if w.n(3) == 0 {
		o.QueueTimeoutMS = ptr(one(w, int64(3_600_000), 0))
		o.WorkTimeoutMS = ptr(one(w, int64(20_000), 600_000))
		o.ReminderPercent = ptr(one(w, 0, 50, 100))
		o.ConditionTimeoutMS = ptr(one(w, int64(20_000), 600_000))
		o.AckTimeoutMS = ptr(one(w, int64(1_000), 30_000, 120_000))
		o.BackoffBaseMS = ptr(one(w, int64(1), 1_000, 60_000))
		o.ProgressTimeoutMS = ptr(one(w, int64(0), 10_000, 300_000))
		o.ReturnTimeoutMS = ptr(one(w, int64(0), 30_000, 3_600_000))
		o.InterventionTimeoutMS = ptr(one(w, int64(1), 60_000, 3_600_000))
	}
	return o
}

// come lets a holder serve an agent.
func (w *world) come() {
	id := one(w, holders...)
	h := p.Holder{ID: id, Agent: one(w, "a", "b", "c", "chief", p.Human, "src"), LeaseMS: lease, Slots: 2, Busy: w.n(3), Polling: w.n(4) == 0, Draining: w.n(10) == 0}
	w.d.Holders[id] = h
	if live, _, _ := w.d.Load(h.Agent); live > 0 {
		delete(w.d.LastPresent, h.Agent)
	}
	w.d.Revision++
}

// leave lets a holder vanish.
func (w *world) leave(id string) {
	h, there := w.d.Holders[id]
	if !there {
		return
	}
	delete(w.d.Holders, id)
	if live, _, _ := w.d.Load(h.Agent); live == 0 {
		w.d.LastPresent[h.Agent] = w.now
	}
	w.d.Revision++
}

// pass lets time go by: a little, a lot, or to just where a clock runs out.
func (w *world) pass(h *thread) {
	switch w.n(5) {
	case 0:
		w.now = w.now.Add(one(w, time.Millisecond, 100*time.Millisecond, sec))
	case 1:
		w.now = w.now.Add(one(w, 5*sec, 30*sec, 2*time.Minute))
	case 2:
		if w.n(4) == 0 {
			w.now = w.now.Add(one(w, time.Hour, 24*time.Hour))
		}
	default:
		if next := wakeAfter(h.state, w.now); !next.IsZero() && next.Before(w.now.Add(48*time.Hour)) {
			w.now = next.Add(-time.Duration(w.n(2)))
		}
	}
}

// turn is one thing that happens. Where it leaves a handoff as it is seldom seen,
// since Decide goes on at once, something else happens first in a wild world.
func (w *world) turn() {
	h := one(w, w.all...)
	w.cur = h
	w.happen(h)
	for range 4 {
		if !w.wild || !seldom(h.state) || w.n(5) == 0 {
			break
		}
		w.raw(h)
	}
}

// seldom tells whether an open handoff is in a phase that it hardly stays in.
func seldom(s p.State) bool {
	switch s.Phase {
	case p.PhaseFailed, p.PhaseTimeout, p.PhaseRejected, p.Retrying, p.AwaitingApproval:
		return !s.Closed
	}
	return false
}

func (w *world) happen(h *thread) {
	if h.state.Account != nil && w.n(6) == 0 {
		w.raise(h)
	}
	switch w.n(24) {
	case 0, 1, 2:
		w.pass(h)
	case 3:
		w.change(h)
	case 4, 5, 6:
		if w.n(8) == 0 { // the supervisor has a slow clock
			on := w.now
			defer func() { w.now = on }()
			w.now = on.Add(-one(w, sec, 30*sec))
		}
		if events := mustDecide(h.state, w.d, w.now).Events; w.wild && len(events) > 0 && w.n(2) == 0 {
			w.append(h, events[:1+w.n(len(events))]) // an append cut short: the next reconcile goes on
			break
		}
		w.reconcile(h)
	case 7, 8, 9, 10:
		w.raw(h)
	case 11:
		if len(h.log) > 0 { // late, or twice
			events := one(w, h.log...).events
			if w.wild || !fencedByLedger(events) {
				w.try(h, events)
			}
		}
	case 12:
		w.comeLate(h)
	case 13, 14:
		w.seeTo(h)
	case 15, 16:
		if h.state.Closed && w.n(2) == 0 { // somebody submits another
			w.submit()
			break
		}
		w.act(h)
	default:
		w.act(h)
	}
}

// change is a change of the directory.
func (w *world) change(h *thread) {
	if w.d.Fleet != nil && w.n(2) == 0 { // another handoff has ended
		w.count(Attempt{Agent: one(w, "a", "b", "c"), Ticket: fmt.Sprint("other-", w.seq), Fence: w.seq + 1,
			End: one(w, p.EndFailed, p.EndLost, p.EndSucceeded)})
		return
	}
	switch w.n(6) {
	case 0:
		w.profile(one(w, "a", "b", "c", "chief", "src"))
	case 1:
		delete(w.d.Agents, one(w, "a", "b", "c", "chief", "src"))
	case 2:
		w.d.ConnectedSince = one(w, time.Time{}, w.now, w.now.Add(-time.Hour))
	case 3:
		w.come()
	default:
		w.leave(one(w, holders...))
		if h.state.Held() {
			w.leave(h.state.Holder)
		}
	}
}

// submit lets somebody submit a handoff, or a group.
func (w *world) submit() {
	if len(w.all) >= threadsSubmitted {
		return
	}
	s := w.summary(one(w, "src", "src", "a", "outsider"))
	if w.n(6) == 0 {
		size := 1 + w.n(4)
		s.Type, s.Target, s.Requires = p.Broadcast, p.Target{}, nil
		s.Aggregate = &p.Aggregate{Size: size, Mode: one(w, p.AggregateAll, p.AggregateAny, p.AggregateMajority), CancelRest: w.n(2) == 0}
		if w.n(3) == 0 {
			s.Aggregate.Counted = p.Bits("").With(w.n(size), w.n(size))
		}
	}
	w.asksOneForABid(&s)
	ticket := fmt.Sprintf("00000000-0000-4000-8000-%012d", len(w.all))
	step, err := Submit(ticket, s, p.Submitted{Package: []byte(`{}`)}, w.d.At(w.now))
	if err != nil {
		s.Type, s.Target, s.Requires, s.Limits = p.Sequential, p.Target{Agent: p.Human}, nil, nil
		if step, err = Submit(ticket, s, p.Submitted{Package: []byte(`{}`)}, w.d.At(w.now)); err != nil {
			w.fail(&thread{}, "nobody can submit to a person: %v", err)
		}
	}
	if w.wild && w.n(10) == 0 {
		step, _ = StepOf(p.State{}, step.Events[0]) // the offer is missing
	}
	w.begin(ticket, nil, step)
}

// begin adds a handoff to the world.
func (w *world) begin(ticket string, parent *thread, step Step) *thread {
	h := &thread{ticket: ticket, parent: parent}
	w.all, w.by[ticket] = append(w.all, h), h
	w.take(h, step)
	return h
}

// summary is a random package: to an agent, to a capability, up to
// an authority; with a return or without.
func (w *world) summary(source string) p.Summary {
	s := p.Summary{Type: p.Sequential, Source: source, Priority: one(w, p.Priorities...), Digest: "sha256:00",
		Deadline: w.now.Add(one(w, time.Minute, time.Hour, 24*time.Hour, 30*24*time.Hour)), Overrides: w.policy()}
	if w.n(2) == 0 {
		s.Limits = &p.Limits{MaxHandoffs: ptr(int64(w.n(4))), MaxTokens: ptr(one(w, int64(9), 1000, 2000)), OnExhausted: one(w, p.BudgetReturn, p.BudgetAsk, p.BudgetAsk)}
		if w.n(2) == 0 {
			s.Limits.MaxDepth, s.Limits.MaxAgents = ptr(int64(w.n(3))), ptr(int64(1+w.n(4)))
		}
	}
	if w.n(16) == 0 {
		s.StartAt = w.now.Add(one(w, -time.Minute, time.Second, time.Minute, time.Hour))
	}
	if w.n(4) == 0 {
		s.Deciders = []string{one(w, agents...), p.Human}
	}
	if s.Target.Agent = one(w, "b", "c", "chief", p.Human, ""); s.Target.Agent == "" {
		s.Target.Capability = one(w, "x", "y")
	}
	w.asksForBids(&s)
	if w.n(12) == 0 {
		s.Type, s.Target = p.Escalation, p.Target{}
	}
	if w.n(8) == 0 {
		s.Approval = &p.Approval{Required: w.n(4) > 0, By: one(w, "", "chief", p.Human, "nobody"), Question: "may it?",
			TimeoutMS: one(w, int64(0), 1_000, 600_000), OnTimeout: one(w, "", p.ApprovalEscalate, p.ApprovalClose)}
	}
	if w.n(2) == 0 {
		s.Requires = []p.RequiredCapability{{ID: "x", MinProficiency: float64(w.n(3)) / 4}, {ID: "y"}}[:1+w.n(2)]
	}
	if w.n(3) == 0 {
		s.Type, s.ReturnExpected, s.Wait = p.Delegation, true, one(w, p.WaitBlock, p.WaitContinue)
		s.Overrides.ReturnTimeoutMS = ptr(one(w, int64(20_000), 600_000, 7_200_000))
	}
	return s
}

// text is short, long, or long and dear in JSON.
func (w *world) text() string {
	switch w.n(40) {
	case 0:
		return longText
	case 1:
		return dearText
	}
	return "words"
}

var longText, dearText = strings.Repeat("ä", 3000), strings.Repeat("\x01\xff", 3000)
