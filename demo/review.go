package demo

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// Limits of what an agent reads: the demo ends within a minute in a home directory, too.
const (
	filesMax     = 20_000
	fileBytesMax = 1 << 20
	readBytesMax = 128 << 20 // of all files together
	listedMax    = 10        // entries of each list that travels in a package
	commitsMax   = 2_000
)

// file is one file of the reviewed directory.
type file struct {
	Path  string `json:"path"`
	Size  int64  `json:"size"`
	Lines int    `json:"lines"`
}

// dependencies are directories that hold the files of others.
var dependencies = []string{"node_modules", "vendor", "target", "dist", "build", "venv", "__pycache__"}

// readFiles calls visit with each readable text file below dir. cut is that a limit, or the
// end of ctx, left some out. Links are not followed.
func readFiles(ctx context.Context, dir string, visit func(f file, body []byte)) (cut bool) {
	n, read := 0, int64(0)
	_ = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if ctx.Err() != nil || n == filesMax || read > readBytesMax {
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
		n, read = n+1, read+info.Size()
		rel, _ := filepath.Rel(dir, name)
		visit(file{Path: filepath.ToSlash(rel), Size: info.Size(), Lines: bytes.Count(body, []byte("\n"))}, body)
		return nil
	})
	return cut
}

var languages = map[string]string{".go": "Go", ".py": "Python", ".js": "JavaScript", ".ts": "TypeScript", ".rs": "Rust", ".c": "C",
	".h": "C", ".cpp": "C++", ".java": "Java", ".kt": "Kotlin", ".swift": "Swift", ".rb": "Ruby", ".php": "PHP", ".cs": "C#", ".sh": "Shell",
	".md": "Markdown", ".txt": "Text", ".json": "JSON", ".yaml": "YAML", ".yml": "YAML", ".html": "HTML", ".css": "CSS", ".sql": "SQL"}

func languageOf(path string) string {
	return cmp.Or(languages[strings.ToLower(filepath.Ext(path))], "other")
}

// tally counts what has one name: the files and lines of a language, the commits of an author.
type tally struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
	Lines int    `json:"lines,omitempty"`
}

// ranked lists tallies, the greatest first.
func ranked(byName map[string]tally) []tally {
	all := make([]tally, 0, len(byName))
	for name, t := range byName {
		t.Name = name
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b tally) int {
		return cmp.Or(cmp.Compare(b.Lines, a.Lines), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// survey is what the surveyor found out.
type survey struct {
	Files     int     `json:"files"`
	Lines     int     `json:"lines"`
	Bytes     int64   `json:"bytes"`
	Languages []tally `json:"languages"`
	Cut       bool    `json:"cut,omitempty"` // a limit left some files out
}

// killedWithin is how long the surveyor's first attempt stands still, for the show: it is
// killed there.
const killedWithin = 20 * time.Second

func doSurvey(ctx context.Context, j job) (any, string, error) {
	var found survey
	byName := map[string]tally{}
	found.Cut = readFiles(ctx, j.Directory, func(f file, _ []byte) {
		l := byName[languageOf(f.Path)]
		l.Count, l.Lines = l.Count+1, l.Lines+f.Lines
		byName[languageOf(f.Path)] = l
		found.Files, found.Lines, found.Bytes = found.Files+1, found.Lines+f.Lines, found.Bytes+f.Size
	})
	if err := j.Progress(ctx, protocol.Progress{Percent: 50, Message: many(found.Files, "file") + " read"}); err != nil {
		return nil, "", err
	}
	if j.Attempt == 1 {
		select {
		case <-ctx.Done():
			return nil, "", context.Cause(ctx)
		case <-time.After(killedWithin):
		}
	}
	found.Languages = top(ranked(byName))
	summary := fmt.Sprintf("%s, %s", many(found.Files, "file"), many(found.Lines, "line"))
	if len(found.Languages) > 0 {
		summary += ", mostly " + found.Languages[0].Name
	}
	return found, summary, nil
}

// history is what the historian found out. Where there is none, Absent says why.
type history struct {
	Absent  string   `json:"absent,omitempty"`
	Commits int      `json:"commits"`
	Authors []tally  `json:"authors,omitempty"`
	People  int      `json:"people"`
	Latest  []string `json:"latest,omitempty"` // subjects, the newest first
}

func doHistory(ctx context.Context, j job) (any, string, error) {
	cmd := exec.CommandContext(ctx, "git", "-C", j.Directory, "-c", "core.fsmonitor=false", "--no-pager", "log", "--no-color",
		"-n", fmt.Sprint(commitsMax), "--format=%aN%x09%s", "--", ".")
	cmd.Env = append(os.Environ(), "GIT_OPTIONAL_LOCKS=0", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C")
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, "", context.Cause(ctx)
	}
	if err != nil || len(out) == 0 {
		return history{Absent: "no git history"}, "no git history", nil
	}
	var found history
	byName := map[string]tally{}
	for line := range strings.Lines(string(out)) {
		name, subject, _ := strings.Cut(strings.TrimSpace(line), "\t")
		found.Commits++
		byName[name] = tally{Count: byName[name].Count + 1}
		if len(found.Latest) < listedMax/2 {
			found.Latest = append(found.Latest, protocol.CutText(subject, 100))
		}
	}
	found.People, found.Authors = len(byName), top(ranked(byName))
	return found, fmt.Sprintf("%s by %s", many(found.Commits, "commit"), many(found.People, "person", "people")), nil
}

// inspection is what the inspector found to need care.
type inspection struct {
	LongFileLines int    `json:"long_file_lines"`
	Notes         []note `json:"notes,omitempty"` // the worst first
	NotesTotal    int    `json:"notes_total"`
	LongFiles     []file `json:"long_files,omitempty"` // the longest first
	LongTotal     int    `json:"long_files_total"`
}

// note is a note to self in a comment.
type note struct {
	Where string `json:"where"` // path:line
	Text  string `json:"text"`  // from its word on
}

// noteWords are the words that begin a note to self, the worst first.
var noteWords = []string{"FIXME", "XXX", "HACK", "TODO"}

// notePattern wants the word right after the sign that begins a comment.
var notePattern = regexp.MustCompile(`(?:^|\s)(?://+|#+|/\*+|--|<!--)\s*((?:TODO|FIXME|XXX|HACK)\b[^"` + "`" + `]*)$`)

// askLimit is the inspector's answer to an offer: what is long is a matter of house rules.
func askLimit(v variables) protocol.Ack {
	if v.LongFileLines > 0 {
		return protocol.Ack{Status: protocol.AckAccepted}
	}
	return protocol.Ack{Status: protocol.AckConditional, NeedsContext: []string{varLongFile},
		Reason: "what counts as long here? The house rules are not in the package"}
}

func doInspection(ctx context.Context, j job) (any, string, error) {
	found := inspection{LongFileLines: j.LongFileLines}
	readFiles(ctx, j.Directory, func(f file, body []byte) {
		if f.Lines > j.LongFileLines && !slices.Contains([]string{"Markdown", "JSON", "Text", "YAML", "other"}, languageOf(f.Path)) {
			found.LongFiles = append(found.LongFiles, f)
		}
		n := 0
		for line := range bytes.Lines(body) {
			n++
			if match := notePattern.FindSubmatch(bytes.TrimSpace(line)); match != nil {
				found.Notes = append(found.Notes, note{Where: fmt.Sprintf("%s:%d", f.Path, n), Text: protocol.CutText(string(match[1]), 120)})
			}
		}
	})
	rank := func(n note) int {
		return slices.IndexFunc(noteWords, func(word string) bool { return strings.HasPrefix(n.Text, word) })
	}
	slices.SortStableFunc(found.Notes, func(a, b note) int { return cmp.Compare(rank(a), rank(b)) })
	slices.SortStableFunc(found.LongFiles, func(a, b file) int { return cmp.Compare(b.Lines, a.Lines) })
	found.NotesTotal, found.LongTotal = len(found.Notes), len(found.LongFiles)
	found.Notes, found.LongFiles = top(found.Notes), top(found.LongFiles)
	return found, fmt.Sprintf("%s to self, %s over %d lines", many(found.NotesTotal, "note"), many(found.LongTotal, "file"), found.LongFileLines), nil
}

// decision is a person's answer to what comes first.
type decision struct {
	First string `json:"first"`
	By    string `json:"by"`
}

// doDecision plays the person to whom the decision escalates.
func doDecision(_ context.Context, j job) (any, string, error) {
	var found inspection
	if err := earlier(j.Package.Context, "inspection", &found); err != nil {
		return nil, "", err
	}
	d, why := decision{By: protocol.Human, First: "nothing: leave it as it is"}, "Nothing was found that needs care."
	switch {
	case len(found.Notes) > 0:
		d.First, why = found.Notes[0].Where+", "+found.Notes[0].Text, "The author knew of it, and wrote it down."
	case len(found.LongFiles) > 0:
		d.First = fmt.Sprintf("%s, %s long", found.LongFiles[0].Path, many(found.LongFiles[0].Lines, "line"))
		why = "A file as long as that is hard to keep in mind."
	}
	return d, why, nil
}

func top[T any](list []T) []T { return list[:min(len(list), listedMax)] }
