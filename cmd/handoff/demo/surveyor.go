package demo

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// survey is what the surveyor found out.
type survey struct {
	Files       int        `json:"files"`
	Bytes       int64      `json:"bytes"`
	Lines       int        `json:"lines"`
	Directories int        `json:"directories"`
	Languages   []language `json:"languages"`
	Largest     []file     `json:"largest"`
	Binaries    int        `json:"binaries"`
	ListedBy    string     `json:"listed_by"`
	Cut         string     `json:"cut,omitempty"` // what a limit left out, in words
}

type language struct {
	Name  string `json:"name"`
	Files int    `json:"files"`
	Lines int    `json:"lines"`
	Bytes int64  `json:"bytes"`
}

// inventory is the file in the run's directory that lists everything surveyed.
// It is handed on as an artifact: too long for a package on a large tree.
const inventory = "inventory.json"

// killedWithin is how long the surveyor's first attempt stands still half-way,
// for the show: that is where it is killed.
const killedWithin = 20 * time.Second

// doSurvey counts files, lines, sizes and languages.
func doSurvey(ctx context.Context, s *shift) (yield, error) {
	reading, cancel := context.WithTimeout(ctx, readFor/2)
	defer cancel()
	files, by, cut := list(reading, s.dir)
	found := survey{ListedBy: by}
	if cut {
		found.Cut = fmt.Sprintf("only the first %s files were listed", count(len(files)))
	}
	half := len(files) / 2
	read := readAll(reading, s.dir, files[:half], 0)
	if err := s.progress(ctx, 50, fmt.Sprintf("%s of %s files read", count(half), count(len(files)))); err != nil {
		return yield{}, err
	}
	if s.attempt == 1 {
		if err := standStill(ctx, killedWithin); err != nil {
			return yield{}, err
		}
	}
	further, cancel := context.WithTimeout(ctx, readFor/2)
	defer cancel()
	if readAll(further, s.dir, files[half:], read); found.Cut == "" && slices.ContainsFunc(files, func(f file) bool { return f.skipped }) {
		found.Cut = fmt.Sprintf("the lines of some files were not counted: %v of reading, or %s, were over", readFor, size(readBytesMax))
	}
	found.add(files)
	if err := s.save(inventory, files); err != nil {
		return yield{}, err
	}
	return yield{
		body:      found,
		summary:   fmt.Sprintf("%s, %s, mostly %s", many(found.Files, "file"), many(found.Lines, "line"), found.mostly()),
		artifacts: s.artifact("inventory", "file", inventory, "every file with its size, lines and language, as JSON"),
	}, nil
}

// standStill waits to be killed, and goes on where nobody does.
func standStill(ctx context.Context, most time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(most):
		return nil
	}
}

// readAll reads files until the limit of all together is met; read is how many
// bytes were read before.
func readAll(ctx context.Context, dir string, files []file, read int64) int64 {
	for i := range files {
		if ctx.Err() != nil || read+files[i].Size > readBytesMax {
			files[i].Unread, files[i].skipped = true, true
			continue
		}
		files[i].read(dir)
		read += files[i].Size
	}
	return read
}

func (found *survey) add(files []file) {
	byName, directories := map[string]*language{}, map[string]bool{}
	for _, f := range files {
		found.Files++
		found.Bytes += f.Size
		found.Lines += f.Lines
		directories[path.Dir(f.Path)] = true
		if f.Binary {
			found.Binaries++
		}
		if f.Language == "" {
			continue
		}
		l := byName[f.Language]
		if l == nil {
			l = &language{Name: f.Language}
			byName[f.Language] = l
		}
		l.Files++
		l.Lines += f.Lines
		l.Bytes += f.Size
	}
	found.Directories = len(directories)
	for _, l := range byName {
		found.Languages = append(found.Languages, *l)
	}
	slices.SortFunc(found.Languages, func(a, b language) int {
		return cmp.Or(cmp.Compare(b.Lines, a.Lines), cmp.Compare(a.Name, b.Name))
	})
	found.Languages = top(found.Languages)
	found.Largest = slices.Clone(files)
	slices.SortStableFunc(found.Largest, func(a, b file) int { return cmp.Compare(b.Size, a.Size) })
	found.Largest = top(found.Largest)
}

func (found *survey) mostly() string {
	if len(found.Languages) == 0 {
		return "of no language I know"
	}
	return found.Languages[0].Name
}

func top[T any](list []T) []T { return list[:min(len(list), listedAtMost)] }

// readInventory reads what the surveyor left, from where the package says it lies.
func readInventory(artifacts protocol.Artifacts) ([]file, error) {
	for _, a := range artifacts.List {
		if a.ID != "inventory" {
			continue
		}
		body, err := os.ReadFile(a.Path)
		if err != nil {
			return nil, err
		}
		var files []file
		return files, json.Unmarshal(body, &files)
	}
	return nil, fmt.Errorf("no artifact is called inventory")
}
