//go:build proof

package chaos

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

// TestLeavesUselessServer connects a source to one server of three, and cuts that
// server off from the others, or freezes it. The source must connect to another server and submit
// there. The log has the time that it takes.
func TestLeavesUselessServer(t *testing.T) {
	if testworld.Race {
		t.Skip("the processes under test have no race detector in them: run it without -race")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c := &chaos{T: t, ctx: ctx, chance: rand.New(rand.NewPCG(*seed, 11)), cluster: testworld.StartCluster(t, 3, 0)}
	if err := c.broker().PutProfile(ctx, protocol.Profile{ID: "agent"}); err != nil {
		t.Fatal(err)
	}
	isolate := func(set func(a, b int)) func(n int) {
		return func(n int) {
			for other := range c.cluster.Nodes {
				if other != n {
					set(n, other)
				}
			}
		}
	}
	for _, harm := range []struct {
		name     string
		do, undo func(n int)
		leads    bool
	}{
		{"a server cut off from the others", isolate(c.cluster.Cut), isolate(c.cluster.Mend), false},
		{"the ledger's leader cut off from the others", isolate(c.cluster.Cut), isolate(c.cluster.Mend), true},
		{"a frozen server", func(n int) { c.cluster.Nodes[n].Signal(syscall.SIGSTOP) }, func(n int) { c.cluster.Nodes[n].Signal(syscall.SIGCONT) }, false},
	} {
		t.Run(harm.name, func(t *testing.T) {
			c.T = t
			n := slices.Index(c.cluster.Nodes, c.node(harm.leads))
			at, b := c.connectedTo(n)
			submitOnce(ctx, t, b)
			harm.do(n)
			began := time.Now()
			submitOnce(ctx, t, b)
			t.Logf("%s: the submission took %v", harm.name, time.Since(began).Round(10*time.Millisecond))
			if strings.Contains(c.cluster.Nodes[n].URL, at.ConnectedAddr()) {
				t.Errorf("the source is still connected to %s", at.ConnectedAddr())
			}
			harm.undo(n)
			c.awaitRecovered()
		})
	}
}

// connectedTo is a source that has connected to one server and knows the others.
func (c *chaos) connectedTo(n int) (*nats.Conn, *broker.Broker) {
	c.Helper()
	urls := []string{c.cluster.Nodes[n].URL}
	for i, node := range c.cluster.Nodes {
		if i != n {
			urls = append(urls, node.URL)
		}
	}
	nc, err := nats.Connect(strings.Join(urls, ","), append(jetstream.ConnectOptions("source"), nats.DontRandomize())...)
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(nc.Close)
	engine, err := jetstream.Open(c.ctx, nc, jetstream.Config{})
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { _ = engine.Close() })
	b := brokertest.Over(c, engine)
	return nc, b
}

// submitOnce submits one handoff, within the budget of a source.
func submitOnce(ctx context.Context, t *testing.T, b *broker.Broker) {
	t.Helper()
	in, err := b.Prepare(ctx, protocol.Package{Source: "source", Target: protocol.Target{Agent: "agent"}, Reason: "chaos",
		Task: protocol.Task{Description: "one"}})
	if err != nil {
		t.Fatal(err)
	}
	trying, cancel := context.WithTimeout(ctx, testworld.SubmitTimeout)
	defer cancel()
	if _, err := b.Submit(trying, in); err != nil {
		t.Fatal(err)
	}
}
