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
	"github.com/agenthandoff/handoff/internal/assist"
	"github.com/agenthandoff/handoff/protocol"
)

type assistFlag struct {
	Assist string `flag:"assist" doc:"shell {COMMAND} that answers where words are not certain: it reads a question as JSON ($HANDOFF_ASSIST; else the model at $HANDOFF_LLM_URL)"`
}

// assistant returns the assistant for uncertain words; nil where none is configured.
func (a *app) assistant(command string) (assist.Asker, error) {
	command, at := cmp.Or(command, a.env("HANDOFF_ASSIST")), a.env("HANDOFF_LLM_URL")
	if strings.TrimSpace(command) == "" && at == "" {
		return nil, nil
	}
	redactor, err := a.redactor()
	if err != nil {
		return nil, err
	}
	if strings.TrimSpace(command) != "" {
		return assist.Command{Line: command, Dir: a.dir, Redactor: redactor}, nil
	}
	key := a.env("HANDOFF_LLM_KEY")
	if path := a.env("HANDOFF_LLM_KEY_FILE"); path != "" {
		body, err := a.readFile(path)
		if err != nil {
			return nil, usagef("HANDOFF_LLM_KEY_FILE: %v", err)
		}
		key = string(body)
	}
	chat, err := assist.NewChat(assist.ChatConfig{URL: at, Model: a.env("HANDOFF_LLM_MODEL"), Key: key, Redactor: redactor})
	var wrong *protocol.Error
	if errors.As(err, &wrong) {
		return nil, usagef("$HANDOFF_LLM_%s %s", strings.ToUpper(wrong.Field), wrong.Message)
	}
	return chat, err
}

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
// engine itself; if that does not answer, the error stays as it is.
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
	meant := didYouMean(name[1], known)
	if meant == "" || slices.Contains(known, name[1]) { // an agent that was registered since
		return err
	}
	return amended(err, func(e *protocol.Error) {
		e.Message = strings.NewReplacer(name[0], name[0]+meant,
			"; start a worker for it", "; to serve a new one", "; register it", "; to register a new one").Replace(e.Message)
	})
}

// agentNames are the names of all agents; none where the directory is not readable.
func (a *app) agentNames(ctx context.Context, b *broker.Broker) []string {
	directory, err := b.Directory(ctx)
	if err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(directory.Agents))
}

// noteUnknown notes the names that select handoffs and that no agent has. An agent that was removed
// has its past, so this is an error only if nothing is found.
func (a *app) noteUnknown(ctx context.Context, b *broker.Broker, agents []string) {
	for _, agent := range agents {
		if agent == protocol.Human {
			continue
		}
		// A reader may read one profile, but not all: the others are asked for after a slip.
		if _, err := b.Profile(ctx, agent); errors.Is(err, broker.ErrNotFound) {
			a.slip = agent
			a.notef("handoff: no agent is called %s%s\n", agent, didYouMean(agent, a.agentNames(ctx, b)))
		}
	}
}

// oneHyphen matches the refusal of a flag that has one hyphen, such as -to.
var oneHyphen = regexp.MustCompile(`^unknown shorthand flag: '.' in -([^=]+)`)

// flagError suggests the flag, or the command before it, that may have been meant.
func flagError(cmd *cobra.Command, err error) error {
	if args := cmd.Flags().Args(); cmd.HasSubCommands() && len(args) > 0 {
		return refuseUnknown(cmd, args)
	}
	words := err.Error()
	name, unknown := strings.CutPrefix(words, "unknown flag: --")
	if short := oneHyphen.FindStringSubmatch(words); short != nil {
		name, unknown = short[1], true
	}
	if unknown {
		var flags []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, "--"+f.Name) })
		if slices.Contains(flags, "--"+name) {
			words = "-" + name + " is written with two hyphens: --" + name
		} else {
			words += didYouMean("--"+name, flags)
		}
	}
	return usagef("%s; see %s --help", words, cmd.CommandPath())
}

// summarize asks for the summary of the conversation: the summarizer or, without one, the
// assistant. A failure, a time-out or an empty answer is reported, and the extracts remain.
func (a *app) summarize(ctx context.Context, f *packageFlags, pkg *protocol.Package) error {
	command := cmp.Or(f.Summarizer, a.env("HANDOFF_SUMMARIZER"))
	if strings.TrimSpace(command) == "" {
		command = f.Assist
	}
	asker, err := a.assistant(command)
	if err != nil || asker == nil {
		return err
	}
	h := &pkg.Context.HistoryTransfer
	most := protocol.SummaryTokensMax
	if h.MaxTokens > 0 {
		most = min(most, h.MaxTokens)
	}
	summary, err := assist.Summarize(ctx, asker, assist.SummaryRequest{Task: pkg.Task.Description, Requirements: pkg.Task.Requirements,
		MaxTokens: most, Messages: pkg.Context.ConversationHistory})
	if err != nil {
		a.notef("handoff: the summarizer failed, extracts are the summary: %v\n", err)
		return nil
	}
	pkg.Context.Summary, h.By = summary, protocol.SummaryBy(asker.By())
	return nil
}
