package cli

import (
	"context"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	handoffjs "github.com/agenthandoff/handoff/broker/jetstream"
)

func newTopology(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "topology",
		Short: "Make the streams on a NATS server of yours, and see them",
		Long: `Topology is what Handoff needs on a NATS server or a cluster of yours: six streams.
"handoff dev" makes its own; on any other server run "handoff topology ensure" once,
and again after an upgrade of Handoff or when the cluster has grown.`,
		Args: cobra.ArbitraryArgs,
		RunE: refuseUnknown,
	}
	cmd.AddCommand(newTopologyEnsure(a), newTopologyShow(a))
	return cmd
}

// topologyFlags declares the flags of a command that makes streams on servers.
func (a *app) topologyFlags(cmd *cobra.Command, t *handoffjs.Topology, replicas int, usage string) {
	cmd.Flags().IntVar(&t.Replicas, "replicas", replicas, usage)
	cmd.Flags().StringVar(&t.Fsync, "fsync", "", "when the servers sync: always or interval, as they are configured")
	a.words(cmd, "fsync", handoffjs.FsyncAlways, handoffjs.FsyncInterval)
}

func checkTopology(cmd *cobra.Command, t handoffjs.Topology) error {
	if cmd.Flags().Changed("replicas") && (t.Replicas < 1 || t.Replicas > 5) {
		return usagef("--replicas %d: 1 to 5; 3 is what a cluster wants", t.Replicas)
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
