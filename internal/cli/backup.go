package cli

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/internal/backup"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/jetstream"
)

func newBackup(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "backup DIR",
		Short: "Copy the ledger, the bodies and the agents into a directory",
		Long: `Backup writes into DIR the parts that cannot be recreated: the ledger, the packages and
results that are too large for it, and the agents. DIR must not exist, or be empty. The
engine stays in use meanwhile; the backup has everything that was acknowledged before it
began, and is complete once backup.json exists. Queues, timers and who is present follow
from the ledger and are not in it.

Each folder is a snapshot as the servers make it; the nats command line reads it too.
"handoff restore" puts a backup back.

Exit codes: 0 it is on the disk; 1 a stream is missing or the disk is full; 6 no engine;
9 DIR is not empty.`,
		Example: `  handoff backup /srv/backup/$(date +%F)
  handoff backup ./copy -o json | jq '.streams[] | {name, messages}'`,
		Args: takes("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onServer(cmd.Context(), func(nc *nats.Conn) error {
				m, err := backup.Write(cmd.Context(), nc, a.path(args[0]), a.copied())
				if err != nil {
					return err
				}
				return a.backedUp("backed up", m)
			})
		},
	}
}

func newRestore(a *app) *cobra.Command {
	var (
		t    jetstream.Topology
		data string
	)
	cmd := &cobra.Command{
		Use:   "restore DIR",
		Short: "Put a backup into an engine that has no handoffs",
		Long: `Restore puts the backup in DIR into an engine that has no handoffs: a new server or
cluster, or with --data the directory of a "handoff dev" that does not run. DIR is read
through before anything is changed; an engine with a ledger is refused.

Stop supervisors, indexes and workers first, and start them afterwards: a supervisor
then recreates the queues and timers from the ledger, and an index begins anew. Handoffs
submitted after the backup are gone, and a worker that holds one loses its lease. An
open handoff goes on from its state in the backup: later work on it is repeated.

--replicas and --fsync are those of "handoff topology ensure", and may be others than the
backup's engine had.

Exit codes: 0 all is there; 1 a file cannot be read or the engine cannot take it; 6 no
engine; 9 DIR is no whole backup, or the engine has handoffs.`,
		Example: `  handoff restore /srv/backup/2026-11-22 -s nats://nats-1:4222 --replicas 3 --fsync always
  handoff restore ./copy --data ./new && handoff dev --data ./new`,
		Args: takes("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkTopology(cmd, t); err != nil {
				return err
			}
			restore := func(nc *nats.Conn) error {
				m, err := backup.Restore(cmd.Context(), nc, a.path(args[0]), t, a.copied())
				if err != nil {
					return err
				}
				return a.backedUp("restored", m)
			}
			if data == "" {
				return a.onServer(cmd.Context(), restore)
			}
			if t.Replicas > 1 || cmd.Flags().Changed("fsync") {
				return usagef("--replicas and --fsync are for servers; with --data, handoff dev has them")
			}
			return a.onData(cmd.Context(), data, restore)
		},
	}
	cmd.Flags().StringVar(&data, "data", "", "restore into the directory of a handoff dev, which must not run")
	a.topologyFlags(cmd, &t, 1, "servers that keep each stream: 3 in a cluster")
	return cmd
}

// onData does something with a node of our own that listens nowhere.
func (a *app) onData(ctx context.Context, dir string, do func(*nats.Conn) error) (err error) {
	node, err := embedded.Start(ctx, embedded.Config{Dir: a.path(dir), DontListen: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Stop()) }()
	nc, err := node.Conn()
	if err != nil {
		return err
	}
	defer nc.Close()
	return do(nc)
}

// copied prints now and then how far the copy of a large stream is.
func (a *app) copied() backup.Progress {
	tell := a.progress()
	return func(stream string, done, total uint64) {
		if total>>20 == 0 {
			return
		}
		tell("handoff: %s: %d of about %d MiB\n", stream, done>>20, total>>20)
	}
}

func (a *app) backedUp(what string, m backup.Manifest) error {
	if !a.text() {
		return a.value(m)
	}
	for _, s := range m.Streams {
		a.printf("%s %s: %s, up to %d\n", what, s.Name, explain.Count(int(s.Messages), "message"), s.LastSeq)
	}
	return nil
}
