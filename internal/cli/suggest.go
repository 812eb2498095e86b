package cli

import (
	"cmp"
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

// editsMax is how many edits make one name of another: a slip or two.
const editsMax = 2

// didYouMean is " (did you mean …?)" for the names that are near to one, or empty.
func didYouMean(name string, known []string) string {
	type candidate struct {
		name  string
		edits int
	}
	var near []candidate
	for _, k := range known {
		most := min(editsMax, len(k)/2)
		if n := edits(name, k); n <= most || len(name) > editsMax && strings.HasPrefix(k, name) {
			near = append(near, candidate{k, n})
		}
	}
	if len(near) == 0 {
		return ""
	}
	best := slices.MinFunc(near, func(x, y candidate) int {
		return cmp.Or(cmp.Compare(x.edits, y.edits), strings.Compare(x.name, y.name))
	})
	return " (did you mean " + best.name + "?)"
}

// edits counts the letters to insert, leave out, change or swap with the next to make b of a.
func edits(a, b string) int {
	x, y := []rune(a), []rune(b)
	rows := make([][]int, len(x)+1)
	for i := range rows {
		rows[i] = make([]int, len(y)+1)
		rows[i][0] = i
	}
	for j := range y {
		rows[0][j+1] = j + 1
	}
	for i := range x {
		for j := range y {
			change := 1
			if x[i] == y[j] {
				change = 0
			}
			rows[i+1][j+1] = min(rows[i][j+1]+1, rows[i+1][j]+1, rows[i][j]+change)
			if i > 0 && j > 0 && x[i] == y[j-1] && x[i-1] == y[j] {
				rows[i+1][j+1] = min(rows[i+1][j+1], rows[i-1][j-1]+1)
			}
		}
	}
	return rows[len(x)][len(y)]
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
