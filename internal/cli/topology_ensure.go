package cli

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	handoffjs "github.com/agenthandoff/handoff/broker/jetstream"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// topologyWithin is how long a cluster may take to make the streams, unless --timeout is
// longer: it may be started a while after this.
const topologyWithin = 2 * time.Minute

func newTopologyEnsure(a *app) *cobra.Command {
	var (
		t      handoffjs.Topology
		dryRun bool
	)
	cmd := &cobra.Command{
		Use:   "ensure",
		Short: "Make the streams that are missing, and strengthen those that stand",
		Long: `Ensure makes the streams that are missing and brings those that an older version made
up to date. It may be run at any time and by many at once. It never weakens a stream:
replicas and ages only grow, and what you have set beyond that stays. Less than what
stands is refused, and nothing is changed. It needs an account of its own, in which it
may use the JetStream API.

--replicas is how many servers keep each stream: 3 in a cluster. Left out, it is as many
as there are, and 1 for what is new.

--fsync says when your servers sync what they write, sync_interval in their
configuration, which only you can set: "always", or "interval". It is recorded, so that
"handoff doctor" knows what a power cut may take.

Exit codes: 0 it stands; 9 less was asked for than what stands; 1 a stream of one of our
names is not ours, or the cluster cannot make them.`,
		Example: `  handoff topology ensure -s nats://nats-1:4222 --replicas 3 --fsync always
  handoff topology ensure --dry-run`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkTopology(cmd, t); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), max(topologyWithin, a.timeout()))
			defer cancel()
			return a.onServer(ctx, func(nc *nats.Conn) error { return a.ensureTopology(ctx, nc, t, dryRun) })
		},
	}
	a.topologyFlags(cmd, &t, 0, "servers that keep each stream (default: as many as do, 1 for what is new)")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done, and do nothing")
	return cmd
}

func (a *app) ensureTopology(ctx context.Context, nc *nats.Conn, t handoffjs.Topology, dryRun bool) error {
	stands, err := handoffjs.ReadTopology(ctx, nc)
	if err != nil {
		return err
	}
	t.AsyncWork, t.Fsync = stands.AsyncWork, cmp.Or(t.Fsync, stands.Fsync)
	plan, err := handoffjs.PlanTopology(ctx, nc, t)
	if err != nil {
		return err
	}
	for _, p := range plan {
		if len(p.Weaker) > 0 {
			return protocol.Errorf(protocol.CodeConflict, "replicas", "stream %s has %s; streams are not weakened, and nothing was changed: leave out --replicas, or ask for at least as many",
				p.Stream, strings.Join(p.Weaker, ", "))
		}
	}
	if !dryRun {
		if err := handoffjs.EnsureTopology(ctx, nc, t); err != nil {
			return err
		}
	}
	if !a.text() {
		return list(a, plan)
	}
	did := func(done, would string) string {
		if dryRun {
			return would
		}
		return done
	}
	var rows [][]string
	for _, p := range plan {
		what := "as it was"
		switch {
		case p.Missing:
			what = did("made", "to be made")
		case len(p.Stronger) > 0:
			what = did("stronger", "to be stronger") + ": " + strings.Join(p.Stronger, "; ")
		}
		rows = append(rows, []string{p.Stream, explain.Count(p.Replicas, "replica"), what})
	}
	return a.table(rows)
}
