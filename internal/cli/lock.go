package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

func newLock(a *app) *cobra.Command {
	var (
		shared bool
		wait   time.Duration
	)
	cmd := &cobra.Command{
		Use:   "lock LEASE PATH...",
		Short: "Lock paths of the workflow from within the work",
		Long: `Lock keeps other handoffs of the workflow from the same paths, all of them or none. A
path with a slash at its end covers what is below. The locks go with the attempt, or by
handoff unlock; what the package declares (submit --lock) stays to the end. It prints a
number that rises with each grant: a tool that remembers the last one refuses an older.

A handoff is not kept out by one above it. Exit code 9: another handoff has a lock
(lock_busy), or waits for one of this (deadlock); nothing was locked.`,
		Example: `  export HANDOFF_LOCK_FENCE=$(handoff lock "$LEASE" src/a.go docs/ --wait 30s)`,
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
		Short:   "Give locks back",
		Long:    `Unlock gives back what handoff lock has locked; without a PATH all of it.`,
		Example: `  handoff unlock "$LEASE" src/a.go`,
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
	return a.onHolder(ctx, lease, func(ctx context.Context, s holder) error {
		if wait > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), wait+a.timeout())
			defer cancel()
		}
		return do(ctx, s)
	})
}

func newVarsSet(a *app) *cobra.Command {
	var version int
	cmd := &cobra.Command{
		Use:   "set LEASE NAME=VALUE...",
		Short: "Set variables from within the work",
		Long: `Set changes variables of the workflow, all of them or none. A value is JSON or a text.
With --if-version none is changed where one has another version: the refusal names what
stands (conflict). A profile may name the variables that its agent sets (scopes).`,
		Example: `  handoff vars set "$LEASE" plan=b --if-version 3`,
		Args:    takesMore("a LEASE", "NAME=VALUE"),
	}
	cmd.Flags().IntVar(&version, "if-version", 0, "the version that each of them has; 0 is not set yet")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		values, err := parseVariables("set", args[1:])
		if err != nil {
			return err
		}
		set := api.SetVariables{Values: values}
		if cmd.Flags().Changed("if-version") {
			set.IfVersion = &version
		}
		return a.onSharer(cmd.Context(), args[0], 0, func(ctx context.Context, s api.Sharer) error {
			w, err := s.SetVariables(ctx, args[0], set)
			if err != nil {
				return leaseRefusal(args[0], err)
			}
			return printed(a, w.Variables, nil, func(map[string]protocol.Variable) error { return a.variables(w) })
		})
	}
	return cmd
}
