package demo

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// Limits of the files that an agent reads, so that the demo ends within a minute in a home directory, too.
const (
	fileBytesMax = 1 << 20
	readBytesMax = 128 << 20 // of all files together, each as at least a block
	listedMax    = 10        // entries of each list in a package
)

// dependencies are directories with generated or foreign files.
var dependencies = []string{"node_modules", "vendor", "target", "dist", "build", "venv", "__pycache__"}

// readFiles calls visit with each readable text file below dir, without following links. cut reports
// whether a limit or the end of ctx left files out.
func readFiles(ctx context.Context, dir string, visit func(path, language string, body []byte)) (cut bool) {
	read := int64(0)
	_ = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if ctx.Err() != nil || read > readBytesMax {
			cut = true
			return filepath.SkipAll
		}
		if err != nil { // an unreadable file is left out
			return nil
		}
		if entry.IsDir() && name != dir && (strings.HasPrefix(entry.Name(), ".") || slices.Contains(dependencies, entry.Name())) {
			return filepath.SkipDir
		}
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() || info.Size() == 0 || info.Size() > fileBytesMax {
			return nil
		}
		body, err := os.ReadFile(name)
		if err != nil || slices.Contains(body[:min(len(body), 8000)], 0) { // a NUL makes it binary
			return nil
		}
		read += max(info.Size(), 4<<10)
		rel, _ := filepath.Rel(dir, name)
		visit(filepath.ToSlash(rel), cmp.Or(strings.TrimPrefix(strings.ToLower(filepath.Ext(name)), "."), "other"), body)
		return nil
	})
	return cut
}

// ranked lists counts in Markdown, the greatest first.
func ranked(counts map[string]int, noun string) string {
	var items []string
	for _, name := range slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	}) {
		items = append(items, plain(name)+": "+explain.Count(counts[name], noun))
	}
	return list(items)
}

// list returns the first items as Markdown.
func list(items []string) (text string) {
	for _, item := range items[:min(len(items), listedMax)] {
		text += "\n- " + item
	}
	return text
}

// doSurvey counts the files and lines of the directory. Its first attempt then waits to be killed.
func doSurvey(ctx context.Context, j job) (found, summary string, err error) {
	files, lines, byLanguage := 0, 0, map[string]int{}
	cut := readFiles(ctx, j.Directory, func(_, language string, body []byte) {
		n := bytes.Count(body, []byte("\n"))
		files, lines, byLanguage[language] = files+1, lines+n, byLanguage[language]+n
	})
	if err := j.Progress(ctx, protocol.Progress{Percent: 50, Message: explain.Count(files, "file") + " read"}); err != nil {
		return "", "", err
	}
	if j.Attempt == 1 {
		select {
		case <-ctx.Done(): // the handoff to the next agent fails
		case <-time.After(20 * time.Second):
		}
	}
	summary = explain.Count(lines, "line") + " in " + explain.Count(files, "file")
	if cut {
		summary += " (a limit of the demo left files out)"
	}
	return summary + ".\n" + ranked(byLanguage, "line"), summary, nil
}

// doHistory counts commits by author, and lists the latest.
func doHistory(ctx context.Context, j job) (found, summary string, err error) {
	cmd := exec.CommandContext(ctx, "git", "-C", j.Directory, "-c", "core.fsmonitor=false", "--no-pager", "log", "--no-color",
		"-n", "2000", "--format=%aN%x09%s", "--", ".")
	cmd.Env = append(os.Environ(), "GIT_OPTIONAL_LOCKS=0", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C")
	out, err := cmd.Output()
	if err != nil || len(out) == 0 {
		return "There is no git history.", "no git history", nil
	}
	byAuthor, subjects := map[string]int{}, []string{}
	for line := range strings.Lines(string(out)) {
		name, subject, _ := strings.Cut(strings.TrimSpace(line), "\t")
		byAuthor[name]++
		subjects = append(subjects, "“"+plain(protocol.CutText(subject, 100))+"”")
	}
	summary = explain.Count(len(subjects), "commit") + " by " + explain.Count(len(byAuthor), "author")
	return summary + ".\n" + ranked(byAuthor, "commit") + "\n\nThe latest:\n" + list(subjects), summary, nil
}

// notePattern finds a note to self at the start of a comment.
var notePattern = regexp.MustCompile(`(?:^|\s)(?://+|#+|/\*+|--|<!--)\s*((TODO|FIXME|XXX|HACK)\b[^"` + "`" + `]*)$`)

// doInspection looks for notes to self, the worst first, and for long files.
func doInspection(ctx context.Context, j job) (found, summary string, err error) {
	notes, long := map[string][]string{}, []string{} // notes by their word
	readFiles(ctx, j.Directory, func(path, language string, body []byte) {
		n := 0
		for line := range strings.Lines(string(body)) {
			n++
			if match := notePattern.FindStringSubmatch(strings.TrimSpace(line)); match != nil {
				notes[match[2]] = append(notes[match[2]], fmt.Sprintf("`%s:%d` %s", plain(path), n, plain(protocol.CutText(match[1], 120))))
			}
		}
		if n > j.LongFileLines && !slices.Contains([]string{"md", "txt", "json", "yaml", "yml", "other"}, language) {
			long = append(long, fmt.Sprintf("`%s`, %s", plain(path), explain.Count(n, "line")))
		}
	})
	all := slices.Concat(notes["FIXME"], notes["XXX"], notes["HACK"], notes["TODO"])
	summary = fmt.Sprintf("%s, %s over %d lines", explain.Count(len(all), "note")+" to self", explain.Count(len(long), "file"), j.LongFileLines)
	return summary + ".\n" + list(all) + list(long), summary, nil
}

// doDecision plays the person of the escalation, who picks the inspector's first entry.
func doDecision(_ context.Context, j job) (found, summary string, err error) {
	listed, err := resultOf(j.Package.Context, "inspection")
	_, first, any := strings.Cut(listed, "\n- ")
	if first, _, _ = strings.Cut(first, "\n"); !any {
		first = "nothing: leave it as it is"
	}
	return first + ". Decided by " + protocol.Human + ".", first, err
}

// doReport writes the report from the results in its package alone.
func doReport(_ context.Context, j job) (found, summary string, err error) {
	var d strings.Builder
	fmt.Fprintf(&d, "# Review of %s\n", plain(filepath.Base(j.Directory)))
	written := steps[:stepIndex(j.Package.Task.ID)]
	for _, s := range written {
		if found, err = resultOf(j.Package.Context, s.id); err != nil {
			return "", "", err
		}
		fmt.Fprintf(&d, "\n## %s\n\n%s\n", s.id, found)
	}
	return reportName, explain.Count(len(written), "section") + " written", os.WriteFile(filepath.Join(j.Run, reportName), []byte(d.String()), 0o644)
}

// markdown are the characters that mean something in the middle of Markdown.
var markdown = strings.NewReplacer(`\`, `\\`, "`", "'", "*", `\*`, "|", `\|`, "[", `\[`, "<", "&lt;", "\n", " ", "\r", " ", "\t", " ")

// plain escapes a text of the reviewed directory: a file name can neither break the report nor
// send a control sequence to a terminal.
func plain(s string) string { return protocol.Printable(markdown.Replace(s)) }

// reviewerScript is an agent in shell, which handoff work runs for each offer. Its first argument
// is the run's directory.
//
//go:embed reviewer.sh
var reviewerScript []byte
