package lifecycle

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// The bounds of what the policies of a world allow.
const (
	reroutesMax    = 3
	escalationsMax = 3
)

// broken is an invariant that did not hold.
type broken struct {
	h    *thread
	what string
}

func (w *world) fail(h *thread, format string, args ...any) {
	panic(broken{h, fmt.Sprintf(format, args...)})
}

// try appends events that may be out of place: then they must be stale or
// illegal, and change nothing.
func (w *world) try(h *thread, events []p.Event) {
	next, err := ApplyAll(h.state, events)
	if err == nil {
		w.append(h, events)
		return
	}
	if errors.Is(err, ErrStale) == errors.Is(err, ErrIllegal) {
		w.fail(h, "%s in %s: neither stale nor illegal, or both: %v", types(events), h.state.Phase, err)
	}
	if h.state.Closed && !errors.Is(err, ErrStale) {
		w.fail(h, "%s after it closed: %v", types(events), err)
	}
	if w.n(16) == 0 && w.json(h, next) != w.json(h, h.state) {
		w.fail(h, "%s was refused and changed the state", types(events))
	}
}

// append adds events that must apply to a handoff's ledger.
func (w *world) append(h *thread, events []p.Event) {
	if len(events) == 0 {
		return
	}
	w.cur = h
	before, next := h.state, h.state
	for _, e := range events {
		phase := next.Phase
		var err error
		if next, err = Apply(next, e); err != nil {
			w.fail(h, "%s: %v", brief(events), err)
		}
		w.hits[pair{phase, e.EventType()}]++
		if !leadsTo(phase, e.EventType(), next.Phase) {
			w.fail(h, "%s led from %s to %s, which the table does not show", e.EventType(), phase, next.Phase)
		}
	}
	w.seq += uint64(1 + w.n(3)) // the ledger is shared with others
	h.log = append(h.log, entry{w.seq, events})
	if w.n(16) == 0 {
		next = w.throughTheWire(h, p.Record{ID: "id", Events: events, State: next})
	} else {
		next.Bind(w.seq)
	}
	h.state = next
	w.check(h, before)
}

// throughTheWire is what a reader of the append finds.
func (w *world) throughTheWire(h *thread, r p.Record) p.State {
	body, err := p.EncodeRecord(r)
	if err != nil {
		w.fail(h, "encode: %v", err)
	}
	read, err := p.DecodeRecord(body, w.seq)
	if err != nil {
		w.fail(h, "decode: %v", err)
	}
	if state, _ := json.Marshal(read.State); len(state) > p.StateBytesMax {
		w.fail(h, "a state of %d bytes", len(state))
	}
	if types(read.Events) != types(r.Events) {
		w.fail(h, "%s came back as %s", types(r.Events), types(read.Events))
	}
	return read.State
}

// look is what a supervisor does: decide, append, and find nothing more to do.
func (w *world) look(h *thread) {
	w.cur = h
	w.append(h, Decide(h.state, w.d, w.now))
	if more := Decide(h.state, w.d, w.now); len(more) > 0 {
		w.fail(h, "decided %s again at once", brief(more))
	}
	// With nothing else happening, nothing is due before the next clock.
	if next := wakeAfter(h.state, w.now); !next.IsZero() && len(Decide(h.state, nil, w.now)) == 0 {
		if early := Decide(h.state, nil, next.Add(-1)); len(early) > 0 {
			w.fail(h, "%s is due before the wake-up at %s", brief(early), next)
		}
	}
}

// check holds a state against what must be true of every one.
func (w *world) check(h *thread, before p.State) {
	s := h.state
	held := s.Phase == p.PhaseAccepted || s.Phase == p.Working
	switch {
	case before.Closed:
		w.fail(h, "changed after it closed")
	case s.Closed && (s.Outcome == "" || s.ClosedAt.IsZero() || s.Held() || s.Reason == "" && s.Phase != p.Complete):
		w.fail(h, "closed without an outcome, an instant or a reason, or in somebody's hands")
	case s.Closed && closedPhase[s.Outcome] != s.Phase:
		w.fail(h, "closed as %s in %s", s.Outcome, s.Phase)
	case !s.Closed && (s.Outcome != "" || s.Phase == p.Complete || s.Phase == p.Cancelled || s.Phase == p.PhaseReturned):
		w.fail(h, "open in %s with outcome %q", s.Phase, s.Outcome)
	case held != (s.Fence != 0), held && !s.Held(), s.Held() && !held && s.Phase != p.Pending:
		w.fail(h, "held by %q with fence %d in %s", s.Holder, s.Fence, s.Phase)
	case s.UpdatedAt.Before(before.UpdatedAt):
		w.fail(h, "went back in time")
	case s.Attempt < 0 || s.AttemptsTotal < s.Attempt || held && s.Attempt < 1:
		w.fail(h, "attempt %d of %d in all", s.Attempt, s.AttemptsTotal)
	}
	if !s.Closed {
		w.checkOpen(h)
	}
	if !w.wild {
		w.checkBounds(h)
	}
}

// checkOpen: every open handoff has what brings it on, and in time.
func (w *world) checkOpen(h *thread) {
	s := h.state
	next := NextLook(s, w.now)
	switch duties := DutiesOf(s); {
	case !duties.Look || !next.After(w.now):
		w.fail(h, "open, and never looked at again")
	case duties.Offer != (s.Phase == p.Pending && !s.Held() && s.Offer != 0):
		w.fail(h, "duties %+v in %s", duties, s.Phase)
	case s.Deadline.After(w.now) && next.After(s.Deadline):
		w.fail(h, "next looked at %s after the deadline", next.Sub(s.Deadline))
	case Wake(s).IsZero():
		w.fail(h, "open, and never wakes")
	}
}

// checkBounds: what Decide and the fences keep within the policy.
func (w *world) checkBounds(h *thread) {
	s := h.state
	switch {
	case s.Attempt > s.Policy.MaxAttempts:
		w.fail(h, "attempt %d of %d", s.Attempt, s.Policy.MaxAttempts)
	case s.Reroutes > reroutesMax, s.EscalationLevel > escalationsMax, len(s.Chain) > escalationsMax:
		w.fail(h, "%d reroutes, %d levels, chain %s", s.Reroutes, s.EscalationLevel, s.Chain)
	case s.Phase == p.Pending && slices.Contains(s.Refused, s.Agent):
		w.fail(h, "offered to %s, which refused", s.Agent)
	case s.ConditionRounds > s.Policy.MaxConditions+1: // the one over it escalates
		w.fail(h, "%d rounds of conditions", s.ConditionRounds)
	}
}

// end lets everybody go home: by its deadline every handoff closes.
func (w *world) end() {
	for _, id := range holders {
		w.leave(id)
	}
	w.d.ConnectedSince = w.now.Add(-time.Hour)
	began := w.now
	for _, h := range w.all {
		w.now = began
		looks := 0
		for w.look(h); !h.state.Closed; w.look(h) {
			if looks++; looks > 1000 {
				w.fail(h, "still open after %d looks", looks)
			}
			w.now = NextLook(h.state, w.now)
		}
		latest := h.state.Deadline
		if began.After(latest) {
			latest = began
		}
		if h.state.ClosedAt.After(latest) {
			w.fail(h, "closed %s after its deadline", h.state.ClosedAt.Sub(latest))
		}
		w.replay(h)
	}
}

// replay folds a ledger from scratch: it must give the state that was lived.
func (w *world) replay(h *thread) {
	s := h.start
	for _, entry := range h.log {
		next, err := ApplyAll(s, entry.events)
		if err != nil {
			w.fail(h, "replay: %v", err)
		}
		next.Bind(entry.seq)
		s = next
	}
	if lived, replayed := w.json(h, h.state), w.json(h, s); lived != replayed {
		w.fail(h, "lived\n%s\nreplayed\n%s", lived, replayed)
	}
}

func (w *world) json(h *thread, s p.State) string {
	b, err := json.Marshal(s)
	if err != nil {
		w.fail(h, "%v", err)
	}
	return string(b)
}

// trace lives one world and tells what broke, nothing if nothing did.
func trace(c chance, turns int) (hits map[pair]int, told string) {
	w := newWorld(c)
	defer func() {
		hits = w.hits
		switch r := recover().(type) {
		case nil:
		case broken:
			told = r.what + "\n" + w.story(r.h)
		default:
			told = fmt.Sprintf("panic: %v\n%s", r, w.story(w.cur))
		}
	}()
	for range 1 + w.n(3) {
		w.submit()
	}
	for range turns {
		if w.over() {
			break
		}
		w.turn()
	}
	w.end()
	return w.hits, ""
}

// story is a handoff's ledger in words.
func (w *world) story(h *thread) string {
	var b strings.Builder
	fmt.Fprintf(&b, "wild %v, now +%s\n", w.wild, w.now.Sub(t0))
	for _, e := range h.log {
		fmt.Fprintf(&b, "%6d +%-12s %s\n", e.seq, e.events[0].When().Sub(t0), brief(e.events))
	}
	body, _ := json.Marshal(h.state)
	return b.String() + string(body)
}

// TestTraces lives many random worlds. HANDOFF_TRACES sets how many,
// HANDOFF_TRACE_SEED plays one of them again.
func TestTraces(t *testing.T) {
	const turns = 60
	if text := os.Getenv("HANDOFF_TRACE_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if _, told := trace(seeded{rand.New(rand.NewPCG(seed, 0))}, turns); told != "" {
			t.Fatal(told)
		}
		return
	}
	traces := tracesDefault
	if text := os.Getenv("HANDOFF_TRACES"); text != "" {
		var err error
		if traces, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	total := map[pair]int{}
	t.Run("worlds", func(t *testing.T) {
		shards := runtime.GOMAXPROCS(0)
		for shard := range shards {
			t.Run(strconv.Itoa(shard), func(t *testing.T) {
				t.Parallel()
				mine := map[pair]int{}
				for seed := shard; seed < traces; seed += shards {
					hits, told := trace(seeded{rand.New(rand.NewPCG(uint64(seed), 0))}, turns)
					if told != "" {
						t.Fatalf("HANDOFF_TRACE_SEED=%d: %s", seed, told)
					}
					for k, n := range hits {
						mine[k] += n
					}
				}
				mu.Lock()
				defer mu.Unlock()
				for k, n := range mine {
					total[k] += n
				}
			})
		}
	})
	if !t.Failed() {
		report(t, total, traces)
	}
}

// report prints how often each legal pair was hit, and wants each of them hit
// once in 200 traces.
func report(t *testing.T, total map[pair]int, traces int) {
	t.Helper()
	var b strings.Builder
	for _, e := range p.EventTypes {
		for _, phase := range append([]p.Phase{fresh}, p.Phases...) {
			if !Legal(phase, e) {
				continue
			}
			n := total[pair{phase, e}]
			fmt.Fprintf(&b, "%9d %s in %q\n", n, e, phase)
			if n < traces/200 {
				t.Errorf("%s in %q was hit %d times in %d traces", e, phase, n, traces)
			}
		}
	}
	t.Logf("%d traces; legal pairs hit:\n%s", traces, b.String())
}

// FuzzTrace lives a world by the bytes of the fuzzer.
func FuzzTrace(f *testing.F) {
	f.Add([]byte("a handoff and what became of it"))
	rng := rand.New(rand.NewPCG(1, 2))
	for range 8 {
		body := make([]byte, 400)
		for i := range body {
			body[i] = byte(rng.IntN(256))
		}
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if _, told := trace(&bytesChance{body}, 400); told != "" {
			t.Fatal(told)
		}
	})
}
