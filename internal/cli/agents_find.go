package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/assist"
	"github.com/agenthandoff/handoff/internal/brief"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

func newAgentsFind(a *app) *cobra.Command {
	o := struct {
		assistFlag `flag:""`
		Most       int `flag:"most,k" doc:"list {N} agents at most, 1 to 100"`
	}{Most: 5}
	cmd := &cobra.Command{
		Use:   "find TASK",
		Short: "Find the agents for a task, by its words",
		Long: `Find lists the agents whose profiles have the words of a task, the best first: their
names, specializations and capabilities count the most, then their examples, then their
descriptions. Agents that are paused or take no handoffs are left out.

Where the best is not well ahead of the second, or has too little of the task, find
exits with 9 (no_match); the nearest are listed all the same.

Then a chooser decides, if there is one: a command (--assist, $HANDOFF_ASSIST), or a
model behind an endpoint that is compatible with OpenAI's. $HANDOFF_LLM_URL is the
address in front of /chat/completions, $HANDOFF_LLM_MODEL the name of the model; the key
is in the file $HANDOFF_LLM_KEY_FILE, or in $HANDOFF_LLM_KEY. It gets the task and all
agents, without secrets, and has 30 seconds to answer an id, or NONE; the command reads
{"kind": "find", "task", "agents"}. The chosen one is listed first, and "chosen_by"
names the chooser. Any other answer is no_match, as above.`,
		Example: `  handoff agents find "run the unit tests and check coverage"
  handoff agents find "make it fast" --assist ./choose.sh
  handoff submit --to "$(handoff agents find "deploy to staging" -o json | jq -r '.found[0].agent')" --task "deploy"`,
		Args: takes("a TASK"),
		RunE: func(cmd *cobra.Command, args []string) error {
			matches, err := a.find(cmd.Context(), args[0], o.Most, o.Assist)
			if err != nil && !hasCode(protocol.CodeNoMatch)(err) {
				return err
			}
			if shown := printed(a, matches, nil, a.matches); shown != nil {
				return shown
			}
			return err
		},
	}
	bind(cmd.Flags(), &o)
	return cmd
}

func (a *app) matches(m lifecycle.Matches) error {
	if len(m.Found) == 0 {
		return nil
	}
	if m.ChosenBy != "" {
		a.notef("handoff: the words are not certain; a %s chose %s\n", m.ChosenBy, m.Found[0].Agent)
	}
	return a.table(rowsOf("AGENT|SCORE|WORDS", m.Found, func(f lifecycle.Found) []any {
		return []any{f.Agent, fmt.Sprintf("%.1f", f.Score), strings.Join(f.Words, " ")}
	}))
}

// recommendFlags hold the task and the number of agents to name.
type recommendFlags struct {
	Task string `flag:"task" doc:"{WHAT} is to be done; without it all agents are ranked by success alone"`
	Most int    `flag:"most,k" doc:"name {N} agents at most, 1 to 100"`
}

func (f *recommendFlags) ask(ctx context.Context, a *app, s *api.Session, from string) (api.Recommendations, error) {
	found, err := s.RecommendAgents(ctx, cmp.Or(from, a.env("HANDOFF_AGENT"), protocol.Human), f.Task, f.Most)
	if err == nil && !found.Learned {
		a.notef("handoff: no index answers, so nothing is known of earlier handoffs\n")
	}
	return found, err
}

func newAgentsRecommend(a *app) *cobra.Command {
	var o struct {
		recommendFlags `flag:""`
		From           string `flag:"from" doc:"the {AGENT} that hands off (default $HANDOFF_AGENT, else human)"`
	}
	o.Most = 10
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
			found, err := o.ask(ctx, a, s, o.From)
			return printed(a, found, err, a.recommended)
		}),
	}
	bind(cmd.Flags(), &o)
	return cmd
}

func (a *app) recommended(found api.Recommendations) error {
	if len(found.Agents) == 0 {
		a.notef("handoff: there is no agent for it to hand off to\n")
		return nil
	}
	return a.table(rowsOf("AGENT|WORTH|SUCCEEDED|WORDS", found.Agents, func(r lifecycle.Recommended) []any {
		ended := "-"
		if n := r.Ends.Succeeded + r.Ends.Failed; n > 0 {
			ended = fmt.Sprintf("%d of %d", r.Ends.Succeeded, n)
		}
		return []any{r.Agent, fmt.Sprintf("%.2f", r.Worth), ended, strings.Join(r.Words, " ")}
	}))
}

func newAgentsPrompt(a *app) *cobra.Command {
	var o struct {
		recommendFlags `flag:""`
		For            string `flag:"for" doc:"the {AGENT} whose prompt it is (default $HANDOFF_AGENT, else human)"`
	}
	o.Most = 10
	cmd := &cobra.Command{
		Use:   "prompt",
		Short: "Print a text on handing off, for the prompt of an agent",
		Long: `Prompt prints a text for the prompt of a model that works as an agent: when to hand off,
how its output does so, and the agents that --for may hand off to, in the order of
"handoff agents recommend".`,
		Example: `  handoff agents prompt --for lead >> prompt.md
  handoff agents prompt --for lead --task "run the unit tests" -k 3`,
		Args: takes(),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, _ []string) error {
			found, err := o.ask(ctx, a, s, o.For)
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
	bind(cmd.Flags(), &o)
	return cmd
}

// find finds the agents for a task: by words and, where these are not certain, by the assistant.
// The assistant is asked after the engine, whose deadline is shorter. A refusal has the nearest.
func (a *app) find(ctx context.Context, task string, most int, assistCommand string) (m lifecycle.Matches, err error) {
	var asker assist.Asker
	var roster []assist.Agent
	err = a.onEngine(ctx, func(ctx context.Context, s *source) error {
		m, err = s.session.FindAgents(ctx, task, most)
		if !hasCode(protocol.CodeNoMatch)(err) {
			return err
		}
		unsure := err
		if asker, err = a.assistant(assistCommand); err != nil {
			return err
		}
		if asker == nil {
			return unsure
		}
		d, err := s.b.Directory(ctx)
		if err != nil {
			return err
		}
		for _, id := range slices.Sorted(maps.Keys(d.Agents)) {
			if lifecycle.CanBeFound(d.Agents[id]) {
				roster = append(roster, assist.AgentOf(*d.Agents[id]))
			}
		}
		return unsure
	})
	var unsure *protocol.Error
	if len(roster) == 0 || !errors.As(err, &unsure) || unsure.Code != protocol.CodeNoMatch {
		return m, err
	}
	agent, err := assist.Choose(ctx, asker, task, roster)
	if err != nil {
		return m, protocol.Errorf(unsure.Code, unsure.Field, "%s; the %s that was asked: %v", unsure.Message, asker.By(), err)
	}
	m.Choose(agent, asker.By(), most)
	return m, nil
}
