package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	handoffjs "github.com/agenthandoff/handoff/broker/jetstream"
	"github.com/agenthandoff/handoff/internal/explain"
)

func newTopologyShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "See how the streams stand",
		Long: `Show lists the six streams that Handoff uses: how many servers keep each, how it is
written, how long it keeps what it has, and how much that is. "handoff doctor" judges.

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
