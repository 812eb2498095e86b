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
	now  time.Time
	d    *Directory
	all  []*thread
	cur  *thread // whose turn it is
	seq  uint64
	hits map[pair]int
	wild bool // decisions too come out of nowhere
}

// thread is one handoff of a world, and its ledger.
type thread struct {
	state p.State
	start p.State // before the first append
	log   []entry
}

type entry struct {
	seq    uint64
	events []p.Event
}

type pair struct {
	phase p.Phase
	event p.EventType
}

var (
	agents  = []string{"a", "b", "c", "chief", p.Human}
	holders = []string{"h0", "h1", "h2", "h3", "h4", "h5"}
)

func newWorld(c chance) *world {
	w := &world{chance: c, now: t0, hits: map[pair]int{}, d: fleet()}
	for _, id := range agents[:4] {
		w.profile(id)
	}
	for range w.n(4) {
		w.come()
	}
	w.wild = w.n(3) == 0
	if w.n(8) == 0 {
		w.d.ConnectedSince = time.Time{}
	}
	return w
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
			profile.Capabilities = append(profile.Capabilities, p.Capability{ID: capability, Proficiency: float64(w.n(5)) / 4})
		}
	}
	profile.Policy = w.policy()
	w.d.Agents[id] = profile
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
	}
	if w.n(3) == 0 {
		o.QueueTimeoutMS = ptr(one(w, int64(3_600_000), 0))
		o.WorkTimeoutMS = ptr(one(w, int64(20_000), 600_000))
		o.ReminderPercent = ptr(one(w, 0, 50, 100))
		o.ConditionTimeoutMS = ptr(one(w, int64(20_000), 600_000))
		o.AckTimeoutMS = ptr(one(w, int64(1_000), 30_000, 120_000))
		o.BackoffBaseMS = ptr(one(w, int64(0), 1_000, 60_000))
	}
	return o
}

// come lets a holder serve an agent.
func (w *world) come() {
	id := one(w, holders...)
	h := p.Holder{ID: id, Agent: one(w, agents...), LeaseMS: lease, Slots: 2, Busy: w.n(3), Polling: w.n(4) == 0, Draining: w.n(10) == 0}
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

// turn is one thing that happens.
func (w *world) turn() {
	h := one(w, w.all...)
	w.cur = h
	if undecided := h.state.Phase == p.PhaseFailed || h.state.Phase == p.PhaseTimeout; w.wild && undecided && !h.state.Closed && w.n(4) > 0 {
		w.raw(h) // seldom seen so: Decide goes on at once
		return
	}
	switch w.n(20) {
	case 0, 1, 2:
		w.pass(h)
	case 3:
		switch w.n(6) {
		case 0:
			w.profile(one(w, agents[:4]...))
		case 1:
			delete(w.d.Agents, one(w, agents[:4]...))
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
	case 4, 5, 6:
		if w.n(8) == 0 { // the one who looks has a slow clock
			on := w.now
			defer func() { w.now = on }()
			w.now = on.Add(-one(w, sec, 30*sec))
		}
		if events := Decide(h.state, w.d, w.now); w.wild && len(events) > 0 && w.n(2) == 0 {
			w.append(h, events[:1+w.n(len(events))]) // an append cut short: the next look goes on
			break
		}
		w.look(h)
	case 7, 8, 13, 14:
		w.raw(h)
	case 9:
		if len(h.log) > 0 { // late, or twice
			events := one(w, h.log...).events
			if w.wild || !fencedByLedger(events) {
				w.try(h, events)
			}
		}
	case 10, 11, 12:
		if h.state.Closed { // somebody submits another
			w.submit()
			break
		}
		w.act(h)
	default:
		w.act(h)
	}
}

func (w *world) submit() {
	if len(w.all) > 4 {
		return
	}
	s := p.Summary{Type: p.Sequential, Source: one(w, "src", "a"), Priority: one(w, p.Priorities...), Digest: "sha256:00",
		Deadline: w.now.Add(one(w, time.Minute, time.Hour, 24*time.Hour, 30*24*time.Hour)), Overrides: w.policy()}
	if s.Target.Agent = one(w, "b", "c", "chief", p.Human, ""); s.Target.Agent == "" {
		s.Target.Capability = one(w, "x", "y")
	}
	if w.n(2) == 0 {
		s.Requires = []p.RequiredCapability{{ID: "x", MinProficiency: float64(w.n(3)) / 4}, {ID: "y"}}[:1+w.n(2)]
	}
	h := &thread{}
	id := fmt.Sprintf("00000000-0000-4000-8000-%012d", len(w.all))
	events, err := Submit(id, s, p.Submitted{Package: []byte(`{}`)}, w.d, w.now)
	if err != nil {
		s.Target, s.Requires = p.Target{Agent: p.Human}, nil
		if events, err = Submit(id, s, p.Submitted{Package: []byte(`{}`)}, w.d, w.now); err != nil {
			w.fail(h, "nobody can submit to a person: %v", err)
		}
	}
	w.all, w.cur = append(w.all, h), h
	if w.wild && w.n(10) == 0 {
		events = events[:1] // the offer is missing
	}
	w.append(h, events)
	if w.wild && w.n(10) == 0 { // no event leads there yet
		h.state.Phase, h.state.Agent, h.state.Offer = p.AwaitingApproval, "", 0
		h.start, h.log = h.state, nil
	}
}

// act lets somebody do what the handoff's phase calls for.
func (w *world) act(h *thread) {
	s := h.state
	meta := p.Meta{At: w.now, By: "act"}
	switch {
	case w.n(25) == 0:
		if events, err := Cancel(s, w.d, "src", "enough", w.now); err == nil {
			w.append(h, events)
		}
	case s.Offer == 0:
		w.look(h)
	case s.Phase == p.Pending || s.Held() && w.n(4) == 0:
		w.claim(h)
	case s.Phase == p.PhaseAccepted && w.n(2) == 0:
		w.append(h, []p.Event{&p.Started{Meta: meta, Fence: s.Fence}})
	case s.Held():
		w.work(h, meta)
	case s.Phase == p.Conditional:
		answer := p.Answer{By: "src", Text: w.text(), Permit: w.n(2) == 0, Deny: w.n(4) == 0, DenyReason: w.text()}
		if events, err := Answer(s, w.d, answer, w.now); err == nil {
			w.append(h, events)
		}
	default:
		w.look(h)
	}
}

// claim is a holder that pulled the offer.
func (w *world) claim(h *thread) {
	c := Claimant{Agent: h.state.Agent, Holder: one(w, holders...), LeaseMS: lease, Offer: h.state.Offer}
	if w.n(10) == 0 {
		c.Offer, c.Agent = c.Offer-1, one(w, agents...)
	}
	verdict, events := Claim(h.state, c, w.d, w.now)
	switch {
	case verdict == Drop && len(events) > 0:
		w.append(h, events)
	case verdict == Take && w.n(5) == 0:
		w.append(h, append(events, &p.Claimed{Meta: p.Meta{At: w.now}, Offer: c.Offer, Agent: c.Agent, Holder: c.Holder, LeaseMS: lease}))
	case verdict == Take:
		w.append(h, append(events, Acknowledge(h.state, c, w.ack(), w.n(2) == 0, w.now)...))
	case verdict == Mine && h.state.Fence == 0:
		w.append(h, Acknowledge(h.state, c, w.ack(), w.n(2) == 0, w.now))
	}
}

func (w *world) ack() p.Ack {
	switch w.n(8) {
	case 0, 1:
		return p.Ack{Status: p.AckRejected, ReasonCode: "unable", Reason: w.text(), SuggestedAlternative: one(w, "", "a", "b", "c", "nobody")}
	case 2:
		return p.Ack{Status: p.AckConditional, Reason: w.text(), NeedsContext: []string{w.text()}}
	case 3:
		return p.Ack{Status: p.AckConditional, NeedsPermission: []string{"deploy"}}
	case 4:
		return p.Ack{Status: p.AckConditional, RetryAfterMS: one(w, int64(0), 5_000, 600_000)}
	}
	return p.Ack{Status: p.AckAccepted, EstimatedCompletionMS: int64(w.n(2)) * 1000}
}

// work is what a holder does with what it accepted.
func (w *world) work(h *thread, meta p.Meta) {
	s := h.state
	switch {
	case w.n(6) == 0:
		w.append(h, Release(s, s.Holder, "drain", w.now))
	case s.Fence == 0:
		w.claim(h)
	case w.n(3) == 0:
		w.append(h, []p.Event{&p.Progressed{Meta: meta, Fence: s.Fence, Progress: p.Progress{Percent: float64(w.n(100)), Message: w.text()}}})
	case w.n(4) == 0:
		w.append(h, []p.Event{&p.Completed{Meta: meta, Fence: s.Fence, Status: one(w, p.Success, p.Partial), Tokens: 5}})
	case w.n(5) == 0:
		c := Claimant{Agent: s.Agent, Holder: s.Holder, LeaseMS: s.LeaseMS, Offer: s.Offer}
		if ack := w.ack(); ack.Status != p.AckAccepted {
			w.append(h, Acknowledge(s, c, ack, false, w.now))
		}
	case w.n(2) == 0:
		w.append(h, []p.Event{&p.Failed{Meta: meta, Fence: s.Fence, Attempt: s.Attempt, Code: "exit", Message: w.text(),
			Retryable: w.n(5) > 0, RetryAfterMS: one(w, int64(0), 0, 60_000)}})
	default:
		w.leave(s.Holder)
	}
}

// text is short, long, or long and dear in JSON.
func (w *world) text() string {
	switch w.n(40) {
	case 0:
		return strings.Repeat("ä", 3000)
	case 1:
		return strings.Repeat("\x01\xff", 3000)
	}
	return "words"
}
