//go:build proof

package process

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

var signalCount = flag.Int("signals", 1000, "how many signals TestSignalsUnderKills sends, each twice")

// ruleKills is how often the only supervisor of TestSignalsUnderKills is killed.
const ruleKills = 20

// TestSignalsUnderKills: two senders send each signal, one of them as any client of the server can, which
// drops no second one. The only supervisor is killed twenty times in between. Each signal is one handoff.
func TestSignalsUnderKills(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	node := listeningNode(t, embedded.Config{Prepare: jetstream.Topology{}.Prepare})
	b := dial(t, node.ClientURL())
	putAgent(t, b, protocol.Profile{ID: "taker"})
	rule := protocol.Rule{Name: "each", Signal: "order", Rate: protocol.RuleRateMax}
	if _, err := b.Rules().Put(ctx, rule, json.RawMessage(`{"target":{"agent":"taker"},"reason":"an order","task":{"description":{"$":"/text"}}}`)); err != nil {
		t.Fatal(err)
	}
	supervise := func() *startedProcess {
		s := startHandoff(t, "supervisor", []string{"NATS_URL=" + node.ClientURL()}, "supervise")
		s.AwaitOutput(ctx, "supervising")
		return s
	}
	supervisor := supervise()
	sent := make(chan error, 2)
	payload := func(n int) []byte { return fmt.Appendf(nil, `{"text":"order %d"}`, n) }
	go func() {
		var err error
		for n := 0; n < *signalCount && err == nil; n++ {
			err = b.Rules().Send(ctx, protocol.Signal{Name: "order", ID: fmt.Sprint(n), Payload: payload(n)})
		}
		sent <- err
	}()
	go func() { sent <- sendRaw(ctx, node, *signalCount, payload) }()
	for kill := range ruleKills {
		waitFor(t, ctx, fmt.Sprintf("the handoffs before kill %d", kill+1), func() (bool, error) {
			info, err := b.LedgerInfo(ctx)
			return int(info.Handoffs) >= (kill+1)**signalCount/(ruleKills+1), err
		})
		supervisor.Kill()
		supervisor = supervise()
	}
	for range 2 {
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, ctx, "no signal waits", func() (bool, error) {
		n, err := b.Rules().Waiting(ctx)
		return n == 0, err
	})
	handoffs := map[string]int{}
	if err := b.Entries(ctx, broker.From(1), func(e broker.Entry) error {
		change, err := broker.DecodeChange(e)
		if err == nil && len(change.Record.Events) > 0 && change.Record.Events[0].EventType() == protocol.EventSubmitted {
			if change.Record.State.Rule != rule.Name {
				t.Errorf("%s has the rule %q", e.Ticket, change.Record.State.Rule)
			}
			handoffs[e.Ticket]++
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for n := range *signalCount {
		ticket := protocol.TicketForKey(protocol.SignalSource, protocol.SignalKey(rule.Name, fmt.Sprint(n)))
		if handoffs[ticket] != 1 {
			t.Errorf("signal %d began %d handoffs", n, handoffs[ticket])
		}
	}
	end, _, err := b.Rules().Get(ctx, rule.Name)
	if err != nil || end.RefusedCount+end.UnmatchedCount > 0 || len(handoffs) != *signalCount {
		t.Errorf("%d handoffs of %d signals; %+v, %v", len(handoffs), *signalCount, end, err)
	}
	t.Logf("%d signals, sent twice each, are %d handoffs after %d kills; the rule counted %d", *signalCount, len(handoffs), ruleKills, end.FiredCount)
}

// sendRaw sends signals as a client without Handoff does.
func sendRaw(ctx context.Context, node *embedded.Node, count int, payload func(int) []byte) error {
	nc, err := node.Conn()
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := natsjs.New(nc)
	for n := 0; n < count && err == nil; n++ {
		msg := nats.NewMsg("handoff.signal.order")
		msg.Data = payload(n)
		msg.Header.Set("Handoff-Signal-Id", fmt.Sprint(n))
		_, err = js.PublishMsg(ctx, msg)
	}
	return err
}

func waitFor(t *testing.T, ctx context.Context, what string, done func() (bool, error)) {
	t.Helper()
	for {
		switch is, err := done(); {
		case err != nil:
			t.Fatalf("%s: %v", what, err)
		case is:
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not in time: %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
