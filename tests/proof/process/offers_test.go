//go:build proof

package process

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/protocol"
)

// TestLargestOffers: whatever the limits let in can also be offered. The engine
// takes a megabyte in a message: a package of markup just under the inline limit
// must not grow on its way, nor many large answers keep the offer out.
func TestLargestOffers(t *testing.T) {
	ctx := t.Context()
	node := startNode(t, t.TempDir(), embedded.FsyncInterval)
	t.Cleanup(func() { _ = node.Stop() })
	b, hangUp := nodeBroker(t, node, broker.Config{})
	t.Cleanup(hangUp)
	putAgent(t, b, protocol.Profile{ID: "coder"})
	holder := protocol.Holder{ID: uuid.NewString(), Agent: "coder", LeaseMS: protocol.LeaseDefaultMS, Slots: 1}
	if err := b.Beat(ctx, holder); err != nil {
		t.Fatal(err)
	}
	if err := b.EnsureQueue(ctx, "coder"); err != nil {
		t.Fatal(err)
	}
	markup, err := json.Marshal(strings.Repeat("x", 1000))
	if err != nil {
		t.Fatal(err)
	}
	markup = []byte(strings.ReplaceAll(string(markup), "x", "<&>"))
	ticket := submit(t, b, "coder", func(p *protocol.Package) {
		p.Context.Variables = map[string]json.RawMessage{}
		for _, r := range "abcdefghijklmnopqrstuvwxyz" { // 78 kB of markup each third
			p.Context.Variables[string(r)] = append(append([]byte(`[`), strings.TrimSuffix(strings.Repeat(string(markup)+",", 3), ",")...), ']')
		}
	})
	const rounds = 5
	answer := protocol.Answer{By: "lead", Text: strings.Repeat("<", 200_000)}
	for round := range rounds {
		answer.Question = round + 1
		ask := protocol.Ack{Status: protocol.AckConditional, NeedsContext: []string{"more"}}
		if _, err := pullOne(t, b, holder, ticket).Acknowledge(ctx, holder, ask, false); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Answer(ctx, ticket, answer); err != nil {
			t.Fatal(err)
		}
	}
	claim, err := pullOne(t, b, holder, ticket).Acknowledge(ctx, holder, protocol.Ack{Status: protocol.AckAccepted}, true)
	if err != nil {
		t.Fatal(err)
	}
	if len(claim.Answers) != rounds || claim.Answers[rounds-1].Text != answer.Text {
		t.Errorf("the claim has %d answers, want %d as they were given", len(claim.Answers), rounds)
	}
	if err := claim.Complete(ctx, done()); err != nil {
		t.Error(err)
	}
}

// pullOne pulls the one offer that there is.
func pullOne(t *testing.T, b *broker.Broker, holder protocol.Holder, ticket string) *broker.Offer {
	t.Helper()
	offers, err := b.Pull(t.Context(), holder.Agent, 1, 5*time.Second)
	if err != nil || len(offers) != 1 || offers[0].Ticket != ticket {
		t.Fatalf("%d offers, %v; want that of %s", len(offers), err, ticket)
	}
	return offers[0]
}
