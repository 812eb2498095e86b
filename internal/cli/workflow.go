package cli

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

func newWorkflow(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "workflow",
		Short: "Bound a workflow, and see what its handoffs share",
		Long: `The handoffs of a workflow share a workspace: a limit of how many there may be, locks
on paths (handoff lock) and variables (handoff vars). It is there once it was opened.`,
		RunE: refuseUnknown,
	}
	cmd.AddCommand(newWorkflowOpen(a), newWorkflowShow(a), newWorkflowList(a), newWorkflowClose(a))
	return cmd
}

func newWorkflowOpen(a *app) *cobra.Command {
	var most int
	var agents []string
	cmd := &cobra.Command{
		Use:   "open NAME",
		Short: "Open a workflow, or change its limits",
		Long: `Open makes the workspace of a workflow. --max-handoffs is how many handoffs there may
be in all, those that have closed among them; 0 is none. Again with another number it
changes the limit, and without one it removes it.

Through a gateway the name of a workflow is no key. Those may join it that --agents lists, the
agent whose submission through the gateway opened it, and what they hand off within. Without
--agents nothing joins there from outside; commands on the engine itself are not bound.`,
		Example: `  handoff workflow open release-7 --max-handoffs 20
  handoff workflow open release-7 --agents planner,'build-*'`,
		Args: takes("a NAME"),
	}
	cmd.Flags().IntVar(&most, "max-handoffs", 0, "how many handoffs the workflow may have in all")
	cmd.Flags().StringSliceVar(&agents, "agents", nil, "which agents may join through a gateway: `PATTERN…`, ids or beginnings such as build-*")
	cmd.RunE = a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
		var limits protocol.WorkspaceLimits
		if cmd.Flags().Changed("max-handoffs") {
			limits.MaxHandoffs = &most
		}
		limits.Agents = agents
		w, err := s.OpenWorkspace(ctx, args[0], limits)
		return printed(a, w, err, a.workflow)
	})
	return cmd
}

func newWorkflowClose(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "close NAME",
		Short:   "Let no handoff join a workflow any more",
		Long:    `Close ends a workflow for good: no handoff joins it. Those that are open go on.`,
		Example: `  handoff workflow close release-7`,
		Args:    takes("a NAME"),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			w, err := s.CloseWorkspace(ctx, args[0])
			return printed(a, w, err, a.workflow)
		}),
	}
}

func newWorkflowShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "show NAME",
		Short:   "Show the limits, handoffs, locks and variables of a workflow",
		Example: `  handoff workflow show release-7`,
		Args:    takes("a NAME"),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			w, err := s.Workspace(ctx, args[0])
			return printed(a, w, err, a.workflow)
		}),
	}
}

func newWorkflowList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the workflows that were opened",
		Example: `  handoff workflow list`,
		Args:    takes(),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, _ []string) error {
			all, err := s.Workspaces(ctx)
			if all == nil {
				all = []protocol.Workspace{}
			}
			return printed(a, all, err, a.workflows)
		}),
	}
}

// workflows prints a line for each workspace.
func (a *app) workflows(all []protocol.Workspace) error {
	rows := [][]string{{"WORKFLOW", "HANDOFFS", "OF", "OPEN", "LOCKS", "WAITING", "VARIABLES"}}
	for _, w := range all {
		name := w.Name
		if !w.ClosedAt.IsZero() {
			name += " (closed)"
		}
		rows = append(rows, []string{name, strconv.Itoa(w.Drawn), limitWord(w.Limits.MaxHandoffs), strconv.Itoa(len(w.Draws)),
			strconv.Itoa(len(w.Locks)), strconv.Itoa(len(w.Waiting)), strconv.Itoa(len(w.Variables))})
	}
	return a.table(rows)
}

func limitWord(most *int) string {
	if most == nil {
		return "any number"
	}
	return strconv.Itoa(*most)
}

// workflow prints a workspace: a line for all of it, and one for each handoff, lock and variable.
func (a *app) workflow(w protocol.Workspace) error {
	state := "open"
	if !w.ClosedAt.IsZero() {
		state = "closed"
	}
	a.printf("%s  %s, %d of %s handoffs, %d open\n", w.Name, state, w.Drawn, limitWord(w.Limits.MaxHandoffs), len(w.Draws))
	if len(w.Limits.Agents) > 0 {
		a.printf("  joined through a gateway by %s\n", strings.Join(w.Limits.Agents, ", "))
	}
	for _, j := range w.Log {
		phase := "ended"
		if _, open := w.Draw(j.Ticket); open {
			phase = "open"
		}
		a.printf("  %s  %s -> %s  %s\n", j.Ticket, j.From, j.To, phase)
	}
	for _, l := range w.Locks {
		a.printf("  lock %s  %s, %d, of %s\n", l.Path, l.Mode, l.Seq, l.Ticket)
	}
	for _, l := range w.Waiting {
		for _, path := range l.Locks {
			a.printf("  waits for %s  %s, %s\n", path.Path, path.Mode, l.Ticket)
		}
	}
	return a.variables(w)
}
