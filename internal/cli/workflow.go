package cli

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

func newWorkflow(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:   "workflow",
		Short: "Limit a workflow, and share variables and locks within it",
		Long: `The handoffs of a workflow share a workspace: a limit of how many there may be, locks
on paths (workflow lock) and variables (workflow vars). It exists once it was opened.`,
	}, newWorkflowOpen(a),
		one(a, "workflow show", "release-7", "Show the limits, handoffs, locks and variables of a workflow", "", (*api.Session).Workspace, a.workflow),
		newWorkflowList(a),
		one(a, "workflow close", "release-7", "Close a workflow: no further handoff joins it",
			`Close ends a workflow for good: no handoff joins it. Those that are open go on.`, (*api.Session).CloseWorkspace, a.workflow),
		newVars(a), newLock(a), newUnlock(a))
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

Through a gateway the name of a workflow is no key. Those may join it that --agents
lists, the agent whose submission through the gateway opened it, and the handoffs below
theirs. Without --agents nothing joins there from outside; commands on the engine itself
are not bound.`,
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

func newWorkflowList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the workflows that were opened",
		Example: `  handoff workflow list`,
		Args:    takes(),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, _ []string) error {
			all, err := s.Workspaces(ctx)
			return printed(a, orEmpty(all), err, a.workflows)
		}),
	}
}

// workflows prints a line for each workspace.
func (a *app) workflows(all []protocol.Workspace) error {
	return a.table(rowsOf("WORKFLOW|HANDOFFS|OF|OPEN|LOCKS|WAITING|VARIABLES", all, func(w protocol.Workspace) []any {
		name := w.Name
		if !w.ClosedAt.IsZero() {
			name += " (closed)"
		}
		return []any{name, w.Drawn, limitWord(w.Limits.MaxHandoffs), len(w.Draws), len(w.Locks), len(w.Waiting), len(w.Variables)}
	}))
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

func newVars(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:   "vars",
		Short: "Read and write the variables of a workflow",
		Long: `Variables are shared by the handoffs of a workflow. Each has a JSON value and a
version, which rises by one with each change.`,
	}, newVarsGet(a), newVarsList(a), newVarsSet(a), newVarsResolve(a))
}

func newVarsGet(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "get WORKFLOW NAME",
		Short:   "Print the value of a variable",
		Example: `  handoff workflow vars get release-7 plan`,
		Args:    takes("a WORKFLOW", "a NAME"),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			w, err := s.Workspace(ctx, args[0])
			if err != nil {
				return err
			}
			v, there := w.Variables[args[1]]
			if !there {
				return protocol.Errorf(protocol.CodeNotFound, "variables", "%s has no variable %s; see handoff workflow vars list %s", w.Name, protocol.CutText(args[1], 64), w.Name)
			}
			return a.line(v, "%s\n", string(v.Value))
		}),
	}
}

func newVarsList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list WORKFLOW",
		Short:   "List the variables of a workflow",
		Example: `  handoff workflow vars list release-7`,
		Args:    takes("a WORKFLOW"),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			w, err := s.Workspace(ctx, args[0])
			if w.Variables == nil {
				w.Variables = map[string]protocol.Variable{}
			}
			return printed(a, w.Variables, err, func(map[string]protocol.Variable) error { return a.variables(w) })
		}),
	}
}

// varsCommand is a command that sets variables of the thing that its first argument names.
func varsCommand(cmd *cobra.Command, first string, run func(ctx context.Context, name string, set api.SetVariables) error) *cobra.Command {
	var version int
	cmd.Args = takesMore(first, "NAME=VALUE")
	cmd.Flags().IntVar(&version, "if-version", 0, "the version that each of them has; 0 is not set yet")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		values, err := parseVariables(cmd.Name(), args[1:])
		if err != nil {
			return err
		}
		set := api.SetVariables{Values: values}
		if cmd.Flags().Changed("if-version") {
			set.IfVersion = &version
		}
		return run(cmd.Context(), args[0], set)
	}
	return cmd
}

func newVarsResolve(a *app) *cobra.Command {
	return varsCommand(&cobra.Command{
		Use:   "resolve WORKFLOW NAME=VALUE...",
		Short: "Settle variables from outside of the work",
		Long: `Resolve sets variables as the one in charge of the workflow, for example where agents
returned different values for one name. A value is JSON or a text. All of them are set,
or none. With --if-version none is where one of them has another version.`,
		Example: `  handoff workflow vars resolve release-7 plan='"b"' --if-version 3`,
	}, "a WORKFLOW", func(ctx context.Context, workflow string, set api.SetVariables) error {
		return a.onEngine(ctx, func(ctx context.Context, s *source) error {
			w, err := s.session.ResolveVariables(ctx, workflow, set)
			return printed(a, w, err, a.variables)
		})
	})
}

func newVarsSet(a *app) *cobra.Command {
	return varsCommand(&cobra.Command{
		Use:   "set LEASE NAME=VALUE...",
		Short: "Set variables from within the work",
		Long: `Set changes variables of the workflow, all of them or none. A value is JSON or a text.
With --if-version none is changed if one has another version: the refusal names the
present version (conflict). A profile may name the variables that its agent sets (scopes).`,
		Example: `  handoff workflow vars set "$LEASE" plan=b --if-version 3`,
	}, "a LEASE", func(ctx context.Context, lease string, set api.SetVariables) error {
		return a.onSharer(ctx, lease, 0, func(ctx context.Context, s api.Sharer) error {
			w, err := s.SetVariables(ctx, lease, set)
			return printed(a, w.Variables, leaseRefusal(lease, err), func(map[string]protocol.Variable) error { return a.variables(w) })
		})
	})
}

// variables prints a line for each variable of a workspace.
func (a *app) variables(w protocol.Workspace) error {
	for _, name := range slices.Sorted(maps.Keys(w.Variables)) {
		v := w.Variables[name]
		a.printf("  %s = %s  version %d, by %s\n", name, string(v.Value), v.Version, v.By)
	}
	return nil
}

func newLock(a *app) *cobra.Command {
	var (
		shared bool
		wait   time.Duration
	)
	cmd := &cobra.Command{
		Use:   "lock LEASE PATH...",
		Short: "Lock paths of the workflow from within the work",
		Long: `Lock keeps other handoffs of the workflow from the same paths, all of them or none. A
path with a slash at its end covers all below it. The locks end with the attempt, or by
handoff workflow unlock; those that the package declares (submit --lock) end with the handoff. It prints a
number that rises with each grant: a tool that remembers the last one refuses an older.

A handoff is not kept out by one above it. Exit code 9: another handoff has a lock
(lock_busy), or waits for one of this (deadlock); nothing was locked.`,
		Example: `  export HANDOFF_LOCK_FENCE=$(handoff workflow lock "$LEASE" src/a.go docs/ --wait 30s)`,
		Args:    takesMore("a LEASE", "a PATH"),
	}
	cmd.Flags().BoolVar(&shared, "shared", false, "share the paths with others that read them")
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait for the locks for so long")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request := api.Lock{Lease: args[0], Paths: lockPaths(args[1:], shared), Wait: wait}
		if err := request.Validate(); err != nil {
			return err
		}
		return a.onSharer(cmd.Context(), args[0], wait, func(ctx context.Context, s api.Sharer) error {
			seq, err := s.Lock(ctx, request)
			if err != nil {
				return leaseRefusal(args[0], err)
			}
			return a.line(map[string]any{"seq": seq, "paths": args[1:]}, "%d\n", seq)
		})
	}
	return cmd
}

func newUnlock(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "unlock LEASE [PATH...]",
		Short:   "Release locks",
		Long:    `Unlock releases paths that handoff workflow lock has locked; without a PATH all of them.`,
		Example: `  handoff workflow unlock "$LEASE" src/a.go`,
		Args:    takesMore("a LEASE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onSharer(cmd.Context(), args[0], 0, func(ctx context.Context, s api.Sharer) error {
				state, err := s.Unlock(ctx, args[0], lockPaths(args[1:], false))
				if err != nil {
					return leaseRefusal(args[0], err)
				}
				return a.line(map[string]any{"ticket": state.Ticket, "paths": args[1:]}, "unlocked %s\n", strings.Join(args[1:], " "))
			})
		},
	}
}

func lockPaths(paths []string, shared bool) (locks []protocol.LockPath) {
	mode := protocol.LockExclusive
	if shared {
		mode = protocol.LockShared
	}
	for _, path := range paths {
		locks = append(locks, protocol.LockPath{Path: path, Mode: mode})
	}
	return locks
}

// onSharer does something with a LEASE in its workspace. It has so much longer than a command as it
// may wait for a lock.
func (a *app) onSharer(ctx context.Context, lease string, wait time.Duration, do func(context.Context, api.Sharer) error) error {
	return a.onHolder(ctx, lease, func(ctx context.Context, s *source) error {
		if wait > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), wait+a.timeout())
			defer cancel()
		}
		return do(ctx, s)
	})
}
