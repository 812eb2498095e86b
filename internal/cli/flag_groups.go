package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagGroup is a heading in the help of a command, and the first flag below it.
type flagGroup struct{ title, first string }

// flagGroups are the headings of commands that have many flags. A flag stands in the group
// that begins before it, in the order of the flags.
var flagGroups = map[string][]flagGroup{
	"handoff": {{"Global flags: output", "output"}, {"Global flags: the engine", "nats"}, {"Global flags: redaction", "redact"}},
	"handoff submit": {{"The work", "file"}, {"Its context", "conversation"}, {"What its result and its target must be", "output-schema"},
		{"Time", "deadline"}, {"What comes back", "return"}, {"Groups", "group"}, {"What it shares", "workspace"}, {"Policy", "policy"},
		{"From work in hand", "under"}, {"How to submit", "lines"}},
	"handoff work":       {{"The agent", "agent"}, {"Its lease", "lease"}, {"The program", "result"}, {"The process", "drain"}},
	"handoff list":       {{"Which handoffs", "agent"}, {"How they are shown", "sort"}},
	"handoff stats":      {{"Which handoffs", "agent"}, {"How they are shown", "top"}},
	"handoff audit list": {{"Which records", "ticket"}, {"How they are shown", "stale"}},
}

// flagUsages is the part of a command's help about its own flags.
func flagUsages(cmd *cobra.Command) string {
	var b strings.Builder
	part, title := pflag.NewFlagSet("", pflag.ContinueOnError), "Flags"
	part.SortFlags = false
	flush := func() {
		if part.HasAvailableFlags() {
			b.WriteString("\n" + title + ":\n" + strings.TrimRight(part.FlagUsages(), " \n") + "\n")
		}
		part = pflag.NewFlagSet("", pflag.ContinueOnError)
		part.SortFlags = false
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
	return strings.TrimRight(b.String(), "\n")
}

// Templates are the same for all, and many command lines run in one process.
func init() { cobra.AddTemplateFunc("flagUsages", flagUsages) }

// groupFlags has the help of all commands show flags in groups, and the global ones at the
// root alone.
func groupFlags(root *cobra.Command) {
	template := root.UsageTemplate()
	const own = "\n\nFlags:\n{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}"
	const inherited = "\n\nGlobal Flags:\n{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}"
	template = strings.Replace(template, own, "\n{{flagUsages .}}", 1)
	template = strings.Replace(template, inherited, "\n\nGlobal flags (output, the engine, redaction): handoff --help", 1)
	root.SetUsageTemplate(template)
}
