package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

func newAgentsBreaker(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "breaker [AGENT]",
		Short: "Show the breakers of agents, or of one",
		Long: `Breaker shows what the breakers of agents let through: everything (closed), nothing
(open), or a probe (half-open). An agent has one where the fleet has settings for all
of them (handoff fleet set breaker.threshold=3), or its own profile does.`,
		Example: `  handoff agents breaker
  handoff agents breaker coder -o json
  handoff agents breaker reset coder`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.agentWords,
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			all, err := s.Breakers(ctx)
			if err != nil || len(args) == 0 {
				return printedList(a, all, err, a.breakers)
			}
			if _, err := s.Profile(ctx, args[0]); err != nil {
				return err
			}
			at := slices.IndexFunc(all, func(v api.BreakerStatus) bool { return v.Agent == args[0] })
			if at < 0 {
				return protocol.Errorf(protocol.CodeNotFound, "breaker", "%s has none; give it one: handoff fleet set breaker.threshold=3", args[0])
			}
			return printed(a, all[at], nil, a.breaker)
		}),
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "reset AGENT",
		Short: "Close the breaker of an agent, and forget its failures",
		Long: `Reset closes the breaker of an agent that has recovered, and forgets its failures.
What waits for it is offered.`,
		Example: `  handoff agents breaker reset coder`,
		Args:    takes("an AGENT"), ValidArgsFunction: a.agentWords,
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			v, err := s.ResetBreaker(ctx, args[0])
			if err != nil {
				return err
			}
			return a.line(v, "%s  breaker closed\n", v.Agent)
		}),
	})
	return cmd
}

func (a *app) breakers(all []api.BreakerStatus) error {
	if len(all) == 0 {
		a.notef("no agent has a breaker; give one to all: handoff fleet set breaker.threshold=3\n")
		return nil
	}
	rows := [][]string{{"AGENT", "BREAKER", "FAILED", "LAST FAILURE", "CHANGES"}}
	for _, v := range all {
		last := ""
		if v.LastFailure != nil {
			last = explain.Instant(v.LastFailure.At) + " " + string(v.LastFailure.End)
		}
		rows = append(rows, []string{v.Agent, string(v.State), fmt.Sprintf("%d/%d", v.Failed, v.Policy.Threshold), last, explain.Instant(v.Until)})
	}
	return a.table(rows)
}

// breaker prints one breaker.
func (a *app) breaker(v api.BreakerStatus) error {
	a.printf("%s  %s\n", v.Agent, v.State)
	changes := ""
	switch {
	case v.State == lifecycle.BreakerOpen:
		changes = "half-open at " + explain.Instant(v.Until)
	case v.State == lifecycle.BreakerHalfOpen && len(v.Probes) == 0:
		changes = "the next handoff is a probe"
	}
	if err := a.fields("failed", fmt.Sprintf("%d of %d", v.Failed, v.Policy.Threshold), "opened", explain.Instant(v.OpenedAt),
		"changes", changes, "settings", breakerWords(v.Policy)); err != nil {
		return err
	}
	for _, ticket := range v.Failures {
		a.printf("failed  %s\n", ticket)
	}
	for _, ticket := range v.Probes {
		a.printf("probe  %s\n", ticket)
	}
	return nil
}

// breakerWords say the settings of a breaker.
func breakerWords(p protocol.BreakerPolicy) string {
	return fmt.Sprintf("opens for %s, at most %s, when %d different handoffs and %d %% of those within %s failed; %d at once try it again",
		explain.Millis(p.OpenMS), explain.Millis(p.OpenMaxMS), p.Threshold, p.SharePercent, explain.Millis(p.WindowMS), p.Probes)
}
