package cli

import (
	"context"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

func newVars(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "vars",
		Short: "Read and write the variables of a workflow",
		Long: `Variables are what the handoffs of a workflow share in words and numbers. Each has a
version, which rises by one with each change.`,
		RunE: refuseUnknown,
	}
	cmd.AddCommand(newVarsGet(a), newVarsList(a), newVarsSet(a), newVarsResolve(a))
	return cmd
}

func newVarsGet(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "get WORKFLOW NAME",
		Short:   "Print the value of a variable",
		Example: `  handoff vars get release-7 plan`,
		Args:    takes("a WORKFLOW", "a NAME"),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			w, err := s.Workspace(ctx, args[0])
			if err != nil {
				return err
			}
			v, there := w.Variables[args[1]]
			if !there {
				return protocol.Errorf(protocol.CodeNotFound, "variables", "%s has no variable %s; see handoff vars list %s", w.Name, protocol.CutText(args[1], 64), w.Name)
			}
			return a.line(v, "%s\n", string(v.Value))
		}),
	}
}

func newVarsList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list WORKFLOW",
		Short:   "List the variables of a workflow",
		Example: `  handoff vars list release-7`,
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

func newVarsResolve(a *app) *cobra.Command {
	var version int
	cmd := &cobra.Command{
		Use:   "resolve WORKFLOW NAME=VALUE...",
		Short: "Settle variables from outside of the work",
		Long: `Resolve sets variables as the one in charge of the workflow, for example where agents
returned different values for one name. A value is JSON or a text. All of them are set,
or none. With --if-version none is where one of them has another version.`,
		Example: `  handoff vars resolve release-7 plan='"b"' --if-version 3`,
		Args:    takesMore("a WORKFLOW", "NAME=VALUE"),
	}
	cmd.Flags().IntVar(&version, "if-version", 0, "the version that each of them has; 0 is not set yet")
	cmd.RunE = a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
		values, err := parseVariables("resolve", args[1:])
		if err != nil {
			return err
		}
		set := api.SetVariables{Values: values}
		if cmd.Flags().Changed("if-version") {
			set.IfVersion = &version
		}
		w, err := s.ResolveVariables(ctx, args[0], set)
		return printed(a, w, err, a.variables)
	})
	return cmd
}

// variables prints a line for each variable of a workspace.
func (a *app) variables(w protocol.Workspace) error {
	for _, name := range slices.Sorted(maps.Keys(w.Variables)) {
		v := w.Variables[name]
		a.printf("  %s = %s  version %d, by %s\n", name, string(v.Value), v.Version, v.By)
	}
	return nil
}

// takesMore checks that there are at least these arguments.
func takesMore(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return takes(names...)(cmd, args)
		}
		return nil
	}
}
