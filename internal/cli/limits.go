package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
)

func newLimits(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "limits",
		Short: "Show the limits by key: who is in work, and who waits",
		Long: `Limits lists the keys with a limit that were used lately: a model that many agents share,
say. IN WORK is how many handoffs are in work, of how many; BEGUN how many attempts began
in the last span of the rate; WAITING how many wait in order. A key is paused after a worker
has reported that its provider throttles. See docs/how-to/limits-by-key.md.`,
		Example: `  handoff agents put coder --limit-by 'model:$.variables.model=8,60/1m'
  handoff limits`,
		Args: takes(),
		RunE: onAll(a, (*api.Session).KeyLimits, func(all api.KeyLimits) error {
			if len(all.Keys) == 0 {
				a.notef("handoff: no key with a limit was used; set one with handoff agents put AGENT --limit-by 'KEY=8,60/1m'\n")
				return nil
			}
			return a.table(keyRows(all.Keys))
		}),
	}
}

// readKeys returns the keys with a limit as top and stats show them.
func readKeys(ctx context.Context, s *api.Session) ([]lifecycle.KeyStatus, error) {
	all, err := s.KeyLimits(ctx)
	explain.SortKeys(all.Keys)
	return all.Keys, err
}

// keyRows is the table of the keys with a limit.
func keyRows(all []lifecycle.KeyStatus) [][]string {
	return rowsOf("KEY|IN WORK|BEGUN|WAITING|PAUSED", all, func(v lifecycle.KeyStatus) []any {
		return []any{v.Key, explain.KeyHeld(v), explain.KeyBegun(v), v.Waiting, explain.KeyPause(v, explain.Instant)}
	})
}
