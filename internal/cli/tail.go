package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
)

func newTail(a *app) *cobra.Command {
	var (
		filter tailFilter
		since  string
		limit  int
	)
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Print what happens to handoffs, as it happens",
		Long: `Tail prints every event of the ledger as it happens, one line each: when (UTC), ticket,
agent, what, by whom, and what else there is to say. It goes on until Ctrl-C. Where it is
cut off from the engine it says so, waits, and goes on behind the last event that it had:
none is left out and none comes twice.

--agent, --conversation, --ticket and --source choose; given twice, one of the two will
do. An event is an agent's when the handoff stands with it, or leaves it.

--since begins in the past: so long ago (10m), at an instant, or with an entry of the
ledger by its number (1 is the first).

On a terminal too narrow for it the ticket is cut to its first eight characters. With
-o json or jsonl each entry of the ledger is complete: its sequence, its hash, its events
and the state of the handoff after them.

Exit codes: 130 ended by Ctrl-C; 0 ended by --limit; 6 no engine to begin with.`,
		Example: `  handoff tail
  handoff tail --agent reviewer --since 10m
  handoff tail --ticket 5f0c… --since 1
  handoff tail -o jsonl | jq -r 'select(.state.closed) | [.ticket, .state.outcome] | @tsv'`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return usagef("--limit %d: print at least one entry, or leave it out", limit)
			}
			if err := filter.check(); err != nil {
				return err
			}
			begin, err := parseSince(since, time.Now())
			if err != nil {
				return err
			}
			if err := a.tickets(cmd.Context(), filter.tickets); err != nil {
				return err
			}
			return a.tail(cmd.Context(), filter, begin, limit)
		},
	}
	fs := cmd.Flags()
	fs.StringArrayVar(&filter.agents, "agent", nil, "events of this `AGENT`; repeatable")
	fs.StringArrayVar(&filter.conversations, "conversation", nil, "events of the handoffs of this conversation; repeatable")
	fs.StringArrayVar(&filter.tickets, "ticket", nil, "events of this handoff; repeatable")
	fs.StringArrayVar(&filter.sources, "source", nil, "events of what this agent handed off; repeatable")
	fs.StringVar(&since, "since", "", "begin so long ago (10m), at an instant, or with an entry (its number)")
	fs.IntVar(&limit, "limit", 0, "end after so many entries; each may hold several events")
	a.agentFlags(cmd, "agent", "source")
	return cmd
}

// errEnough ends a tail that has printed what it was asked for.
var errEnough = errors.New("enough")

func (a *app) tail(ctx context.Context, filter tailFilter, begin beginning, limit int) error {
	b, done, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	a.noteUnknown(ctx, b, filter.agents)
	ledger, err := b.LedgerInfo(ctx)
	if err != nil {
		return err
	}
	from, err := begin.find(ctx, b, ledger)
	if err != nil {
		return err
	}
	lines := &tailLines{a: a}
	printed := 0
	err = followLedger(ctx, b, ledger, from, func(word string) { a.notef("handoff: %s\n", word) }, func(e broker.Entry) error {
		change, err := broker.DecodeChange(e)
		if err != nil {
			a.notef("handoff: %v\n", err)
			return nil
		}
		if !filter.matches(change) {
			return nil
		}
		if err := lines.print(change); err != nil {
			return err
		}
		if printed++; printed == limit {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}
