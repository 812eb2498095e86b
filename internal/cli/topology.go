package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

func newTopology(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:   "topology",
		Short: "Make the streams on a NATS server of yours, and see them",
		Long: `Handoff needs eight streams on a NATS server or a cluster of yours:

  HANDOFF_LEDGER      every handoff, entry by entry
  HANDOFF_WORK        offers in the queues of agents
  HANDOFF_TIMERS      wake-ups
  KV_HANDOFF_AGENTS   profiles of agents, and settings of the fleet
  KV_HANDOFF_HOLDERS  presence of workers, slots in use, health of agents
  OBJ_HANDOFF_BLOBS   packages and results over 256 KiB
  HANDOFF_WORKSPACES  the data that the handoffs of a workflow share
  HANDOFF_SIGNALS     signals that no supervisor has turned into handoffs yet

With several partitions there are as many of LEDGER, WORK and TIMERS: HANDOFF_LEDGER_1 and
so on.

WORK, TIMERS, HOLDERS and BLOBS are recreated within seconds when they are lost, while
"handoff dev" or "handoff supervise" runs; the data of the others is in no other place.
"handoff dev" makes its own; on any other server run "handoff topology ensure" once,
and again after an upgrade of Handoff or when the cluster has grown.`,
	}, newTopologyEnsure(a), newTopologyShow(a))
}

// topologyFlags declares the flags of a command that makes streams on servers.
func (a *app) topologyFlags(cmd *cobra.Command, t *handoffjs.Topology, replicas int, usage string) {
	cmd.Flags().IntVar(&t.Replicas, "replicas", replicas, usage)
	cmd.Flags().StringVar(&t.Fsync, "fsync", "", "when the servers sync: always or interval, as they are configured")
	a.words(cmd, "fsync", handoffjs.FsyncAlways, handoffjs.FsyncInterval)
}

func checkTopology(cmd *cobra.Command, t handoffjs.Topology) error {
	if cmd.Flags().Changed("replicas") && (t.Replicas < 1 || t.Replicas > 5) {
		return usagef("--replicas %d: 1 to 5; 3 for a cluster", t.Replicas)
	}
	if !slices.Contains([]string{"", handoffjs.FsyncAlways, handoffjs.FsyncInterval}, t.Fsync) {
		return usagef("--fsync %s: always, or interval", t.Fsync)
	}
	return nil
}

// onServer does something with a server that may have no streams yet.
func (a *app) onServer(ctx context.Context, do func(*nats.Conn) error) error {
	conn := a.conn.resolve(a.env)
	told := a.tellSilence("the engine at " + conn.where())
	nc, err := conn.dial(ctx)
	told()
	if err != nil {
		return err
	}
	defer nc.Close()
	return do(nc)
}

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
		Short: "Create missing streams, and strengthen existing ones",
		Long: `Ensure makes the streams that are missing and brings those that an older version made up
to date. It may be run at any time and by many at once. It never weakens a stream:
replicas and ages only grow, and your own settings beyond that stay. A request for less
than exists is refused, and changes nothing. It needs an account of its own, in which it
may use the JetStream API.

--replicas is how many servers keep each stream: 3 in a cluster. Left out, existing
streams stay as they are, and new ones get 1.

--partitions is how many streams the ledger, the queues and the timers have each: 1 to
16. Several pay on servers with more than four processors, or whose disks sync slowly
(docs/operations/scale.md). There may be more later: new handoffs use them 150 seconds
after this, those that are there stay where they are. There are never fewer. In a
cluster, ensure spreads the leaders of their streams evenly over the servers, each time:
run it again when servers have restarted.

--fsync records when your servers sync to the disk (sync_interval in their
configuration, which only you can set): "always", or "interval". From it "handoff
doctor" knows how much a power cut may take. On a single server that syncs always,
clients then commit in groups, and new streams of offers and wake-ups are in memory:
they are recreated from the ledger when the server has restarted.

Exit codes: 0 all exist; 9 less was asked for than exists; 1 a stream of one of our
names is not ours, or the cluster cannot make them.`,
		Example: `  handoff topology ensure -s nats://nats-1:4222 --replicas 3 --fsync always
  handoff topology ensure --dry-run`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cmp.Or(checkTopology(cmd, t), checkPartitions(t.Partitions)); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), max(topologyWithin, a.timeout()))
			defer cancel()
			return a.onServer(ctx, func(nc *nats.Conn) error { return a.ensureTopology(ctx, nc, t, dryRun) })
		},
	}
	a.topologyFlags(cmd, &t, 0, "servers that keep each stream (default: as now, 1 for a new stream)")
	cmd.Flags().IntVar(&t.Partitions, "partitions", 0, "streams of the ledger, of the queues and of the timers, 1 to 16 (default: as now, 1 for a new ledger)")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the changes, and make none")
	return cmd
}

// checkPartitions refuses a number of partitions that no ledger has.
func checkPartitions(n int) error {
	if n < 0 || n > broker.PartitionsMax {
		return usagef("--partitions %d: 1 to %d", n, broker.PartitionsMax)
	}
	return nil
}

func (a *app) ensureTopology(ctx context.Context, nc *nats.Conn, t handoffjs.Topology, dryRun bool) error {
	existing, err := handoffjs.ReadTopology(ctx, nc)
	if err != nil {
		return err
	}
	t.AsyncWork, t.Fsync = existing.AsyncWork, cmp.Or(t.Fsync, existing.Fsync)
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
	moves, err := handoffjs.SpreadLeaders(ctx, nc, dryRun)
	if err != nil {
		return err
	}
	for i := range plan {
		for _, m := range moves {
			if m.Stream == plan[i].Stream {
				plan[i].Leader = m.To
			}
		}
	}
	if !a.text() {
		return list(a, plan)
	}
	if grows := slices.ContainsFunc(plan, func(p handoffjs.StreamPlan) bool { return p.Stream == handoffjs.LedgerStream && !p.Missing }); grows && !dryRun && t.Partitions > existing.Partitions {
		a.notef("handoff: new handoffs use the added partitions %s from now\n", explain.Duration(handoffjs.GrowAfter))
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
		if p.Leader != "" {
			what += did("; led by ", "; to be led by ") + p.Leader
		}
		rows = append(rows, []string{p.Stream, explain.Count(p.Replicas, "replica"), what})
	}
	return a.table(rows)
}

func newTopologyShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Show the streams",
		Long: `Show lists the streams that Handoff uses: how many servers keep each, how it is
written, how long it keeps its messages, and how much it holds. "handoff doctor" judges
these.

Exit codes: 0 all are there; 1 one is missing.`,
		Example: `  handoff topology show
  handoff topology show -o jsonl | jq -r 'select(.missing) | .name'`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd.Context(), func(ctx context.Context) error {
				return a.onServer(ctx, func(nc *nats.Conn) error { return a.showTopology(ctx, nc) })
			})
		},
	}
}

func (a *app) showTopology(ctx context.Context, nc *nats.Conn) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	all, err := handoffjs.ShowTopology(ctx, js)
	if err != nil {
		return err
	}
	var missing []string
	rows := [][]string{{"STREAM", "REPLICAS", "LEADER", "PERSIST", "KEEPS", "MESSAGES", "BYTES"}}
	for _, s := range all {
		if s.Missing {
			missing = append(missing, s.Name)
			rows = append(rows, []string{s.Name, "missing"})
			continue
		}
		keeps := "for ever"
		if s.MaxAge > 0 {
			keeps = explain.Duration(s.MaxAge)
		}
		rows = append(rows, []string{s.Name, fmt.Sprint(s.Replicas), s.Leader, s.Persist, keeps, fmt.Sprint(s.Messages), fmt.Sprint(s.Bytes)})
	}
	if a.text() {
		err = a.table(rows)
	} else {
		err = list(a, all)
	}
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: %s: make them: handoff topology ensure", broker.ErrNoTopology, strings.Join(missing, ", "))
	}
	return nil
}
