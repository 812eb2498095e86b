//go:build proof

package process

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

var (
	keyPer      = flag.Duration("key-per", 20*time.Second, "TestKeyLimits: the span in which 60 handoffs may begin")
	keyHandoffs = flag.Int("key-handoffs", 130, "TestKeyLimits: how many handoffs are submitted")
)

const (
	keyAgents = 40
	keySlots  = 10 // of each agent
	keyAtOnce = 8
	keyRate   = 60
	keyKills  = 5
	keyWork   = 400 * time.Millisecond
	// keyLease bounds how long the place of a killed worker is taken.
	keyLease = 2 * time.Second
)

// TestKeyLimits: forty agents of ten slots share the key of a model, of which 8 may be held at a time and
// 60 may begin in a span. Workers of one of them are killed while they hold a place. The ledger shows the
// rest: neither bound is ever exceeded, the first submitted of a lane begins first, and all complete.
func TestKeyLimits(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	node := listeningNode(t, embedded.Config{Prepare: jetstream.Topology{}.Prepare})
	b := dial(t, node.ClientURL())
	startHandoff(t, "supervisor", []string{"NATS_URL=" + node.ClientURL()}, "supervise").AwaitOutput(ctx, "supervising")
	limit := protocol.KeyLimit{Key: "model:$.variables.model", MaxConcurrency: keyAtOnce, Rate: keyRate, PerMS: keyPer.Milliseconds()}
	agent := func(i int) string { return fmt.Sprintf("agent-%02d", i%keyAgents) }
	for i := range keyAgents {
		putAgent(t, b, protocol.Profile{ID: agent(i), LimitsBy: []protocol.KeyLimit{limit}})
	}
	for i := 1; i < keyAgents; i++ { // the workers of the first are processes, which are killed
		own := dial(t, node.ClientURL())
		w, err := worker.New(api.Direct(own, agent(i)), worker.Config{Agent: agent(i), Concurrency: keySlots}, worker.HandlerFunc(
			func(ctx context.Context, _ worker.Handoff) (protocol.Result, error) {
				select {
				case <-time.After(keyWork):
				case <-ctx.Done():
				}
				return protocol.Result{Body: []byte(`"done"`)}, ctx.Err()
			}))
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = w.Run(ctx) }()
	}
	mortal := func(work string) *startedProcess {
		p := startHandoff(t, "worker", []string{"NATS_URL=" + node.ClientURL()}, "work", "--agent", agent(0), "--concurrency", fmt.Sprint(keySlots),
			"--lease", keyLease.String(), "--", "sleep", work)
		p.AwaitOutput(ctx, "worker ready")
		return p
	}
	submit := func(i int, to string, lane protocol.Priority) string {
		pkg := protocol.Package{Source: "src", Target: protocol.Target{Agent: to}, Reason: "r", Task: protocol.Task{Description: "t"}, Priority: lane, Key: fmt.Sprint(i)}
		pkg.Context.Variables = map[string]json.RawMessage{"model": []byte(`"gpt"`)}
		prepared, err := b.Prepare(ctx, pkg)
		if err != nil {
			t.Fatal(err)
		}
		head, err := b.Submit(ctx, prepared)
		if err != nil {
			t.Fatal(err)
		}
		return head.Ticket
	}
	hangs := mortal("1000")
	killed := map[string]bool{}
	var tickets []string
	for i := range keyKills {
		tickets = append(tickets, submit(i, agent(0), protocol.High))
	}
	for _, ticket := range tickets {
		waitFor(t, ctx, ticket+" is held", func() (bool, error) {
			s, err := b.Status(ctx, ticket)
			if s.Fence != 0 {
				killed[s.Holder] = true
			}
			return s.Fence != 0, err
		})
	}
	for i := keyKills; i < *keyHandoffs; i++ {
		lane := protocol.Normal
		if i%4 == 0 {
			lane = protocol.Low
		}
		tickets = append(tickets, submit(i, agent(i), lane))
	}
	hangs.Kill()
	mortal("0.1")
	for _, ticket := range tickets {
		waitFor(t, ctx, ticket+" completes", func() (bool, error) {
			s, err := b.Status(ctx, ticket)
			return s.Closed, err
		})
	}
	judgeKeys(t, ctx, b, killed)
}

// keyMoment is an instant at which a handoff begins or stops to wait, or to be held, under the key.
type keyMoment struct {
	at           time.Time
	held, waits  int // +1 or -1
	begins       bool
	ticket, lane string
}

// judgeKeys reads the ledger.
func judgeKeys(t *testing.T, ctx context.Context, b *broker.Broker, killed map[string]bool) {
	t.Helper()
	var moments []keyMoment
	submitted, waits, held := map[string]time.Time{}, map[string]bool{}, map[string]bool{}
	gated, completed := 0, 0
	if err := b.Entries(ctx, broker.From(1), func(e broker.Entry) error {
		change, err := broker.DecodeChange(e)
		if err != nil {
			return err
		}
		s := change.Record.State
		m := keyMoment{at: e.At, ticket: e.Ticket, lane: string(s.Priority)}
		if _, known := submitted[e.Ticket]; !known {
			submitted[e.Ticket] = e.At
		}
		if now := s.Gate.First() == protocol.GateLimit; now != waits[e.Ticket] {
			if waits[e.Ticket] = now; now {
				m.waits, gated = 1, gated+1
			} else {
				m.waits = -1
			}
		}
		for _, event := range change.Record.Events {
			accepted, is := event.(*protocol.Accepted)
			m.begins = m.begins || is && len(accepted.LimitKeys) > 0
		}
		// A killed worker holds nothing from its death on; its attempts were the first.
		if now := len(s.LimitKeys) > 0 && !killed[s.Holder]; now != held[e.Ticket] {
			if held[e.Ticket] = now; now {
				m.held = 1
			} else {
				m.held = -1
			}
		}
		if s.Closed && s.Outcome == protocol.OutcomeSuccess {
			completed++
		}
		moments = append(moments, m)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.SortStableFunc(moments, func(a, b keyMoment) int { return a.at.Compare(b.at) })
	now, most, waiting := 0, 0, map[string]keyMoment{}
	var begins []time.Time
	var idle, idleMost time.Duration
	last, overtaken := time.Time{}, 0
	for _, m := range moments {
		if n := len(begins) - keyRate; n >= 0 && begins[n].Add(*keyPer).After(last) {
			last = begins[n].Add(*keyPer) // before that the rate lets none begin
		}
		if len(waiting) > 0 && now < keyAtOnce && m.at.After(last) {
			idle += m.at.Sub(last)
			idleMost = max(idleMost, idle)
		} else {
			idle = 0
		}
		last = m.at
		now += m.held
		most = max(most, now)
		switch {
		case m.waits > 0:
			waiting[m.ticket] = m
		case m.waits < 0:
			delete(waiting, m.ticket)
		}
		if !m.begins {
			continue
		}
		idle = 0
		begins = append(begins, m.at)
		ahead := 0
		for ticket, w := range waiting {
			if cmp.Compare(w.lane, m.lane) == 0 && submitted[ticket].Before(submitted[m.ticket]) {
				ahead++
			}
		}
		overtaken = max(overtaken, ahead)
	}
	inSpan := 0
	for i, at := range begins { // an acceptance is stored some ms after its place was taken
		n := 0
		for _, later := range begins[i:] {
			if later.Sub(at) < *keyPer-500*time.Millisecond {
				n++
			}
		}
		inSpan = max(inSpan, n)
	}
	if most > keyAtOnce {
		t.Errorf("%d were held at a time, and %d may be", most, keyAtOnce)
	}
	if inSpan > keyRate {
		t.Errorf("%d began in %v, and %d may", inSpan, *keyPer, keyRate)
	}
	if overtaken > keyAtOnce { // on a busy machine a kept place may pass to the next before its claim comes
		t.Errorf("a handoff began while %d of its lane waited that were submitted before it", overtaken)
	}
	if completed < *keyHandoffs {
		t.Errorf("%d of %d completed", completed, *keyHandoffs)
	}
	t.Logf("%d handoffs of %d agents with %d slots each: at most %d at a time (%d may be), %d in %v (%d may be); %d waits behind the gate; no place was empty for longer than %v while others waited; at most %d of a lane were overtaken",
		completed, keyAgents, keySlots, most, keyAtOnce, inSpan, *keyPer, keyRate, gated, idleMost.Round(time.Millisecond), overtaken)
}
