//go:build proof

package process

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/redact"
	"github.com/agenthandoff/handoff/worker"
)

// relay plays conversations again: every change of speaker is a handoff with
// the history so far, which its target answers with what it said then, and
// hands off.
type relay struct {
	b        *broker.Broker
	recorded map[string]conversation
}

// relayAll relays all conversations at once, one worker for each speaker, and
// then compares what the ledger says with what was recorded.
func relayAll(t *testing.T, conversations []conversation) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dir := t.TempDir()
	node := startNode(t, dir, embedded.FsyncAlways)
	// A recording is to come out as it went in, whatever in it looks like a secret.
	cfg := broker.Config{Redactor: new(redact.Redactor)}
	b, hangUp := nodeBroker(t, node, cfg)
	r := &relay{b: b, recorded: map[string]conversation{}}
	for _, c := range conversations {
		r.recorded[c.id] = c
	}
	stop := r.startWorkers(t)
	stopSupervisor := begin(t, newSupervisor(t, node, cfg))
	begun := time.Now()
	var talks sync.WaitGroup
	for _, c := range conversations {
		talks.Go(func() {
			if err := r.talk(ctx, c); err != nil {
				t.Errorf("%s: %v", c.id, err)
			}
		})
	}
	talks.Wait()
	t.Logf("relayed %d conversations in %v", len(conversations), time.Since(begun).Round(time.Millisecond))
	stop()
	stopSupervisor()
	hangUp()
	if err := node.Stop(); err != nil {
		t.Fatal(err)
	}
	if t.Failed() {
		return
	}
	// What counts is what a stranger finds on the disk.
	node = startNode(t, dir, embedded.FsyncAlways)
	b, hangUp = nodeBroker(t, node, broker.Config{})
	checkLedger(t, b, conversations)
	hangUp()
	if err := node.Stop(); err != nil {
		t.Fatal(err)
	}
}

// startWorkers registers every speaker and starts its worker.
func (r *relay) startWorkers(t *testing.T) (stop func()) {
	t.Helper()
	agents := map[string]string{}
	for _, c := range r.recorded {
		for _, m := range c.messages {
			name := speaker(m)
			id := agentID(name)
			if other, taken := agents[id]; taken && other != name {
				t.Fatalf("%q and %q are both agent %s", name, other, id)
			}
			agents[id] = name
		}
	}
	var stops []func()
	for id := range agents {
		putAgent(t, r.b, protocol.Profile{ID: id})
		stops = append(stops, begin(t, newWorker(t, r.b, worker.Config{Agent: id}, r.answer)))
	}
	t.Logf("%d agents", len(agents))
	return func() {
		var all sync.WaitGroup
		for _, stop := range stops {
			all.Go(stop)
		}
		all.Wait()
	}
}

// talk begins a conversation and waits until its last handoff has closed.
func (r *relay) talk(ctx context.Context, c conversation) error {
	starts := c.runs()
	if len(starts) == 0 {
		return nil
	}
	first := 1
	if len(starts) == 1 { // one speaker: a second agent has to ask
		first = 0
	}
	for i := first; i < len(starts); i++ {
		prepared, err := r.prepare(ctx, c, starts[i], "")
		if err != nil {
			return err
		}
		if i == first {
			if _, err := r.b.Submit(ctx, prepared); err != nil {
				return err
			}
		}
		// A worker hands off before it reports, so that the next ticket is there.
		state, err := brokertest.Wait(ctx, r.b, prepared.Ticket, closedOrEscalated)
		if err != nil {
			return fmt.Errorf("wait for message %d (%s, with %s): %w", starts[i], state.Phase, state.Agent, err)
		}
		if state.Outcome != protocol.OutcomeSuccess {
			return fmt.Errorf("message %d is %s, %s with %s: %s", starts[i], state.Outcome, state.Phase, state.Agent, state.Message)
		}
	}
	return nil
}

// closedOrEscalated ends a wait when no speaker will answer any more.
func closedOrEscalated(s protocol.State) bool { return s.Closed || s.Agent == protocol.Human }

// prepare makes the handoff to the speaker of the message at start.
func (r *relay) prepare(ctx context.Context, c conversation, start int, parent string) (broker.Prepared, error) {
	source := protocol.Human
	if start > 0 {
		source = agentID(speaker(c.messages[start-1]))
	}
	pkg := protocol.Package{
		Source: source, Target: protocol.Target{Agent: agentID(speaker(c.messages[start]))},
		Key: fmt.Sprintf("%s/%d", c.id, start), Parent: parent,
		Trigger: protocol.TriggerTaskCompletion, Reason: "it is the target's turn to speak",
		Task: protocol.Task{Description: "Go on with the conversation."},
		// The turn tells two hand-offs between the same speakers apart: a longer history alone
		// is an unchanged context, which a lineage refuses.
		Context: protocol.Context{ConversationID: &c.id, ConversationHistory: wrapAll(c.messages[:start]),
			Variables:       map[string]json.RawMessage{"turn": json.RawMessage(strconv.Itoa(start))},
			HistoryTransfer: protocol.HistoryTransfer{Mode: protocol.TransferFull}},
	}
	return r.b.Prepare(ctx, pkg)
}

// answer is the worker of every speaker: it says what was recorded and hands off.
func (r *relay) answer(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
	c, ok := r.recorded[*h.Package.Context.ConversationID]
	if !ok {
		return protocol.Result{}, worker.Permanent(fmt.Errorf("conversation %s was never recorded", *h.Package.Context.ConversationID))
	}
	start := len(h.Package.Context.ConversationHistory)
	said := c.runFrom(start)
	if next := start + len(said); next < len(c.messages) {
		prepared, err := r.prepare(ctx, c, next, h.Ticket)
		if err != nil {
			return protocol.Result{}, worker.Permanent(err)
		}
		if _, err := r.b.Submit(ctx, prepared); err != nil {
			return protocol.Result{}, fmt.Errorf("hand off: %w", err)
		}
	}
	body, err := json.Marshal(wrapAll(said))
	return protocol.Result{Body: body}, err
}

// agentID is the agent id of a speaker's name, which may be anything.
func agentID(name string) string {
	if protocol.CheckAgent("", name) == nil && name != protocol.Human {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "speaker-" + hex.EncodeToString(sum[:6])
}
