package cli

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// changesMax is how often a change of the fleet's settings is tried that others overtake.
const changesMax = 10

func newFleet(a *app) *cobra.Command {
	show := a.onSession(func(ctx context.Context, s *api.Session, _ []string) error {
		fleet, err := s.Fleet(ctx)
		return printed(a, fleet, err, a.settings)
	})
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "See and change what holds for all agents",
		Long: `Fleet prints the settings that hold for all agents, and changes them. The profile of
an agent (handoff agents put) wins over them, and a package (handoff submit) over both.

A change holds for what is offered from then on; processes that submit all the time
have it within 10 seconds. What waits in a queue already keeps its policy.`,
		Example: `  handoff fleet
  handoff fleet set policy.on_no_taker=queue
  handoff fleet unset policy.on_no_taker`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return refuseUnknown(cmd, args)
			}
			return show(cmd, args)
		},
	}
	cmd.AddCommand(&cobra.Command{
		Use: "show", Short: "Print the settings, the defaults among them",
		Example: "  handoff fleet show\n  handoff fleet show -o json > fleet.json",
		Args:    takes(), RunE: show,
	}, newFleetSet(a), newFleetUnset(a), newFleetPut(a))
	return cmd
}

func newFleetSet(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "set NAME=VALUE...",
		Short: "Change settings by their names",
		Long: `Set changes the settings that are named, and no other. A name is the path of a field
of the settings, a value is JSON or a text. All of them are changed, or none.`,
		Example: `  handoff fleet set policy.on_no_taker=queue policy.max_attempts=5`,
		Args:    atLeastOne("NAME=VALUE"), ValidArgsFunction: settingWords("="),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			values, err := parseVariables("set", args)
			if err != nil {
				return err
			}
			fleet, err := changeFleet(ctx, s, func(f api.Fleet) (api.Fleet, error) { return withSettings(f, values) })
			return a.changedFleet(ctx, s, fleet, err)
		}),
	}
}

func newFleetUnset(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "unset NAME...",
		Short:   "Let the defaults hold again",
		Long:    `Unset removes settings. A name may be a whole subject, such as policy.`,
		Example: `  handoff fleet unset policy.on_no_taker`,
		Args:    atLeastOne("a NAME"), ValidArgsFunction: settingWords(""),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			unset := map[string]json.RawMessage{}
			for _, path := range args {
				unset[path] = nil
			}
			fleet, err := changeFleet(ctx, s, func(f api.Fleet) (api.Fleet, error) { return withSettings(f, unset) })
			return a.changedFleet(ctx, s, fleet, err)
		}),
	}
}

func newFleetPut(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "put FILE",
		Short: "Replace all settings by those of a file",
		Long: `Put replaces all settings by those of a JSON file, or of stdin with -. Where the file
has the revision that handoff fleet -o json prints, it replaces that revision only.`,
		Example: `  handoff fleet put fleet.json`,
		Args:    takes("a FILE"),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			body, err := a.read(args[0])
			if err != nil {
				return err
			}
			var wanted api.Fleet
			if err := protocol.DecodeStrict(body, "fleet", protocol.FleetBytesMax, &wanted); err != nil {
				return err
			}
			if wanted.Revision != 0 {
				fleet, err := s.PutFleet(ctx, wanted)
				return a.changedFleet(ctx, s, fleet, err)
			}
			fleet, err := changeFleet(ctx, s, func(f api.Fleet) (api.Fleet, error) {
				return api.Fleet{Fleet: wanted.Fleet, Revision: f.Revision}, nil
			})
			return a.changedFleet(ctx, s, fleet, err)
		}),
	}
}

// changeFleet changes the settings of the fleet, again where another change came first.
func changeFleet(ctx context.Context, s api.Directory, change func(api.Fleet) (api.Fleet, error)) (api.Fleet, error) {
	for try := 1; ; try++ {
		fleet, err := s.Fleet(ctx)
		if err == nil {
			fleet, err = change(fleet)
		}
		if err != nil {
			return fleet, err
		}
		changed, err := s.PutFleet(ctx, fleet)
		if try == changesMax || !hasCode(protocol.CodeConflict)(err) {
			return changed, err
		}
	}
}

// atLeastOne refuses a command without an argument.
func atLeastOne(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return takes(name)(cmd, args)
		}
		return nil
	}
}
