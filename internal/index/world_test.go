package index

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

// world makes handoffs live in a ledger, by what the core decides alone, and
// remembers where they stand: the oracle of the index.
type world struct {
	t      testing.TB
	engine broker.Engine
	rng    *rand.Rand
	now    time.Time
	dir    *lifecycle.Directory
	heads  []*subject
	by     map[string]*subject
}

// subject is a handoff as it stands.
type subject struct {
	protocol.State
	seq              uint64
	begun            int // its place among the submissions
	description, why string
	had              map[string]bool // the agents that it stood with
	barred           bool
}

var (
	testAgents = []string{"ann", "bob", "cy", "dee", "lead"}
	testNames  = []string{"nightly", "order"} // of schedules and of rules
	testFrom   = append([]string{"schedule", "signal", "schedule:nightly", "schedule:order", "signal:order", "schedule:none"}, testAgents...)
	testWords  = []string{"review", "login", "form", "Größe", "database", "index", "naïve", "C++", "foo-bar", "schema", "報告書", "x1"}
)

func newWorld(t testing.TB, engine broker.Engine, seed uint64) *world {
	w := &world{t: t, engine: engine, rng: rand.New(rand.NewPCG(seed, 1)), now: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC),
		dir: &lifecycle.Directory{Agents: map[string]*protocol.Profile{}}, by: map[string]*subject{}}
	for _, agent := range testAgents {
		w.dir.Agents[agent] = &protocol.Profile{ID: agent}
	}
	return w
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func (w *world) sentence(n int) string {
	text := ""
	for range n {
		text += pick(w.rng, testWords) + " "
	}
	return text
}

// submit begins a handoff. Several in a row have the same instant now and then.
func (w *world) submit(change ...func(*protocol.Package)) *subject {
	w.t.Helper()
	w.now = w.now.Add(time.Duration(w.rng.IntN(3)) * time.Millisecond)
	source, target := pick(w.rng, testAgents), pick(w.rng, testAgents[:4])
	for target == source {
		target = pick(w.rng, testAgents[:4])
	}
	conversation := fmt.Sprintf("conversation %d", w.rng.IntN(6))
	pkg := protocol.Package{Source: source, Target: protocol.Target{Agent: target}, Reason: w.sentence(2),
		Priority: pick(w.rng, protocol.Priorities), Task: protocol.Task{Description: w.sentence(4), ID: fmt.Sprintf("task-%d", w.rng.IntN(20))}}
	pkg.Context.WorkflowID = fmt.Sprintf("flow-%d", w.rng.IntN(8))
	if w.rng.IntN(4) > 0 {
		pkg.Context.ConversationID = &conversation
	}
	if len(w.heads) > 0 && w.rng.IntN(5) == 0 {
		pkg.Parent = pick(w.rng, w.heads).Ticket
	}
	if w.rng.IntN(6) == 0 {
		pkg.Approval = &protocol.Approval{Required: true, By: "lead"}
	}
	switch w.rng.IntN(12) {
	case 0:
		pkg.Source, pkg.Key = protocol.ScheduleSource, protocol.ScheduleKey(pick(w.rng, testNames), w.now)
	case 1:
		pkg.Source, pkg.Key = protocol.SignalSource, protocol.SignalKey(pick(w.rng, testNames), "id")
	}
	for _, c := range change {
		c(&pkg)
	}
	pkg.Normalize(w.now)
	body, err := protocol.EncodePackage(pkg)
	if err != nil {
		w.t.Fatal(err)
	}
	step, err := lifecycle.Submit(protocol.NewTicket(), pkg.Summarize("sha256:0"), protocol.Submitted{Package: body}, w.dir.At(w.now))
	if err != nil {
		w.t.Fatal(err)
	}
	k := &subject{begun: len(w.heads), description: pkg.Task.Description, why: pkg.Reason}
	w.heads = append(w.heads, k)
	if !w.append(k, step.Events) {
		w.t.Fatal("a submission was not applied")
	}
	w.by[k.Ticket] = k
	return k
}

// append applies events to a handoff and stores them. It returns false for what
// is not legal.
func (w *world) append(k *subject, events []protocol.Event) bool {
	w.t.Helper()
	state, err := lifecycle.ApplyAll(k.State, events)
	if err != nil {
		return false
	}
	made := protocol.Record{ID: uuid.NewString(), Events: events, State: state}
	body, err := record.Encode(made)
	if err != nil {
		w.t.Fatal(err)
	}
	seq, err := w.engine.Append(w.t.Context(), state.Ticket, k.seq, made.ID, "", body)
	if err != nil {
		w.t.Fatal(err)
	}
	state.Bind(seq)
	k.State, k.seq = state, seq
	if k.had == nil {
		k.had = map[string]bool{}
	}
	for _, e := range events {
		switch e := e.(type) {
		case *protocol.Offered:
			k.had[e.Agent] = true
		case *protocol.Barred:
			k.barred = true
		}
	}
	if state.Agent != "" {
		k.had[state.Agent] = true
	}
	return true
}

// step lets something happen to a handoff.
func (w *world) step(k *subject) {
	w.now = w.now.Add(time.Duration(w.rng.IntN(5)) * time.Millisecond)
	m := protocol.Meta{At: w.now, By: k.Agent}
	s := k.State
	accepted := &protocol.Accepted{Meta: m, Offer: s.Offer, Agent: s.Agent, Holder: "holder-1", LeaseMS: 30_000, Attempt: s.Attempt + 1}
	choices := [][]protocol.Event{
		{accepted, &protocol.Started{Meta: m}},
		{accepted, &protocol.Started{Meta: m}},
		{&protocol.Rejected{Meta: m, Offer: s.Offer, Agent: s.Agent, ReasonCode: pick(w.rng, []string{"", "busy", "capability"}), Reason: "I cannot"}},
		{&protocol.Completed{Meta: m, Fence: s.Fence, Status: protocol.Success, Usage: &protocol.Usage{Tokens: int64(w.rng.IntN(100)), CostMicros: int64(w.rng.IntN(100))}}},
		{&protocol.Completed{Meta: m, Fence: s.Fence, Status: protocol.Partial}},
		{&protocol.Failed{Meta: m, Fence: s.Fence, Attempt: s.Attempt, Code: "exit", Message: "exit 1", Retryable: w.rng.IntN(2) == 0}},
		{&protocol.CancelRequested{Meta: m}},
		{&protocol.Approved{Meta: m, Agent: protocol.AnyAgent}},
		{&protocol.Barred{Meta: m, Fence: s.Fence, Code: protocol.CodeBudget, To: "ann"}},
		{&protocol.LeaseLost{Meta: m, Holder: s.Holder, Fence: s.Fence, Attempt: s.Attempt}},
	}
	if !w.append(k, pick(w.rng, choices)) {
		return
	}
	for range 4 { // and what follows from it
		if s := k.State; s.Phase == protocol.Retrying {
			w.now = later(w.now, s.RetryAt)
		}
		step, err := lifecycle.Decide(k.State, w.dir.At(w.now))
		if err != nil {
			w.t.Fatal(err)
		}
		if len(step.Events) == 0 || !w.append(k, step.Events) {
			return
		}
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// live lets n handoffs begin and things happen to all of them.
func (w *world) live(n, steps int) {
	w.t.Helper()
	for range n {
		w.submit()
	}
	for range steps {
		w.step(pick(w.rng, w.heads))
	}
}

func init() { waitDefault = waitMax }

// keep opens an index and runs it until the test ends, or stop is called.
func keep(t testing.TB, path string, src Source, change ...func(*Index)) (ix *Index, stop func()) {
	t.Helper()
	ix, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range change {
		c(ix)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- ix.Run(ctx, src) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := ix.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	t.Cleanup(stop)
	return ix, stop
}

func memoryWorld(t testing.TB, seed uint64) (*world, *Index) {
	engine := brokertest.NewMemory()
	t.Cleanup(func() { _ = engine.Close() })
	w := newWorld(t, engine, seed)
	ix, _ := keep(t, filepath.Join(t.TempDir(), "index.db"), engine)
	return w, ix
}

func dump(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}
