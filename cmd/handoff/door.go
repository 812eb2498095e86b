package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/service"
)

// doorFlags are the flags of door.
type doorFlags struct {
	profiles, metrics string
	memoryMB          int
	requests, offers  int
	verbose           bool
	wait              waitFlag
}

func newDoor(a *app) *cobra.Command {
	var flags doorFlags
	cmd := &cobra.Command{
		Use:   "door",
		Short: "Let agents take part that are not trusted with the engine",
		Long: `Door relays the requests of programs that may not reach the engine themselves. You need
it where workers run code that you do not trust, on machines that are not yours, or in
a language that knows NATS and shall know no more: whoever is inside the engine's
account can forge anybody's reports. "handoff work --via service" goes through it.

It answers on the subjects handoff.v1.AGENT.VERB, as a NATS service. Give each agent
a user in another account that may publish to handoff.v1.AGENT.> and subscribe to
_INBOX_AGENT.> alone, and export handoff.v1.> from the account of the engine: then
the subject says who asks, and the door believes nothing else. It checks that leases,
fences, tickets and sources are that agent's, and does for it what a worker inside would
do. On a server where everybody may do everything a door protects nothing.

Run two, anywhere, on the same engine: they share the work, and any may be killed. What
was accepted through one is reported through the other; what was only offered comes
again within 30 s.

--profiles says whether agents may register themselves: new (the default) where there is
none yet; keep, never ("handoff agents put" does it, inside); replace, and change theirs.
Who registers itself says what it can do, and gets what is routed by that: choose keep
where that matters.

Agents share a door. Of each limit one agent may have half, while the others leave it;
within an equal share for each agent that has something there, it gets what it asks for,
and those that have more than their share lose it. An agent beyond its share is refused:
"busy", with the limit and the time to ask again. The limits are

  --requests   requests under way, those that wait for something to happen included
  --offers     offers and handoffs in hand, for 30 s after the last word about each
  --memory     MiB: two fifths packages in hand, two fifths bodies that come or go in
               parts, one fifth requests under way
  64           requests worked on at once, beside the first of each agent: in turn

It prints "ready" and the subjects on stdout when it answers, and its log on stderr.

` + waitHelp + `

` + metricsHelp + `

Exit codes: 0 stopped with Ctrl-C; 6 the engine is not reachable.`,
		Example: `  handoff door -s nats://engine:4222
  handoff door --profiles keep --metrics 0.0.0.0:9090
  handoff work --via service --agent coder -- ./agent.sh   # elsewhere, with coder's credentials`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.door(cmd.Context(), &flags) },
	}
	fs := cmd.Flags()
	fs.StringVar(&flags.profiles, "profiles", string(service.ProfilesNew), "whether agents register themselves: keep, new or replace")
	fs.IntVar(&flags.requests, "requests", service.RequestsDefault, "have at most `N` requests under way")
	fs.IntVar(&flags.offers, "offers", service.OffersHeldDefault, "have at most `N` offers and handoffs in hand")
	fs.IntVar(&flags.memoryMB, "memory", service.MemoryBytesDefault>>20, "keep at most so many `MiB` of packages and messages")
	flags.wait.flag(cmd)
	metricsFlag(fs, &flags.metrics)
	verboseFlag(fs, &flags.verbose)
	words(cmd, "profiles", string(service.ProfilesKeep), string(service.ProfilesNew), string(service.ProfilesReplace))
	return cmd
}

// door serves until ctx ends.
func (a *app) door(ctx context.Context, flags *doorFlags) error {
	log := a.log(flags.verbose)
	cfg := service.Config{Profiles: service.Profiles(flags.profiles), Requests: flags.requests, Offers: flags.offers, MemoryBytes: int64(flags.memoryMB) << 20, Log: log}
	for name, n := range map[string]int{"--requests": flags.requests, "--offers": flags.offers} {
		if n < 1 {
			return usagef("%s %d: must be at least 1", name, n)
		}
	}
	if flags.memoryMB < service.MemoryBytesMin>>20 {
		return usagef("--memory %d: at least %d are needed for one package and one result", flags.memoryMB, service.MemoryBytesMin>>20)
	}
	if err := cfg.Validate(); err != nil {
		return usagef("%v", err)
	}
	shown, err := a.show(ctx, flags.metrics, log)
	if err != nil {
		return err
	}
	defer shown.close()
	b, done, err := a.connectService(ctx, &flags.wait, broker.Config{Log: log, Observer: shown.observer()})
	if err != nil {
		return err
	}
	defer done()
	engine, ok := b.Engine.(*broker.JetStream)
	if !ok {
		return errors.New("a door needs an engine on NATS")
	}
	cfg.Lease = defaultLease(ctx, b)
	d, err := service.New(b, engine.Conn(), cfg)
	if err != nil {
		return err
	}
	if shown != nil {
		shown.engineAnswers(b)
	}
	shown.door(d)
	log.Info("opening a door", "engine", a.conn.resolve(a.env).where(), "door", d.ID(), "profiles", cfg.Profiles)
	var said error
	err = d.Run(ctx, func() {
		shown.started()
		said = a.ready(service.Subjects("*"), shown.url())
	})
	return errors.Join(err, said)
}
