package demo

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// history is what the historian found out. Where there is none, Absent says why.
type history struct {
	Absent  string   `json:"absent,omitempty"`
	Commits int      `json:"commits"`
	First   string   `json:"first,omitempty"` // dates, the oldest commit read
	Last    string   `json:"last,omitempty"`
	Authors []author `json:"authors,omitempty"`
	People  int      `json:"people"`
	Churn   []churn  `json:"churn,omitempty"`
	Latest  []string `json:"latest,omitempty"` // subjects, the newest first
	Cut     string   `json:"cut,omitempty"`
}

type author struct {
	Name    string `json:"name"`
	Commits int    `json:"commits"`
}

// churn is how often and how much a file changed.
type churn struct {
	Path    string `json:"path"`
	Commits int    `json:"commits"`
	Lines   int    `json:"lines"` // added and removed
}

// latestSubjects is how many commits the report quotes.
const latestSubjects = 5

// Marks between the fields of git's output; no name or subject holds them.
const (
	commitMark = "\x01"
	fieldMark  = "\x02"
)

// doHistory reads the git history of the directory, if there is one.
func doHistory(ctx context.Context, s *shift) (yield, error) {
	reading, cancel := context.WithTimeout(ctx, readFor)
	defer cancel()
	out, err := git(reading, s.dir, "log", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--relative", "--numstat",
		"-n", strconv.Itoa(commitsMax), "--format="+commitMark+"%aN"+fieldMark+"%as"+fieldMark+"%s", "--", ".")
	if ctx.Err() != nil {
		return yield{}, context.Cause(ctx)
	}
	if err != nil {
		return yield{body: history{Absent: err.Error()}, summary: "no history: " + err.Error()}, nil
	}
	found := readLog(s.dir, out)
	switch {
	case reading.Err() != nil:
		found.Cut = fmt.Sprintf("only the commits that git listed within %v were read", readFor)
	case found.Commits == commitsMax:
		found.Cut = fmt.Sprintf("only the latest %s commits were read", count(commitsMax))
	}
	summary := "no commits yet"
	if found.Commits > 0 {
		summary = fmt.Sprintf("%s by %s, the last on %s", many(found.Commits, "commit"), many(found.People, "person", "people"), found.Last)
	} else {
		found.Absent = summary
	}
	return yield{body: found, summary: summary}, nil
}

func readLog(dir string, out []byte) history {
	var found history
	commits, files := map[string]int{}, map[string]*churn{}
	for entry := range bytes.SplitSeq(out, []byte(commitMark)) {
		head, changes, _ := strings.Cut(string(entry), "\n")
		fields := strings.SplitN(head, fieldMark, 3)
		if len(fields) < 3 { // before the first mark, or cut off
			continue
		}
		found.Commits++
		commits[fields[0]]++
		if found.Last == "" {
			found.Last = fields[1]
		}
		found.First = fields[1]
		if len(found.Latest) < latestSubjects {
			found.Latest = append(found.Latest, clip(fields[2], 100))
		}
		for line := range strings.Lines(changes) {
			addChange(files, strings.TrimSuffix(line, "\n"))
		}
	}
	found.People = len(commits)
	found.Authors = topAuthors(commits)
	found.Churn = topChurn(dir, files)
	return found
}

// addChange reads "added TAB removed TAB path"; binary files have dashes, which
// count as nothing.
func addChange(files map[string]*churn, line string) {
	fields := strings.SplitN(line, "\t", 3)
	if len(fields) < 3 {
		return
	}
	added, _ := strconv.Atoi(fields[0])
	removed, _ := strconv.Atoi(fields[1])
	c := files[fields[2]]
	if c == nil {
		c = &churn{Path: fields[2]}
		files[fields[2]] = c
	}
	c.Commits++
	c.Lines += added + removed
}

func topAuthors(commits map[string]int) []author {
	var all []author
	for name, n := range commits {
		all = append(all, author{Name: clip(name, 60), Commits: n})
	}
	slices.SortFunc(all, func(a, b author) int {
		return cmp.Or(cmp.Compare(b.Commits, a.Commits), cmp.Compare(a.Name, b.Name))
	})
	return top(all)
}

// topChurn leaves out files that are gone: nobody can take care of those.
func topChurn(dir string, files map[string]*churn) []churn {
	var all []churn
	for _, c := range files {
		all = append(all, *c)
	}
	slices.SortFunc(all, func(a, b churn) int {
		return cmp.Or(cmp.Compare(b.Commits, a.Commits), cmp.Compare(b.Lines, a.Lines), cmp.Compare(a.Path, b.Path))
	})
	var there []churn
	for _, c := range all {
		if len(there) == listedAtMost {
			break
		}
		if _, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(c.Path))); err == nil {
			there = append(there, c)
		}
	}
	return there
}
