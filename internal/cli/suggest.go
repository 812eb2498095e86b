package cli

import (
	"context"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// didYouMean is " (did you mean …?)" for the name that is nearest to one, or empty.
func didYouMean(name string, known []string) string {
	near := protocol.Nearest(name, known)
	if len(near) == 0 {
		return ""
	}
	return " (did you mean " + near[0] + "?)"
}

// noAgent matches the refusal of a name that no agent has.
var noAgent = regexp.MustCompile(`no agent is called ([^ ;,]+)`)

// suggestWithin is how long an error may wait for the names of the agents.
const suggestWithin = 2 * time.Second

// suggestAgent adds the agent that may have been meant to the refusal of a name. It asks the
// engine itself; the error stands as it is where that does not answer.
func (a *app) suggestAgent(ctx context.Context, err error) error {
	var e *protocol.Error
	if a.engine == nil || !errors.As(err, &e) || e.Code != protocol.CodeUnknownAgent || e.Error() != err.Error() {
		return err
	}
	name := noAgent.FindStringSubmatch(e.Message)
	if name == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, suggestWithin)
	defer cancel()
	b, done, failure := a.connect(ctx)
	if failure != nil {
		return err
	}
	defer done()
	known := a.agentNames(ctx, b)
	suggested := *e
	suggested.Message = strings.Replace(e.Message, name[0], name[0]+didYouMean(name[1], known), 1)
	return &suggested
}

// agentNames are the names of all agents; none where the directory is not readable.
func (a *app) agentNames(ctx context.Context, b *broker.Broker) []string {
	directory, err := b.Directory(ctx)
	if err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(directory.Agents))
}

// noteUnknown says which names that select handoffs no agent has: a slip selects none. An
// agent that was removed has its past, so that it is no error.
func (a *app) noteUnknown(ctx context.Context, b *broker.Broker, agents []string) {
	for _, agent := range agents {
		if agent == protocol.Human {
			continue
		}
		// A reader may read one profile, but not all: the others are asked for after a slip.
		if _, err := b.Profile(ctx, agent); errors.Is(err, broker.ErrNotFound) {
			a.notef("handoff: no agent is called %s%s\n", agent, didYouMean(agent, a.agentNames(ctx, b)))
		}
	}
}

// flagError says which flag, or which command before it, may have been meant.
func flagError(cmd *cobra.Command, err error) error {
	if args := cmd.Flags().Args(); cmd.HasSubCommands() && len(args) > 0 {
		return refuseUnknown(cmd, args)
	}
	words := err.Error()
	if name, unknown := strings.CutPrefix(words, "unknown flag: --"); unknown {
		var flags []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, "--"+f.Name) })
		words += didYouMean("--"+name, flags)
	}
	return usagef("%s; see %s --help", words, cmd.CommandPath())
}
