//go:build proof

package upgrade

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// newerPatches make the sources those of a next minor version: a new event with every acceptance,
// and a field of the state that counts these events. A patch replaces a text that occurs once in a
// file.
var newerPatches = []struct{ file, old, now string }{
	{"protocol/package.go", `const Version = "1.0"`, `const Version = "1.1"`},
	{"protocol/state.go", "	PrevHash string `json", "	Praises int `json:\"praises,omitempty\"`\n	PrevHash string `json"},
	{"protocol/event.go", "// Meta holds the common fields of all events", `// Praised is of version 1.1.
type Praised struct {
	Meta
	Words []string ` + "`json:\"words,omitempty\" redact:\"text\"`" + `
}

const EventPraised EventType = "praised"

func (*Praised) EventType() EventType { return EventPraised }

// Meta holds the common fields of all events`},
	{"protocol/event.go", "empty[Stuck]", "empty[Praised], empty[Stuck]"},
	{"internal/lifecycle/step.go", "	p.EventStuck:           newRow(", "	p.EventPraised: newRow(open, stay, nil, func(s *p.State, _ *p.Praised) error { s.Praises++; return nil }, nil, byHolder, \"praise\"),\n	p.EventStuck:           newRow("},
	{"internal/lifecycle/claim.go", "return StepOf(s, accepted, &p.Started{Meta: meta})", `return StepOf(s, accepted, &p.Started{Meta: meta}, &p.Praised{Meta: meta, Words: []string{"well", "begun"}})`},
}

// newerHandoff builds handoff as the next minor version would be: the sources of this
// one, patched.
func newerHandoff(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	sources := os.DirFS(root)
	err = fs.WalkDir(sources, ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "tests", "docs"}, path):
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(dir, path), 0o755)
		}
		raw, err := fs.ReadFile(sources, path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, path), raw, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, patch := range newerPatches {
		path := filepath.Join(dir, patch.file)
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(raw), patch.old); n != 1 {
			t.Fatalf("%q occurs %d times in %s: adapt the patch", patch.old, n, patch.file)
		}
		if err := os.WriteFile(path, []byte(strings.Replace(string(raw), patch.old, patch.now, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(dir, "handoff-newer")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./cmd/handoff")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return bin
}
