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

	"github.com/agenthandoff/handoff/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// Limits of what an agent reads: the demo ends within a minute in a home directory, too.
const (
	fileBytesMax = 1 << 20
	readBytesMax = 128 << 20 // of all files together, each as at least a block
	listedMax    = 10        // entries of each list that travels in a package
	commitsMax   = 2_000
)

// dependencies are directories that hold the files of others.
var dependencies = []string{"node_modules", "vendor", "target", "dist", "build", "venv", "__pycache__"}

// readFiles calls visit with the path and the body of each readable text file below dir. cut is
// that a limit, or the end of ctx, left some out. Links are not followed.
func readFiles(ctx context.Context, dir string, visit func(path string, body []byte)) (cut bool) {
	read := int64(0)
	_ = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if ctx.Err() != nil || read > readBytesMax {
			cut = true
			return filepath.SkipAll
		}
		if err != nil { // what cannot be read is no reason to review nothing
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
		if err != nil || bytes.IndexByte(body[:min(len(body), 8000)], 0) >= 0 { // a NUL makes it binary
			return nil
		}
		read += max(info.Size(), 4<<10)
		rel, _ := filepath.Rel(dir, name)
		visit(filepath.ToSlash(rel), body)
		return nil
	})
	return cut
}

// languageOf is the language of a file, by how its name ends.
func languageOf(path string) string {
	return cmp.Or(strings.TrimPrefix(strings.ToLower(filepath.Ext(path)), "."), "other")
}

// ranked lists counts, the greatest first.
func ranked(counts map[string]int, noun string) string {
	var items []string
	for _, name := range slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	}) {
		items = append(items, plain(name)+": "+explain.Count(counts[name], noun))
	}
	return list(items)
}

// list writes the first items as Markdown.
func list(items []string) (text string) {
	for _, item := range items[:min(len(items), listedMax)] {
		text += "\n- " + item
	}
	return text
}

// killedWithin is how long the surveyor's first attempt stands still, for the show: it is
// killed there.
const killedWithin = 20 * time.Second

// doSurvey counts the files and lines of the directory.
func doSurvey(ctx context.Context, j job) (found, summary string, err error) {
	files, lines, byLanguage := 0, 0, map[string]int{}
	cut := readFiles(ctx, j.Directory, func(path string, body []byte) {
		n := bytes.Count(body, []byte("\n"))
		files, lines, byLanguage[languageOf(path)] = files+1, lines+n, byLanguage[languageOf(path)]+n
	})
	if err := j.Progress(ctx, protocol.Progress{Percent: 50, Message: explain.Count(files, "file") + " read"}); err != nil {
		return "", "", err
	}
	if j.Attempt == 1 {
		select {
		case <-ctx.Done():
			return "", "", context.Cause(ctx)
		case <-time.After(killedWithin):
		}
	}
	summary = explain.Count(lines, "line") + " in " + explain.Count(files, "file")
	if cut {
		summary += " (not everything was read: a limit of the demo was met)"
	}
	return summary + ".\n" + ranked(byLanguage, "line"), summary, nil
}

// doHistory reads who has committed, and what last.
func doHistory(ctx context.Context, j job) (found, summary string, err error) {
	cmd := exec.CommandContext(ctx, "git", "-C", j.Directory, "-c", "core.fsmonitor=false", "--no-pager", "log", "--no-color",
		"-n", fmt.Sprint(commitsMax), "--format=%aN%x09%s", "--", ".")
	cmd.Env = append(os.Environ(), "GIT_OPTIONAL_LOCKS=0", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C")
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return "", "", context.Cause(ctx)
	}
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

// noteWords are the words that begin a note to self, the worst first.
var noteWords = []string{"FIXME", "XXX", "HACK", "TODO"}

// notePattern wants the word right after the sign that begins a comment.
var notePattern = regexp.MustCompile(`(?:^|\s)(?://+|#+|/\*+|--|<!--)\s*((?:TODO|FIXME|XXX|HACK)\b[^"` + "`" + `]*)$`)

// doInspection looks for notes to self, the worst first, and for long files.
func doInspection(ctx context.Context, j job) (found, summary string, err error) {
	notes, long := make([][]string, len(noteWords)), []string{} // notes by their word
	readFiles(ctx, j.Directory, func(path string, body []byte) {
		n := 0
		for line := range bytes.Lines(body) {
			n++
			if match := notePattern.FindSubmatch(bytes.TrimSpace(line)); match != nil {
				text := string(match[1])
				rank := slices.IndexFunc(noteWords, func(word string) bool { return strings.HasPrefix(text, word) })
				notes[rank] = append(notes[rank], fmt.Sprintf("`%s:%d` %s", plain(path), n, plain(protocol.CutText(text, 120))))
			}
		}
		if n > j.LongFileLines && !slices.Contains([]string{"md", "txt", "json", "yaml", "yml", "other"}, languageOf(path)) {
			long = append(long, fmt.Sprintf("`%s`, %s", plain(path), explain.Count(n, "line")))
		}
	})
	all := slices.Concat(notes...)
	summary = fmt.Sprintf("%s, %s over %d lines", explain.Count(len(all), "note")+" to self", explain.Count(len(long), "file"), j.LongFileLines)
	return summary + ".\n" + list(all) + list(long), summary, nil
}

// doDecision plays the person to whom the decision escalates: what the inspector lists first
// comes first.
func doDecision(_ context.Context, j job) (found, summary string, err error) {
	listed, err := earlier(j.Package.Context, "inspection")
	_, first, any := strings.Cut(listed, "\n- ")
	if first, _, _ = strings.Cut(first, "\n"); !any {
		first = "nothing: leave it as it is"
	}
	return first + ". Decided by " + protocol.Human + ".", first, err
}

// doReport writes the report. It looks at nothing itself: all of it was handed over.
func doReport(_ context.Context, j job) (found, summary string, err error) {
	var d strings.Builder
	fmt.Fprintf(&d, "# Review of %s\n", plain(filepath.Base(j.Directory)))
	written := steps[:stepIndex(j.Package.Task.ID)]
	for _, s := range written {
		if found, err = earlier(j.Package.Context, s.id); err != nil {
			return "", "", err
		}
		fmt.Fprintf(&d, "\n## %s\n\n%s\n", s.id, found)
	}
	return reportName, explain.Count(len(written), "section") + " written", os.WriteFile(filepath.Join(j.Run, reportName), []byte(d.String()), 0o644)
}

// markdown are the characters that mean something in the middle of Markdown.
var markdown = strings.NewReplacer(`\`, `\\`, "`", "'", "*", `\*`, "|", `\|`, "[", `\[`, "<", "&lt;", "\n", " ", "\r", " ", "\t", " ")

// plain makes a text of the reviewed directory harmless: a file name can neither break the
// report nor reach a terminal as a control sequence.
func plain(s string) string { return protocol.Printable(markdown.Replace(s)) }

// reviewerScript is the agent that is no Go program: what handoff work runs for
// each offer. The package comes on stdin, the exit code is the answer, and what
// it prints is the result. Its first argument is the run's directory.
//
//go:embed reviewer.sh
var reviewerScript []byte
