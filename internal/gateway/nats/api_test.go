package natsgateway_test

import (
	"testing"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/api/apitest"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
)

// TestAPI: the client passes the suite of package api.
func TestAPI(t *testing.T) {
	apitest.Run(t, func(t *testing.T) apitest.Fixture {
		w := newWorld(t)
		w.open(natsgateway.Config{})
		return apitest.Fixture{Broker: w.b, AcceptsAtOnce: true,
			Source: func(t *testing.T, agent string) api.Source { return w.in(t).client(agent) },
			Holder: func(t *testing.T, agent string) api.Holder { return w.in(t).client(agent) },
		}
	})
}
