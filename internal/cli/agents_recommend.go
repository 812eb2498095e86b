package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/brief"
	"github.com/agenthandoff/handoff/protocol"
)

// recommendFlags say for which agent, and for what.
type recommendFlags struct {
	from, task string
	most       int
}

func (f *recommendFlags) declare(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.task, "task", "", "`WHAT` is to be done; without it all agents are ranked by success alone")
	cmd.Flags().IntVarP(&f.most, "most", "k", 10, fmt.Sprintf("name `N` agents at most, 1 to %d", api.FindMax))
}

func (f *recommendFlags) ask(ctx context.Context, a *app, s *api.Session) (api.Recommendations, error) {
	found, err := s.RecommendAgents(ctx, cmp.Or(f.from, a.env("HANDOFF_AGENT"), protocol.Human), f.task, f.most)
	if err == nil && !found.Learned {
		a.notef("handoff: no index answers, so nothing is known of earlier handoffs\n")
	}
	return found, err
}

func newAgentsRecommend(a *app) *cobra.Command {
	var f recommendFlags
	cmd := &cobra.Command{
		Use:   "recommend",
		Short: "Rank the agents that one may hand off to, by words and by success",
		Long: `Recommend ranks the agents that --from may hand off to, for a task: by the words of
their profiles, as "handoff agents find" does, times how its handoffs to them have ended in
the last 30 days. Agents that no edge leads to are left out (hands_to, accepts_from). An
agent of which nothing is known is taken to succeed half of the time.

It is advice: no handoff is routed by it. It asks an index (handoff index; handoff dev has
one); without one it ranks by the words alone.`,
		Example: `  handoff agents recommend --from lead --task "run the unit tests"
  handoff agents recommend --from lead -o json | jq -r '.agents[0].agent'`,
		Args: takes(),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, _ []string) error {
			found, err := f.ask(ctx, a, s)
			return printed(a, found, err, a.recommended)
		}),
	}
	cmd.Flags().StringVar(&f.from, "from", "", "the `AGENT` that hands off (default $HANDOFF_AGENT, else human)")
	f.declare(cmd)
	return cmd
}

func (a *app) recommended(found api.Recommendations) error {
	if len(found.Agents) == 0 {
		a.notef("handoff: there is no agent for it to hand off to\n")
		return nil
	}
	rows := [][]string{{"AGENT", "WORTH", "SUCCEEDED", "WORDS"}}
	for _, r := range found.Agents {
		ended := "-"
		if n := r.Ends.Succeeded + r.Ends.Failed; n > 0 {
			ended = fmt.Sprintf("%d of %d", r.Ends.Succeeded, n)
		}
		rows = append(rows, []string{r.Agent, fmt.Sprintf("%.2f", r.Worth), ended, strings.Join(r.Words, " ")})
	}
	return a.table(rows)
}

func newAgentsPrompt(a *app) *cobra.Command {
	var f recommendFlags
	cmd := &cobra.Command{
		Use:   "prompt",
		Short: "Print what the prompt of an agent should say of handing off",
		Long: `Prompt prints a text for the prompt of a model that works as an agent: when it hands off,
what it hands over, how its output does so, and the agents that --for may hand off to, in
the order of "handoff agents recommend". What profiles say stays on its line.`,
		Example: `  handoff agents prompt --for lead >> prompt.md
  handoff agents prompt --for lead --task "run the unit tests" -k 3`,
		Args: takes(),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, _ []string) error {
			found, err := f.ask(ctx, a, s)
			if err != nil {
				return err
			}
			var specialists []brief.Specialist
			for _, r := range found.Agents {
				profile, err := s.Profile(ctx, r.Agent)
				if hasCode(protocol.CodeUnknownAgent)(err) { // it was removed meanwhile
					continue
				} else if err != nil {
					return err
				}
				specialists = append(specialists, brief.Specialist{Profile: profile, Succeeded: r.Ends.Succeeded, Ended: r.Ends.Succeeded + r.Ends.Failed})
			}
			text := brief.Guidance(specialists)
			return printed(a, struct {
				Prompt string `json:"prompt"`
			}{text}, nil, func(struct {
				Prompt string `json:"prompt"`
			}) error {
				a.printLines(text)
				return nil
			})
		}),
	}
	cmd.Flags().StringVar(&f.from, "for", "", "the `AGENT` whose prompt it is (default $HANDOFF_AGENT, else human)")
	f.declare(cmd)
	return cmd
}
