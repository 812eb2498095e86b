package cli

import (
	"cmp"
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

func newDeadShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "show TICKET",
		Aliases: []string{"info"},
		Short:   "Show one of them: its end, its trail, its package",
		Long: `Show prints what there is to know before a decision: how the handoff ended, who
refused, asked and failed on the way, and what was handed off. With -o json it is
one object: state, trail, package.

Exit codes: 0 here it is; 9 it is open, or closed with success; 3 no such ticket.`,
		Example: `  handoff dead show 5f0c…
  handoff dead show 5f0c… -o json | jq .trail`,
		Args: takes("a TICKET"),
		RunE: a.onTicket(a.deadLetter),
	}
}

func (a *app) deadLetter(ctx context.Context, b *broker.Broker, ticket string) error {
	changes, err := b.History(ctx, ticket)
	if err != nil {
		return err
	}
	state, trail := changes[len(changes)-1].Record.State, protocol.TrailOf(changes)
	if !is[*outcomeError](failed(state)) {
		return protocol.Errorf(protocol.CodeIllegal, "ticket", "%s is no dead letter: %s", ticket, cmp.Or(explain.Ending(state), phrase(explain.WaitingFor(state))))
	}
	body, err := b.Package(ctx, ticket)
	if err != nil {
		return err
	}
	if !a.text() {
		return a.value(struct {
			State   dossier.StateView     `json:"state"`
			Trail   []protocol.TrailEntry `json:"trail"`
			Package json.RawMessage       `json:"package"`
		}{dossier.StateOf(state), orEmpty(trail), body})
	}
	if err := a.stateText(state, nil); err != nil {
		return err
	}
	a.printf("\n")
	if len(trail) > 0 {
		rows := [][]string{{"TIME (UTC)", "TRAIL", "WHO", "WORDS"}}
		for _, entry := range trail {
			rows = append(rows, []string{explain.Instant(entry.At), string(entry.Event), trailWho(entry), explain.Join(entry.Code, entry.Words, entry.Assessment)})
		}
		if err := a.table(rows); err != nil {
			return err
		}
		a.printf("\n")
	}
	return a.document(body)
}

func trailWho(entry protocol.TrailEntry) string {
	if entry.To == "" {
		return entry.Agent
	}
	return entry.Agent + " -> " + entry.To
}
