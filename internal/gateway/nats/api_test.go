package natsgateway_test

import (
	"testing"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/api/apitest"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
)

// TestAPI: the client passes the suite of package api, and the wire is as it was.
func TestAPI(t *testing.T) {
	seen := &wire{verbs: map[string]string{}, seen: map[string]bool{}}
	apitest.Run(t, func(t *testing.T) apitest.Fixture {
		w := newWorld(t)
		w.open(natsgateway.Config{})
		seen.listen(w)
		return apitest.Fixture{Broker: w.b, AcceptsAtOnce: true,
			Source:  func(t *testing.T, agent string) api.Source { return w.in(t).client(agent) },
			Holder:  func(t *testing.T, agent string) api.Holder { return w.in(t).client(agent) },
			Workers: func(t *testing.T, agent string) api.Workers { return w.in(t).client(agent) },
		}
	})
	if !t.Failed() {
		seen.check(t)
	}
}
