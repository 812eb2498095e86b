package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

func newAgents(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "agents",
		Aliases: []string{"agent"},
		Short:   "See and change who there is to hand to",
		Long: `Agents are roles with a name and capabilities; workers serve them. "handoff work"
registers an agent that is not there yet; these commands say more about it.`,
		Args: cobra.ArbitraryArgs,
		RunE: refuseUnknown,
	}
	cmd.AddCommand(newAgentsList(a), newAgentsShow(a), newAgentsFind(a), newAgentsRecommend(a), newAgentsPrompt(a), newAgentsPut(a), newAgentsRemove(a), newAgentsBreaker(a),
		newAgentsPause(a, "pause", true), newAgentsPause(a, "resume", false))
	for _, sub := range cmd.Commands() {
		if !slices.Contains([]string{"list", "find", "recommend", "prompt"}, sub.Name()) {
			sub.ValidArgsFunction = a.agentWords
		}
	}
	return cmd
}

// busyWords say how much of it is busy: its workers' slots, or, where it has
// max_concurrency, what all its holders have in hand of that.
func busyWords(v api.AgentStatus) string {
	if v.MaxConcurrency > 0 {
		return fmt.Sprintf("%d/%d", v.InHand, v.MaxConcurrency)
	}
	return fmt.Sprintf("%d/%d", v.Busy, v.Slots)
}

// standing says whether the agent takes work, for people.
func standing(v api.AgentStatus) string {
	switch {
	case !v.Accepts():
		return "accepts no handoffs"
	case v.Breaker != nil:
		words := fmt.Sprintf("%s, breaker %s", v.Availability, v.Breaker.State)
		if !v.Breaker.Until.IsZero() {
			words += " until " + explain.Instant(v.Breaker.Until)
		}
		return words
	case v.Availability == api.Absent && !v.AbsentSince.IsZero():
		return fmt.Sprintf("absent since %s", explain.Instant(v.AbsentSince))
	case v.Availability == api.Polling:
		return explain.Polls(v.PolledAt, time.Now())
	}
	return string(v.Availability)
}

func newAgentsList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List all agents, their workers and their queues",
		Long: `List shows all agents, and whether a worker serves them:

  present    a worker is there, with free slots
  busy       all slots are taken, or as many handoffs are in hand as max_concurrency
             allows: what comes waits in the queue, and nowhere else
  paused     on purpose (handoff agents pause): offers wait, nothing goes elsewhere
  draining   its last workers finish what they have, and take no more
  polls      no worker is there, but the agent holds a claim, or has polled
             within its patience (poll_patience_ms in its profile, 5 min)
  absent     none of them: what is offered to it goes elsewhere after the
             acknowledge timeout (policy ack_timeout_ms), if critical to a person

Where its breaker is open or half-open, that stands beside it (handoff agents breaker).

That is computed from the presence of workers and claims at this moment, and stored nowhere.`,
		Example: `  handoff agents ls
  handoff agents ls -o jsonl | jq -r 'select(.availability == "absent") | .id'`,
		Args: takes(),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, _ []string) error {
			views, err := s.Agents(ctx)
			return printedList(a, views, err, a.agents)
		}),
	}
}

func (a *app) agents(views []api.AgentStatus) error {
	if len(views) == 0 {
		a.notef("no agents yet; start one: handoff work --agent NAME -- CMD\n")
		return nil
	}
	rows := [][]string{{"AGENT", "AVAILABILITY", "WORKERS", "BUSY", "QUEUED", "CAPABILITIES", "DESCRIPTION"}}
	for _, v := range views {
		rows = append(rows, []string{v.ID, standing(v), fmt.Sprint(v.Workers), busyWords(v), fmt.Sprint(v.Queued),
			capabilityText(v.Capabilities, v.Specialization), v.Description})
	}
	return a.table(rows)
}

func capabilityText(capabilities []protocol.Capability, specialization string) string {
	var words []string
	for _, c := range capabilities {
		word := c.ID
		if c.Proficiency != 1 {
			word = fmt.Sprintf("%s:%g", c.ID, c.Proficiency)
		}
		words = append(words, word)
	}
	if specialization != "" {
		words = append(words, specialization)
	}
	return strings.Join(words, " ")
}
