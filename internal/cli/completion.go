package cli

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// What the shell completes after <TAB>. Nothing else depends on it.

// words completes a flag with the values that it may have. cobra keeps completion
// functions in a process-wide map, so only a shell's request registers any.
func (a *app) words(cmd *cobra.Command, flag string, values ...string) {
	if !a.completing {
		return
	}
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // fails for flags that are not there
}

// agentWords completes the name of an agent, if an engine answers at once.
func (a *app) agentWords(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), time.Second)
	defer cancel()
	names := []string{protocol.Human}
	_ = a.onEngine(ctx, func(ctx context.Context, b *broker.Broker) error {
		directory, err := b.Directory(ctx)
		if err == nil {
			names = slices.Compact(slices.Sorted(slices.Values(slices.AppendSeq(names, maps.Keys(directory.Agents)))))
		}
		return err
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}

// agentFlags completes flags that name agents.
func (a *app) agentFlags(cmd *cobra.Command, flags ...string) {
	if !a.completing {
		return
	}
	for _, flag := range flags {
		_ = cmd.RegisterFlagCompletionFunc(flag, a.agentWords)
	}
}
