package lifecycle

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/record"
	p "github.com/agenthandoff/handoff/protocol"
)

// place is a phase, open or closed; pair is an event there.
type place struct {
	phase  p.Phase
	closed bool
}

type pair struct {
	place
	event p.EventType
}

// tally counts how often each pair happened. It is filled millions of times, so
// it has its counts by number.
type tally struct {
	counts  [2][16][64]int
	reasons [40]int // of Decide, as in Reasons
	none    int     // appends that said that they call for nothing
	later   int     // and for nothing yet; see checkAttention
}

func (t *tally) trusted(a Attention) *int {
	if a == AttentionNone {
		return &t.none
	}
	return &t.later
}

var phaseNumber, eventNumber = func() (map[p.Phase]int, map[p.EventType]int) {
	phases, events := map[p.Phase]int{fresh: 0}, map[p.EventType]int{}
	for i, phase := range p.Phases {
		phases[phase] = i + 1
	}
	for i, e := range p.EventTypes {
		events[e] = i
	}
	return phases, events
}()

func (t *tally) at(k pair) *int {
	open := 0
	if k.closed {
		open = 1
	}
	return &t.counts[open][phaseNumber[k.phase]][eventNumber[k.event]]
}

func (t *tally) add(o *tally) {
	for i, n := range o.reasons {
		t.reasons[i] += n
	}
	t.none, t.later = t.none+o.none, t.later+o.later
	for i := range t.counts {
		for j := range t.counts[i] {
			for k, n := range o.counts[i][j] {
				t.counts[i][j][k] += n
			}
		}
	}
}

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
	if h.state.Closed && !errors.Is(err, ErrStale) && !slices.ContainsFunc(events, func(e p.Event) bool { return table[e.EventType()].after != nil }) {
		w.fail(h, "%s after it closed: %v", types(events), err)
	}
	if w.n(16) == 0 && w.json(h, next) != w.json(h, h.state) {
		w.fail(h, "%s was refused and changed the state", types(events))
	}
}

// mustBeStale: an event of somebody who was overtaken changes nothing.
func (w *world) mustBeStale(h *thread, e p.Event) {
	if _, err := Apply(h.state, e); !errors.Is(err, ErrStale) {
		w.fail(h, "%s of an overtaken holder: %v", e.EventType(), err)
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
		was := next
		var err error
		if next, err = Apply(next, e); err != nil {
			w.fail(h, "%s: %v", brief(events), err)
		}
		*w.hits.at(pair{place{was.Phase, was.Closed}, e.EventType()})++
		if !leadsTo(was.Phase, e.EventType(), next.Phase) {
			w.fail(h, "%s led from %s to %s, which the table does not show", e.EventType(), was.Phase, next.Phase)
		}
		if was.Closed {
			if err := CheckAfterEnd(was, next); err != nil {
				w.fail(h, "%v", err)
			}
		}
		if was.Fence != 0 && was.Fence != p.Self && next.Fence != was.Fence && !mayEnd(e) {
			h.lost = append(h.lost, lostClaim{was.Holder, was.Fence, was.Attempt})
		}
	}
	w.seq += uint64(1 + w.n(3)) // the ledger is shared with others
	h.log = append(h.log, entry{w.seq, events})
	if w.n(32) == 0 {
		next = w.throughTheWire(h, p.Record{ID: "id", Events: events, State: next})
	} else {
		next.Bind(w.seq)
	}
	h.state = next
	if a, ended := AttemptEnded(&before, &h.state, events); ended && w.n(8) > 0 { // it may be lost
		w.count(a)
	}
	w.check(h, before)
}

// take appends a step of the core, whose state must be what its events make.
func (w *world) take(h *thread, step Step) {
	if len(step.Events) == 0 {
		return
	}
	if next, err := ApplyAll(h.state, step.Events); err != nil || !reflect.DeepEqual(next, step.State) {
		w.fail(h, "the state of the step %s is not what its events make: %v", brief(step.Events), err)
	}
	w.append(h, step.Events)
}

// must is a step that cannot be refused.
func (w *world) must(step Step, err error) Step {
	if err != nil {
		w.fail(w.cur, "refused: %v", err)
	}
	return step
}

// mayEnd tells whether a holder lets go by its own word: it is not overtaken.
func mayEnd(e p.Event) bool {
	switch e.EventType() {
	case p.EventCompleted, p.EventFailed, p.EventRejected, p.EventConditioned, p.EventReleased, p.EventSuspended, p.EventRolledBack:
		return true
	}
	return false
}

// throughTheWire is what a reader of the append finds.
func (w *world) throughTheWire(h *thread, r p.Record) p.State {
	body, err := record.Encode(r) // refuses a state over 32 KiB
	if err != nil {
		w.fail(h, "encode: %v", err)
	}
	read, err := record.Decode(body, w.seq)
	if err != nil {
		w.fail(h, "decode: %v", err)
	}
	if types(read.Events) != types(r.Events) {
		w.fail(h, "%s came back as %s", types(r.Events), types(read.Events))
	}
	return read.State
}

// reconcile is what a supervisor does: decide, append, and find nothing more to do.
func (w *world) reconcile(h *thread) {
	w.cur = h
	step := mustDecide(h.state, w.d, w.now)
	w.checkReasons(h, h.state, step.Events)
	w.take(h, step)
	if more := mustDecide(h.state, w.d, w.now).Events; len(more) > 0 {
		w.fail(h, "decided %s again at once", brief(more))
	}
	w.checkReconciled(h)
	if w.home { // enough was asked
		return
	}
	// With nothing else happening, nothing is due before the next clock.
	if next := wakeAfter(h.state, w.now); !next.IsZero() && len(mustDecide(h.state, nil, w.now).Events) == 0 {
		if early := mustDecide(h.state, nil, next.Add(-1)).Events; len(early) > 0 {
			w.fail(h, "%s is due before the wake-up at %s", brief(early), next)
		}
	}
}

// end lets everybody go home: by its deadline every handoff closes, and what it
// then owes to its source and its children is settled.
func (w *world) end() {
	w.home = true
	for _, holder := range slices.Sorted(maps.Keys(w.d.Holders)) {
		w.leave(holder)
	}
	for _, id := range []string{"a", "b", "c", "chief", "src"} {
		w.d.Agents[id] = &p.Profile{ID: id}
	}
	w.d.ConnectedSince = w.now.Add(-time.Hour)
	began, rounds := w.now, 0
	for open := true; open; {
		if rounds++; rounds > 5000 {
			w.fail(w.cur, "still open, or not settled, after %d rounds", rounds)
		}
		seq := w.seq
		for i := 0; i < len(w.all); i++ { // more may be added
			h := w.all[i]
			if !h.state.Closed && !h.next.After(w.now) || h.state.Closed && owes(h.state) {
				w.reconcile(h)
			}
			w.seeTo(h)
		}
		if w.seq != seq { // one may have to do with another
			continue
		}
		var next time.Time
		open = false
		for _, h := range w.all {
			if h.state.Closed {
				continue
			}
			open = true
			h.next = wakeAfter(h.state, w.now)
			if h.next.IsZero() {
				w.fail(h, "open at %s, and never wakes again", w.now.Sub(t0))
			}
			if next.IsZero() || h.next.Before(next) {
				next = h.next
			}
		}
		if open {
			w.now = next
		}
	}
	for _, h := range w.all {
		latest := Deadline(h.state)
		if began.After(latest) {
			latest = began
		}
		if h.state.ClosedAt.After(latest) {
			w.fail(h, "closed %s after its deadline", h.state.ClosedAt.Sub(latest))
		}
		if owes(h.state) {
			w.fail(h, "closed, and never settled: duties %+v", DutiesOf(h.state))
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
	if reflect.DeepEqual(h.state, s) { // it is the wire that counts, but this is quicker
		return
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
func trace(c chance, turns int, hits *tally) (told string) {
	w := newWorld(c, hits)
	defer func() {
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
	return ""
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

// setting is a number from the environment.
func setting(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestTraces lives many random worlds, each from a seed of its own.
// HANDOFF_TRACES sets how many, HANDOFF_TRACE_FROM the first seed (0);
// HANDOFF_TRACE_SEED plays one of them again. With the seeds from 0 on it is the
// same every time, and each legal pair must come up once in 200 traces.
func TestTraces(t *testing.T) {
	const turns = 80
	if seed := setting(t, "HANDOFF_TRACE_SEED", math.MaxUint64); seed != math.MaxUint64 {
		if told := trace(seeded{rand.New(rand.NewPCG(seed, 0))}, turns, new(tally)); told != "" {
			t.Fatal(told)
		}
		return
	}
	traces, from := setting(t, "HANDOFF_TRACES", tracesDefault), setting(t, "HANDOFF_TRACE_FROM", 0)
	t.Logf("seeds %d to %d", from, from+traces-1)
	defer debug.SetGCPercent(debug.SetGCPercent(800)) // little lives long here, and much is made
	var mu sync.Mutex
	var total tally
	t.Run("worlds", func(t *testing.T) {
		shards := uint64(runtime.GOMAXPROCS(0))
		for shard := range shards {
			t.Run(strconv.FormatUint(shard, 10), func(t *testing.T) {
				t.Parallel()
				var mine tally
				for seed := from + shard; seed < from+traces; seed += shards {
					if told := trace(seeded{rand.New(rand.NewPCG(seed, 0))}, turns, &mine); told != "" {
						t.Fatalf("HANDOFF_TRACE_SEED=%d: %s", seed, told)
					}
				}
				mu.Lock()
				defer mu.Unlock()
				total.add(&mine)
			})
		}
	})
	if !t.Failed() {
		report(t, &total, int(traces))
	}
}

// report prints how often each legal pair was hit, and wants each of them hit
// once in 200 traces: 1,000 times in 200,000.
func report(t *testing.T, total *tally, traces int) {
	t.Helper()
	var b strings.Builder
	pairs := 0
	for _, closed := range []bool{false, true} {
		for _, e := range p.EventTypes {
			for _, phase := range append([]p.Phase{fresh}, p.Phases...) {
				if !Legal(phase, closed, e) {
					continue
				}
				pairs++
				n := *total.at(pair{place{phase, closed}, e})
				where := string(phase)
				if closed {
					where += ", closed"
				}
				fmt.Fprintf(&b, "%9d %s in %q\n", n, e, where)
				if n < traces/200 {
					t.Errorf("%s in %q was hit %d times in %d traces", e, where, n, traces)
				}
			}
		}
	}
	for i, code := range Reasons {
		if n := total.reasons[i]; n < traces/1000 {
			t.Errorf("%s was the reason of %d decisions in %d traces", code, n, traces)
		}
	}
	if total.none < traces/10 || total.later < traces/10 {
		t.Errorf("in %d traces %d appends called for nothing, and %d for nothing yet", traces, total.none, total.later)
	}
	t.Logf("%d traces; %d legal pairs hit; nothing called for by %d appends, nothing yet by %d:\n%s", traces, pairs, total.none, total.later, b.String())
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
		if told := trace(&bytesChance{body}, 150, new(tally)); told != "" {
			t.Fatal(told)
		}
	})
}
