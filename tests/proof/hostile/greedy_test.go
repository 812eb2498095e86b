//go:build proof

package hostile

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/testworld"
)

const (
	greedyRequests = 2_200 // of each of two agents at a time; a gateway takes 4,096 in all
	greedyProbes   = 10
)

// Two agents that keep asking a gateway for all it has lock no other agent out.
func TestGreedyAgentsAtAGateway(t *testing.T) {
	s := gatewaySite(t)
	source := s.enter(client)
	s.serve(server, s.enter(server), done)
	before, _ := s.probe(source, quietProbes, nil)
	var asked atomic.Int64
	var running sync.WaitGroup
	stop := make(chan struct{})
	for _, agent := range []string{villain, accomplice} {
		bad := s.enter(agent)
		for n := range greedyRequests {
			running.Go(func() {
				verb, body := "ClaimMany", fmt.Sprintf(`{"agent":%q,"key":"key-0123456789abcdef","lease_ms":60000,"most":64,"wait_ms":5000}`, agent)
				if n%10 == 0 { // a large message, which the gateway has in hand while it reads it
					verb, body = "Submit", `{"package":{"reason":"`+strings.Repeat("x", 256<<10)+`"}}`
				}
				for {
					select {
					case <-stop:
						return
					default:
					}
					if err := bad.raw(verb, body); err != nil && s.ctx.Err() == nil {
						return // the server had to let its connection go
					}
					asked.Add(1)
					testworld.Pause(s.ctx, 100*time.Millisecond)
				}
			})
		}
	}
	for asked.Load() < 2*greedyRequests/10 && s.ctx.Err() == nil { // it has begun
		testworld.Pause(s.ctx, 20*time.Millisecond)
	}
	during, probes := s.probe(source, greedyProbes, nil)
	close(stop)
	if probes != greedyProbes {
		t.Errorf("%d of %d probes", probes, greedyProbes)
	}
	s.Logf("%d greedy requests were answered: the slowest of %d probes took %v, and %v while it was quiet", asked.Load(), probes, during, before)
	running.Wait()
	s.checkProcesses()
}
