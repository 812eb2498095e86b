package cli

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// unsuccessful are the outcomes that a dead letter may have.
var unsuccessful = []string{"failed", "timeout", "rejected", "cancelled", "rolled_back"}

func newDead(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "dead",
		Aliases: []string{"dead-letters"},
		Short:   "See what closed without success, and send it off again",
		Long: `Dead letters are handoffs that closed without success: failed, timeout, rejected,
cancelled, rolled_back. They are a view of the ledger, not a queue of their own, and
nothing has to be done about them.`,
		Args: cobra.ArbitraryArgs,
		RunE: refuseUnknown,
	}
	cmd.AddCommand(newDeadList(a), newDeadShow(a), newDeadRedrive(a))
	return cmd
}

// deadFilter says which dead letters are meant.
type deadFilter struct {
	agent, source, outcome, since string
	limit                         int
	redriven                      bool

	after time.Time
}

func (f *deadFilter) declare(a *app, cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.agent, "agent", "", "only those that ended at this `AGENT`")
	fs.StringVar(&f.source, "source", "", "only those from this `AGENT`")
	fs.StringVar(&f.outcome, "outcome", "", "only those with this `OUTCOME`: "+strings.Join(unsuccessful, ", "))
	fs.StringVar(&f.since, "since", "", "only those that closed since `WHEN`: an instant, or a duration ago (2h, 3d)")
	fs.IntVar(&f.limit, "limit", 0, "only the `N` that closed last (default: all)")
	a.agentFlags(cmd, "agent", "source")
	a.words(cmd, "outcome", unsuccessful...)
}

// deadFilterFlags are the flags of declare.
var deadFilterFlags = []string{"agent", "source", "outcome", "since", "limit"}

func (f *deadFilter) check(now time.Time) error {
	for field, agent := range map[string]string{"agent": f.agent, "source": f.source} {
		if agent == "" {
			continue
		}
		if err := protocol.CheckID(field, agent); err != nil {
			return err
		}
	}
	if f.outcome != "" && !slices.Contains(unsuccessful, f.outcome) {
		return usagef("--outcome %s: what closed without success is %s", f.outcome, strings.Join(unsuccessful, ", "))
	}
	if f.limit < 0 {
		return usagef("--limit %d is negative", f.limit)
	}
	var err error
	f.after, err = pastFlag("since", f.since, now)
	return err
}

// query selects the dead letters that are meant.
func (f *deadFilter) query() ask.DeadQuery {
	return ask.DeadQuery{Agent: f.agent, Source: f.source, Outcome: protocol.Outcome(f.outcome), Since: f.after, Redriven: f.redriven, Limit: f.limit}
}
