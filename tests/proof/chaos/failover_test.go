//go:build proof

package chaos

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

var failovers = flag.Int("failovers", 2, "how often a supervisor is killed, and then a leader")

const (
	stumblingAgent = "stumbler"
	retryAfter     = time.Second // the back-off of everything here: a timer's affair
	stumblePace    = 50 * time.Millisecond
)

// TestFailover kills supervisors, and then leaders, while handoffs come back by
// timers, and tells how much later than due they did.
func TestFailover(t *testing.T) {
	if testworld.Race {
		t.Skip("a fleet of processes with the race detector in them outlasts its own timeouts: run it without -race")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	c := &chaos{T: t, ctx: ctx, chance: rand.New(rand.NewPCG(*seed, 10)), cluster: testworld.StartCluster(t, 3, 0)}
	b := c.broker()
	if err := b.PutProfile(ctx, protocol.Profile{ID: stumblingAgent}); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		c.supervisors = append(c.supervisors, testworld.Start(t, fmt.Sprint("supervisor ", i), nil, testworld.Handoff(t), "supervise", "--nats", c.cluster.URL()))
		testworld.Start(t, fmt.Sprint("stumbler ", i), []string{roleEnv + "=stumbler " + c.cluster.URL() + " " + fmt.Sprint(stumblingAgent, ".", i)}, os.Args[0])
	}
	c.pause(2 * time.Second)
	quiet := c.measureDelays(b, func() { c.pause(10 * time.Second) })
	killed := c.measureDelays(b, func() {
		for range *failovers {
			c.killAndRestart(c.randomProcess(c.supervisors), 4*time.Second)
			c.pause(4 * time.Second)
		}
	})
	led := c.measureDelays(b, func() {
		for range *failovers {
			c.killAndRestart(c.node(true).Process, 2*time.Second)
			c.awaitRecovered()
		}
	})
	for what, d := range map[string]delays{"no process is killed": quiet, "supervisors are killed": killed, "leaders are killed": led} {
		t.Logf("while %s: %d handoffs came back later than due by p50 %v, p99 %v, at most %v; submissions took up to %v", what, len(d.back),
			d.at(50), d.at(99), d.at(100), d.submit.Round(time.Millisecond))
	}
}

// delays are how much later than due handoffs came back, and how long the slowest
// submission took.
type delays struct {
	back   []time.Duration
	submit time.Duration
}

func (d delays) at(percent int) time.Duration {
	return d.back[(len(d.back)-1)*percent/100].Round(10 * time.Millisecond)
}

// measureDelays submits while do does its harm, and waits for the end of everything.
func (c *chaos) measureDelays(b *broker.Broker, do func()) (d delays) {
	stop := make(chan struct{})
	var mu sync.Mutex
	var tickets []string
	var submitting sync.WaitGroup
	submitting.Go(func() {
		tick := time.NewTicker(stumblePace)
		defer tick.Stop()
		base, spread := retryAfter.Milliseconds(), 0
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			submitting.Go(func() {
				in, err := b.Prepare(c.Context(), protocol.Package{Source: "source", Target: protocol.Target{Agent: stumblingAgent}, Reason: "failover",
					Task: protocol.Task{Description: "stumble"}, Policy: protocol.PolicyOverrides{BackoffBaseMS: &base, BackoffSpreadPct: &spread}})
				if err != nil {
					c.Error(err)
					return
				}
				trying, cancel := context.WithTimeout(c.ctx, testworld.SubmitTimeout)
				defer cancel()
				began := time.Now()
				head, err := b.Submit(trying, in)
				mu.Lock()
				defer mu.Unlock()
				if d.submit = max(d.submit, time.Since(began)); err != nil {
					c.Errorf("a submission failed after %v: %v", time.Since(began), err)
					return
				}
				tickets = append(tickets, head.Ticket)
			})
		}
	})
	do()
	close(stop)
	submitting.Wait()
	for _, ticket := range tickets {
		if _, err := brokertest.Wait(c.ctx, b, ticket, brokertest.Closed); err != nil {
			c.Fatal(err)
		}
		changes, err := b.History(c.ctx, ticket)
		if err != nil {
			c.Fatal(err)
		}
		var failed time.Time
		for _, change := range changes {
			for _, e := range change.Record.Events {
				switch e.EventType() {
				case protocol.EventFailed:
					failed = change.At
				case protocol.EventAccepted:
					if !failed.IsZero() {
						d.back = append(d.back, change.At.Sub(failed)-retryAfter)
					}
				}
			}
		}
	}
	slices.Sort(d.back)
	if len(d.back) != len(tickets) {
		c.Errorf("%d handoffs came back, of %d", len(d.back), len(tickets))
	}
	return d
}
