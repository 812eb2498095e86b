//go:build proof

package bench

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

// ledger is what handoffs are made of.
type ledger struct {
	agents        []string
	words         []string
	conversations int
	workflows     int
	open          bool // none is claimed
	offers        bool // each has an offer in its queue, and each twentieth is for a person
	dir           *lifecycle.Directory
	begun, ended  time.Time     // of the submissions
	over          time.Duration // the time of them; 0 is a submission of a writer each 50 ms
}

const (
	agentsCount = 200
	wordsCount  = 20_000
	// inFlight is how many handoffs are under way at once: the entries of one lie
	// this far apart in the ledger.
	inFlight = 500
	// between two submissions of one writer, by default
	paceDefault = 50 * time.Millisecond
)

func newLedger(n int) *ledger {
	l := &ledger{conversations: max(n/10, 1), workflows: max(n/20, 1), dir: &lifecycle.Directory{Agents: map[string]*protocol.Profile{}}}
	for i := range agentsCount {
		l.agents = append(l.agents, fmt.Sprintf("agent-%03d", i))
		l.dir.Agents[l.agents[i]] = &protocol.Profile{ID: l.agents[i]}
	}
	rng := rand.New(rand.NewPCG(3, 3))
	const letters = "abcdefghijklmnopqrstuvwxyz"
	seen := map[string]bool{}
	for len(l.words) < wordsCount {
		var b strings.Builder
		for range 4 + rng.IntN(8) {
			b.WriteByte(letters[rng.IntN(len(letters))])
		}
		if word := b.String(); !seen[word] {
			seen[word] = true
			l.words = append(l.words, word)
		}
	}
	return l
}

func (l *ledger) conversation(rng *rand.Rand) string {
	return fmt.Sprintf("conversation-%06d", rng.IntN(l.conversations))
}

func (l *ledger) workflow(rng *rand.Rand) string {
	return fmt.Sprintf("workflow-%06d", rng.IntN(l.workflows))
}

// sentence has words as a language has them: some in every other sentence, most hardly ever.
func (l *ledger) sentence(zipf *rand.Zipf, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(l.words[zipf.Uint64()])
	}
	return b.String()
}

// writeLedger puts n handoffs of three entries each into the ledger: submitted
// and offered, accepted and started, completed or closed; one in a hundred stays open.
func writeLedger(t *testing.T, url string, n int) *ledger {
	t.Helper()
	l := newLedger(n)
	l.fill(t, url, n)
	return l
}

func (l *ledger) fill(t *testing.T, url string, n int) {
	t.Helper()
	l.begun = time.Now().Add(-cmp.Or(l.over, 24*time.Hour)).Truncate(time.Millisecond).UTC()
	writers := runtime.GOMAXPROCS(0)
	var group errgroup.Group
	for w := range writers {
		group.Go(func() error {
			return l.write(url, uint64(w), n/writers+min(1, max(0, n%writers-w)), l.begun)
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	l.ended = l.begun.Add(time.Duration(n/writers) * l.pace(n/writers))
}

// pace is the time between two of n submissions of a writer.
func (l *ledger) pace(n int) time.Duration {
	if l.over == 0 || n == 0 {
		return paceDefault
	}
	return l.over / time.Duration(n)
}

// writer is one connection that writes handoffs.
type writer struct {
	l    *ledger
	js   jetstream.JetStream
	rng  *rand.Rand
	zipf *rand.Zipf
	now  time.Time
}

func (l *ledger) write(url string, seed uint64, n int, now time.Time) error {
	nc, err := nats.Connect(url, handoffjs.ConnectOptions("writer")...)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(2_000))
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(seed, 5))
	w := &writer{l: l, js: js, rng: rng, zipf: rand.NewZipf(rng, 1.2, 8, wordsCount-1), now: now}
	states, step := make([]protocol.State, 0, inFlight), l.pace(n)
	for n > 0 {
		states = states[:0]
		for range min(n, inFlight) {
			w.now = w.now.Add(step)
			state, err := w.submit()
			if err != nil {
				return err
			}
			states = append(states, state)
		}
		if n -= len(states); l.open {
			continue
		}
		for _, step := range []func(protocol.State) []protocol.Event{w.accept, w.finish} {
			for i := range states {
				if states[i], err = w.append(states[i], step(states[i])); err != nil {
					return err
				}
			}
		}
	}
	select {
	case <-js.PublishAsyncComplete():
		return nil
	case <-time.After(time.Minute):
		return fmt.Errorf("%d entries were not acknowledged", js.PublishAsyncPending())
	}
}

func (w *writer) submit() (protocol.State, error) {
	l := w.l
	source, target := l.agents[w.rng.IntN(agentsCount)], l.agents[w.rng.IntN(agentsCount)]
	for source == target {
		target = l.agents[w.rng.IntN(agentsCount)]
	}
	conversation := l.conversation(w.rng)
	pkg := protocol.Package{Source: source, Target: protocol.Target{Agent: target}, Reason: l.sentence(w.zipf, 8),
		Priority: protocol.Priorities[w.rng.IntN(4)],
		Task:     protocol.Task{ID: "task-" + uuid.NewString()[:8], Description: l.sentence(w.zipf, 20)},
		Context: protocol.Context{ConversationID: &conversation, WorkflowID: l.workflow(w.rng),
			Summary: l.sentence(w.zipf, 50)}}
	if l.offers && w.rng.IntN(20) == 0 {
		pkg.Target.Agent = protocol.Human
	}
	pkg.Normalize(w.now)
	body, err := protocol.EncodePackage(pkg)
	if err != nil {
		return protocol.State{}, err
	}
	digest := broker.RefOf(body).Digest
	step, err := lifecycle.Submit(protocol.NewTicket(), pkg.Summarize(digest), protocol.Submitted{Package: body}, l.dir.At(w.now))
	if err != nil {
		return protocol.State{}, err
	}
	state, err := w.append(protocol.State{}, step.Events)
	if err == nil && l.offers {
		_, err = w.js.PublishAsync(fmt.Sprintf("handoff.work.%s.%s.%s.1", state.Agent, state.Priority, state.Ticket), nil, jetstream.WithStallWait(time.Minute))
	}
	return state, err
}

func (w *writer) accept(s protocol.State) []protocol.Event {
	m := protocol.Meta{At: w.now.Add(time.Duration(w.rng.IntN(5_000)) * time.Millisecond), By: s.Agent + "-1"}
	return []protocol.Event{&protocol.Accepted{Meta: m, Offer: s.Offer, Agent: s.Agent, Holder: s.Agent + "-1", LeaseMS: 30_000, Attempt: 1},
		&protocol.Started{Meta: m}}
}

func (w *writer) finish(s protocol.State) []protocol.Event {
	m := protocol.Meta{At: s.AcceptedAt.Add(time.Duration(w.rng.IntN(600_000)) * time.Millisecond), By: s.Holder}
	switch chance := w.rng.IntN(100); {
	case chance == 0:
		return []protocol.Event{&protocol.Progressed{Meta: m, Fence: s.Fence, Progress: protocol.Progress{Message: "half of it"}}}
	case chance < 6:
		return []protocol.Event{&protocol.Failed{Meta: m, Fence: s.Fence, Attempt: 1, Code: "exit", Message: "exit status 1"},
			&protocol.Closed{Meta: m, Outcome: protocol.OutcomeFailed, Reason: "not_retryable"}}
	case chance < 8:
		return []protocol.Event{&protocol.Completed{Meta: m, Fence: s.Fence, Status: protocol.Partial, Usage: &protocol.Usage{Tokens: 900}}}
	}
	return []protocol.Event{&protocol.Completed{Meta: m, Fence: s.Fence, Status: protocol.Success, Usage: &protocol.Usage{Tokens: int64(w.rng.IntN(5_000))},
		Result: []byte(`{"status":"success","body":"` + w.l.sentence(w.zipf, 30) + `"}`)}}
}

// append publishes an entry without waiting. Nothing reads back where it came to
// lie: a state keeps Self for the sequences of its appends, which the core takes as it is.
func (w *writer) append(s protocol.State, events []protocol.Event) (protocol.State, error) {
	next, err := lifecycle.ApplyAll(s, events)
	if err != nil {
		return s, err
	}
	made := protocol.Record{ID: uuid.NewString(), Events: events, State: next}
	body, err := record.Encode(made)
	if err != nil {
		return s, err
	}
	_, prefix := handoffjs.LedgerPartition(handoffjs.Divide(next.Ticket, partitions()))
	msg := nats.NewMsg(prefix + next.Ticket)
	msg.Data = body
	msg.Header.Set("Handoff-Record", made.ID)
	_, err = w.js.PublishMsgAsync(msg, jetstream.WithStallWait(time.Minute))
	return next, err
}
