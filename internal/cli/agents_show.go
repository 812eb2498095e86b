package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

func newAgentsShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "show AGENT",
		Aliases: []string{"info"},
		Short:   "Show one agent, its workers and its queue",
		Example: `  handoff agents show reviewer
  handoff agents show reviewer -o json > reviewer.json`,
		Args: takes("an AGENT"),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			v, err := s.Agent(ctx, args[0])
			if err != nil {
				return err
			}
			holders, err := s.Holders(ctx, args[0])
			return printed(a, v, err, func(v api.AgentStatus) error { return a.agent(v, holders) })
		}),
	}
}

func (a *app) agent(v api.AgentStatus, holders []protocol.Holder) error {
	concurrency, execution, patience := "", "", ""
	if v.PollPatienceMS > 0 {
		patience = explain.Millis(v.PollPatienceMS)
	}
	if v.MaxConcurrency > 0 {
		concurrency = fmt.Sprintf("%d, %d in hand", v.MaxConcurrency, v.InHand)
	}
	if v.MaxExecutionMS > 0 {
		execution = explain.Millis(v.MaxExecutionMS)
	}
	expects, provides, conversation := contractWords(&v.Profile)
	a.printf("%s  %s\n", v.ID, standing(v))
	for _, gate := range v.Gates {
		a.printf("%s\n", gate)
	}
	if err := a.fields("name", v.Name, "description", v.Description, "capabilities", capabilityText(v.Capabilities, v.Specialization),
		"examples", strings.Join(v.Examples, "; "), "max concurrency", concurrency, "max execution", execution, "max risk", string(v.MaxRisk),
		"hands to", strings.Join(v.HandsTo, ", "), "accepts from", strings.Join(v.AcceptsFrom, ", "), "handoffs", string(v.Handoffs), "on barred", string(v.OnBarred),
		"expects", expects, "provides", provides, "conversation", conversation,
		"breaker", breakerStanding(v.Breaker), "poll patience", patience, "escalates to", cmp.Or(v.EscalatesTo, protocol.Human), "queued", fmt.Sprint(v.Queued), "updated", explain.Instant(v.UpdatedAt)); err != nil {
		return err
	}
	for _, h := range holders {
		a.printf("worker  %s  %d of %d busy  %s%s\n", h.ID, h.Busy, h.Slots, h.Host, holderNote(h))
	}
	return nil
}

// breakerStanding says since when a breaker keeps handoffs back, what changes that and what closes it.
func breakerStanding(v *api.BreakerStatus) string {
	if v == nil {
		return ""
	}
	words := fmt.Sprintf("%s, %d of %d failed", v.State, v.Failed, v.Policy.Threshold)
	if !v.OpenedAt.IsZero() {
		words += ", opened " + explain.Instant(v.OpenedAt)
	}
	if !v.Until.IsZero() {
		words += ", changes " + explain.Instant(v.Until)
	}
	return words + "; to close it: handoff agents breaker reset " + v.Agent
}

func holderNote(h protocol.Holder) string {
	note := ""
	if h.PID > 0 {
		note += fmt.Sprintf(" pid %d", h.PID)
	}
	if h.Polling {
		note += " (polling)"
	}
	if h.Draining {
		note += " (draining)"
	}
	return note
}
