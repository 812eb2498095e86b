package cli

import (
	"context"
	"errors"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
)

// gatewayFlags are the flags of gateway.
type gatewayFlags struct {
	serviceFlags `flag:""`
	Profiles     api.Profiles `flag:"profiles" doc:"whether agents register themselves: keep, new or replace"`
	Requests     int          `flag:"requests" doc:"allow at most {N} concurrent requests"`
	Claims       int          `flag:"claims" doc:"cache at most {N} claims"`
	MemoryMB     int          `flag:"memory" doc:"use at most so many {MiB} for bodies and messages"`
}

func newGateway(a *app) *cobra.Command {
	flags := gatewayFlags{Profiles: api.ProfilesNew, Requests: natsgateway.RequestsDefault, Claims: natsgateway.ClaimsDefault, MemoryMB: natsgateway.MemoryBytesDefault >> 20}
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Serve untrusted agents over a restricted NATS service",
		Long: `Gateway serves programs that may not reach the engine themselves. Use it where workers
run code that you do not trust, on machines that are not yours, or in a language that has
a NATS client and nothing else: a program inside of the engine's account can forge any
agent's reports. "handoff work --gateway" goes through it.

It answers on the subjects handoff.v1.AGENT.OPERATION, as a NATS service. Give each
agent a user in another account that may publish to handoff.v1.AGENT.> and subscribe to
_INBOX_AGENT.> alone, and export handoff.v1.> from the engine's account: then the
subject identifies the agent, and the gateway trusts nothing else. It checks that
leases, fences, tickets and sources are that agent's, and acts for it as a worker inside
would. On a server without permissions a gateway protects nothing.

Run two, anywhere, on the same engine: they share the work, and either may be killed. A
claim made through one may be reported through the other. If the answer with a claim is
lost, the claim is released after 15 s. --claims is how many claims a gateway has in its
memory; a report on another one costs two reads.

--profiles sets whether agents may register themselves: new (the default) registers
agents that are not there; keep registers none ("handoff agents put" does it, inside);
replace lets agents change their own profile too. An agent that registers itself chooses
its capabilities, and gets the work that is routed by them: use keep where that matters.

Agents share a gateway. Of each limit one agent may have half, while the others leave
it. Within an equal share for each active agent, it gets all that it asks for, and
agents above their share lose it. An agent beyond its share is refused: "busy", with the
limit and the time to ask again. The limits are

  --requests   concurrent requests, those that wait for something included
  --memory     MiB: two thirds bodies that come or go in chunks, one third concurrent
               requests
  64           requests worked on at once, besides the first of each agent: in turn

It prints "ready" and the subjects on stdout when it answers, and its log on stderr.

` + waitHelp + `

` + metricsHelp + `

Exit codes: 0 stopped with Ctrl-C; 6 the engine is not reachable.`,
		Example: `  handoff gateway -s nats://engine:4222
  handoff gateway --profiles keep --metrics 0.0.0.0:9090
  handoff work --gateway --agent coder -- ./agent.sh   # elsewhere, with coder's credentials`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.gateway(cmd.Context(), &flags) },
	}
	bind(cmd.Flags(), &flags)
	a.words(cmd, "profiles", string(api.ProfilesKeep), string(api.ProfilesNew), string(api.ProfilesReplace))
	return cmd
}

// config is the gateway that the flags describe.
func (flags *gatewayFlags) config() (natsgateway.Config, error) {
	cfg := natsgateway.Config{Profiles: flags.Profiles, Requests: flags.Requests, Claims: flags.Claims, MemoryBytes: int64(flags.MemoryMB) << 20}
	for name, n := range map[string]int{"--requests": flags.Requests, "--claims": flags.Claims} {
		if n < 1 {
			return cfg, usagef("%s %d: must be at least 1", name, n)
		}
	}
	if flags.MemoryMB < natsgateway.MemoryBytesMin>>20 {
		return cfg, usagef("--memory %d: at least %d are needed for one package or result", flags.MemoryMB, natsgateway.MemoryBytesMin>>20)
	}
	if err := cfg.Validate(); err != nil {
		return cfg, usagef("%v", err)
	}
	return cfg, nil
}

// gateway serves until ctx ends.
func (a *app) gateway(ctx context.Context, flags *gatewayFlags) error {
	cfg, err := flags.config()
	if err != nil {
		return err
	}
	return a.serve(ctx, &flags.serviceFlags, func(b *broker.Broker, log *slog.Logger, shown *showing) error {
		cfg.Log, cfg.Lease = log, defaultLease(ctx, a.engine)
		g, err := natsgateway.New(b, a.engine.Conn(), cfg)
		if err != nil {
			return err
		}
		shown.engineAnswers(b)
		shown.gateway(g)
		log.Info("gateway starting", "engine", a.conn.resolve(a.env).where(), "gateway", g.ID(), "profiles", cfg.Profiles)
		var said error
		err = g.Run(ctx, func() {
			shown.started()
			said = a.ready(natsgateway.Subjects("*"), shown.url(), "")
		})
		return errors.Join(err, said)
	})
}
