package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/clients"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// advise adds a command to the message of a refusal with this code and field. The rooms
// that refuse know no command line.
func advise(err error, code protocol.Code, field, op string, args ...string) error {
	var e *protocol.Error
	if !errors.As(err, &e) || e.Code != code || strings.TrimPrefix(e.Field, "package.") != field {
		return err
	}
	return amended(e, func(e *protocol.Error) { e.Message += ": " + commandLine(explain.NewAction("", op, args...)) })
}

// adviseRaise adds how to raise a budget to a refusal to answer a handoff that waits for that.
func adviseRaise(err error, ticket string) error {
	for _, limit := range []string{"max_tokens", "max_cost_micros"} {
		err = advise(err, protocol.CodeIllegal, "limits."+limit, explain.OpRaise, "ticket", ticket, "limit", limit)
	}
	return err
}

// adviseWorker adds how to start a worker to a refusal for want of one.
func adviseWorker(err error) error {
	var e *protocol.Error
	if !errors.As(err, &e) || e.Error() != err.Error() {
		return err
	}
	name, capability := strings.CutPrefix(e.Target, "capability ")
	switch {
	case capability:
		return advise(err, protocol.CodeNoAgent, "target.capability", explain.OpWork, "capability", name)
	case protocol.CheckAgent("", name) == nil: // not the agents of a group
		return advise(err, protocol.CodeUnknownAgent, "target.agent", explain.OpWork, "agent", name)
	}
	return err
}

// Completions of the shell after <TAB>. Nothing else depends on them.

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
	_ = a.onEngine(ctx, func(ctx context.Context, s *source) error {
		directory, err := s.b.Directory(ctx)
		if err == nil {
			names = slices.Compact(slices.Sorted(slices.Values(slices.AppendSeq(names, maps.Keys(directory.Agents)))))
		}
		return err
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}

func newExample(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "example",
		Short: "Print a script to start an agent from",
		Example: `  handoff example > agent.sh && chmod +x agent.sh
  handoff work --agent reviewer -- ./agent.sh`,
		Args: takes(),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(a.out, worker.ExampleScript())
			return err
		},
	}
}

func newClient(a *app) *cobra.Command {
	files := map[string]string{"python": clients.Python, "js": clients.JavaScript}
	return &cobra.Command{
		Use:   "client python|js",
		Short: "Print a client for Python or JavaScript, a single file",
		Long: `Client prints handoff.py or handoff.mjs: workers and sources over HTTP, in one file
without dependencies. It needs HANDOFF_URL and HANDOFF_TOKEN ("handoff dev env"), but
not in a program that "handoff work --stay" has started.`,
		Example: `  handoff client python > handoff.py
  handoff client js > handoff.mjs
  handoff work --agent summarizer --stay -- python3 summarize.py`,
		Args:      takes("python|js"),
		ValidArgs: []string{"python", "js"},
		RunE: func(_ *cobra.Command, args []string) error {
			file, known := files[args[0]]
			if !known {
				return usagef("client %s: there are python and js", args[0])
			}
			_, err := fmt.Fprint(a.out, file)
			return err
		},
	}
}

// usageFlags are the flags for the usage of an attempt so far.
type usageFlags struct {
	usage protocol.Usage
}

func (f *usageFlags) declare(fs *pflag.FlagSet) {
	fs.Int64Var(&f.usage.Tokens, "tokens", 0, "tokens that this attempt has used so far, in all")
	fs.Var((*costValue)(&f.usage.CostMicros), "cost", "cost of this attempt so far, as 0.03")
}

// declareAll declares the flags of "handoff spend".
func (f *usageFlags) declareAll(fs *pflag.FlagSet) {
	f.declare(fs)
	fs.Int64Var(&f.usage.TokensIn, "tokens-in", 0, "of these, tokens that went into models")
	fs.Int64Var(&f.usage.TokensOut, "tokens-out", 0, "of these, tokens that models have written")
	fs.Int64Var(&f.usage.Calls, "calls", 0, "calls of models so far")
	fs.StringVar(&f.usage.Model, "model", "", "the model that was called last")
}

// given returns the usage from the flags; nil without one.
func (f *usageFlags) given() *protocol.Usage {
	if f.usage == (protocol.Usage{}) {
		return nil
	}
	usage := f.usage
	return &usage
}

// over lays the flags over another usage.
func (f *usageFlags) over(usage *protocol.Usage) *protocol.Usage {
	given := f.given()
	if given == nil || usage == nil {
		return cmp.Or(given, usage)
	}
	laid := *usage
	laid.Tokens, laid.CostMicros = cmp.Or(given.Tokens, laid.Tokens), cmp.Or(given.CostMicros, laid.CostMicros)
	return &laid
}

// costValue is a cost in millionths, written as a decimal number.
type costValue int64

func (c *costValue) String() string {
	if *c == 0 {
		return ""
	}
	return explain.Cost(int64(*c))
}

func (c *costValue) Type() string { return "AMOUNT" }

func (c *costValue) Set(text string) error {
	amount, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(amount) || amount < 0 || amount*1e6 > protocol.UsageMax {
		return protocol.Errorf(protocol.CodeInvalid, "", "must be a number from 0 to %d, not %q", protocol.UsageMax/1_000_000, text)
	}
	*c = costValue(math.Round(amount * 1e6))
	return nil
}

// flagGroup is a heading in the help of a command, and the first flag below it.
type flagGroup struct{ title, first string }

// flagGroups are the headings of commands that have many flags. A flag is in the group
// that begins before it, in the order of the flags.
var flagGroups = map[string][]flagGroup{
	"handoff":            {{"Global flags: output", "output"}, {"Global flags: the engine", "nats"}, {"Global flags: redaction", "redact"}},
	"handoff submit":     groupsOf(submitTopics),
	"handoff work":       {{"The agent", "agent"}, {"Its lease", "lease"}, {"The program", "input"}, {"The process", "drain"}},
	"handoff list":       {{"Which handoffs", "agent"}, {"How they are shown", "sort"}},
	"handoff stats":      {{"Which handoffs", "agent"}, {"How they are shown", "top"}},
	"handoff audit list": {{"Which records", "ticket"}, {"How they are shown", "stale"}},
}

// helpTopic is a page of help about a group of a command's flags, for a command that has more flags than
// a screen.
type helpTopic struct {
	name, title, flags string // in the order of its group
	short, text        string
}

func groupsOf(topics []helpTopic) (groups []flagGroup) {
	for _, topic := range topics {
		groups = append(groups, flagGroup{topic.title, strings.Fields(topic.flags)[0]})
	}
	return groups
}

// dailyFlags are the flags in the help of a command whose others have topics.
var dailyFlags = map[string][]string{"handoff submit": submitDaily}

// addTopics adds the topics of a command. The help of all of them shows the command's own flags.
func (a *app) addTopics(cmd *cobra.Command, topics []helpTopic) {
	for _, topic := range topics {
		page := &cobra.Command{Use: topic.name, Short: topic.short}
		page.SetHelpFunc(func(page *cobra.Command, _ []string) {
			a.printHelp(page, func(w io.Writer) {
				fmt.Fprintf(w, "%s: %s.\n", topic.title, topic.short)
				if topic.text != "" {
					fmt.Fprintln(w, topic.text)
				}
				for title, flags := range flagsByGroup(cmd) {
					if title == topic.title {
						fmt.Fprint(w, "\n"+usageOf("Flags of "+cmd.CommandPath(), flags))
					}
				}
			})
		})
		cmd.AddCommand(page)
	}
}

// flagUsages is the part of a command's help about its own flags.
func flagUsages(cmd *cobra.Command) string {
	var b strings.Builder
	if daily := dailyFlags[cmd.CommandPath()]; daily != nil {
		flags := newFlagPart()
		for _, name := range daily {
			flags.AddFlag(cmd.LocalFlags().Lookup(name))
		}
		b.WriteString("\n" + usageOf("Flags for every day", flags) + "\nMore flags: handoff help " + strings.TrimPrefix(cmd.CommandPath(), "handoff ") + " TOPIC\n")
		for _, topic := range cmd.Commands() {
			fmt.Fprintf(&b, "  %-10s%s\n", topic.Name(), topic.Short)
		}
		return strings.TrimRight(b.String(), "\n")
	}
	for title, flags := range flagsByGroup(cmd) {
		b.WriteString("\n" + usageOf(title, flags))
	}
	return strings.TrimRight(b.String(), "\n")
}

func newFlagPart() *pflag.FlagSet {
	part := pflag.NewFlagSet("", pflag.ContinueOnError)
	part.SortFlags = false
	return part
}

func usageOf(title string, flags *pflag.FlagSet) string {
	return title + ":\n" + strings.TrimRight(flags.FlagUsages(), " \n") + "\n"
}

// flagsByGroup returns the flags of a command by their heading, in order.
func flagsByGroup(cmd *cobra.Command) func(yield func(string, *pflag.FlagSet) bool) {
	return func(yield func(string, *pflag.FlagSet) bool) {
		part, title, on := newFlagPart(), "Flags", true
		flush := func() {
			if on && part.HasAvailableFlags() {
				on = yield(title, part)
			}
			part = newFlagPart()
		}
		groups := flagGroups[cmd.CommandPath()]
		flags := cmd.LocalFlags()
		flags.SortFlags = flags.SortFlags && len(groups) == 0
		flags.VisitAll(func(f *pflag.Flag) {
			if at := slices.IndexFunc(groups, func(g flagGroup) bool { return g.first == f.Name }); at >= 0 {
				flush()
				title = groups[at].title
			}
			part.AddFlag(f)
		})
		flush()
	}
}

// Templates are the same for all, and many command lines run in one process.
func init() {
	cobra.AddTemplateFunc("flagUsages", flagUsages)
	cobra.AddTemplateFunc("listsTopics", func(cmd *cobra.Command) bool {
		return cmd.HasHelpSubCommands() && dailyFlags[cmd.CommandPath()] == nil
	})
}

// groupFlags has the help of all commands fit its reader's terminal and show flags in groups, and the
// global ones at the root alone.
func (a *app) groupFlags(root *cobra.Command) {
	render := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		out := cmd.OutOrStdout()
		a.printHelp(cmd, func(w io.Writer) {
			cmd.SetOut(w)
			defer cmd.SetOut(out)
			render(cmd, args)
		})
	})
	template := root.UsageTemplate()
	const own = "\n\nFlags:\n{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}"
	const inherited = "\n\nGlobal Flags:\n{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}"
	template = strings.Replace(template, own, "\n{{flagUsages .}}", 1)
	template = strings.Replace(template, inherited, "\n\nGlobal flags (output, the engine, redaction): handoff --help", 1)
	template = strings.Replace(template, "{{if .HasHelpSubCommands}}", "{{if listsTopics .}}", 1)
	root.SetUsageTemplate(template)
}

// Help has 80 columns in a pipe, and at most 100 on a terminal: longer lines are hard to follow.
const (
	helpColumns = 80
	helpWidest  = 100
)

// printHelp prints a page of help that write makes, as wide as its reader sees it.
func (a *app) printHelp(cmd *cobra.Command, write func(io.Writer)) {
	var page strings.Builder
	write(&page)
	fmt.Fprint(cmd.OutOrStdout(), fitHelp(page.String(), min(cmp.Or(a.width, helpColumns), helpWidest)))
}

// fitHelp wraps a page of help: paragraphs as a whole, and the second column of a list or of flags
// below its own beginning. Commands, to be copied, and lines of more columns stay as they are.
func fitHelp(page string, most int) string {
	var fitted []string
	var head, text string
	flush := func() {
		if head+text != "" {
			fitted = append(fitted, hanging(head, text, most)...)
		}
		head, text = "", ""
	}
	examples := false
	for line := range strings.Lines(page) {
		line = strings.TrimSuffix(line, "\n")
		words := strings.TrimLeft(line, " ")
		switch indent := len(line) - len(words); {
		case indent == 0 && line != "" && head == "":
			examples = line == "Examples:"
			text = strings.TrimLeft(text+" "+line, " ")
		case indent > 0 && indent == columnsOf(head) && strings.TrimSpace(head) != "":
			text += " " + words
		default:
			flush()
			first := firstColumn.FindString(line)
			if examples = examples && indent > 0 || line == "Examples:"; examples || line == "" || strings.HasPrefix(words, "handoff ") || strings.Contains(line[len(first):], "  ") {
				fitted = append(fitted, line)
			} else {
				head, text = first, line[len(first):]
			}
		}
	}
	flush()
	return strings.Join(fitted, "\n") + "\n"
}

// firstColumn matches the first column of a line in a list, with the space behind it. Of a line
// without columns it matches the indent.
var firstColumn = regexp.MustCompile(`^ *(?:\S+(?: \S+)*  +)?`)

// hanging returns a text behind a head, wrapped below the text's own beginning.
func hanging(head, text string, most int) []string {
	indent := strings.Repeat(" ", columnsOf(head))
	lines := wrapColumns(text, max(most-len(indent), 20))
	for i := range lines {
		lines[i] = head + lines[i]
		head = indent
	}
	return lines
}
