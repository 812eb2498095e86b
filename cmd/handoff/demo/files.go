package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Limits of what an agent reads. The demo is to end within a minute wherever it
// is started, a home directory or a monorepo included; what a limit cut off is
// said in the report.
const (
	filesMax      = 50_000
	readBytesMax  = 256 << 20 // of all files together
	fileBytesMax  = 4 << 20   // larger files are listed by size and not read
	readFor       = 5 * time.Second
	headBytes     = 8000 // a NUL in here makes a file binary, as git has it
	listedAtMost  = 10   // entries of each list that travels in a package
	commitsMax    = 2000
	gitOutputMax  = 64 << 20
	largeBinary   = 1 << 20 // bytes from which on a binary file is worth a word
	generatedHead = 2048    // where the mark of a generated file stands, if anywhere
)

// file is one file of the reviewed directory.
type file struct {
	Path     string `json:"path"` // relative to the directory, with slashes
	Size     int64  `json:"size"`
	Lines    int    `json:"lines,omitempty"`
	Language string `json:"language,omitempty"` // absent for what is no known text
	Binary   bool   `json:"binary,omitempty"`
	Unread   bool   `json:"unread,omitempty"` // over fileBytesMax, not readable, or skipped

	skipped bool // a limit of all files together was met
}

// list names the regular files below dir. In a git work tree those are the ones
// that git knows or would add, so that build output and dependencies stay out.
func list(ctx context.Context, dir string) (files []file, by string, cut bool) {
	// None at all is a directory that git was told to ignore: walked like any other.
	if names, err := listGit(ctx, dir); err == nil && len(names) > 0 {
		files, cut = stat(ctx, dir, names)
		return files, "git ls-files", cut
	}
	names, cut := listWalk(ctx, dir)
	files, more := stat(ctx, dir, names)
	return files, "a walk that leaves out hidden directories and dependencies", cut || more
}

func listGit(ctx context.Context, dir string) ([]string, error) {
	out, err := git(ctx, dir, "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", ".")
	if err != nil {
		return nil, err
	}
	names := strings.Split(strings.TrimRight(string(out), "\x00"), "\x00")
	if len(names) == 1 && names[0] == "" {
		return nil, nil
	}
	slices.Sort(names)
	return slices.Compact(names), nil // an unmerged file is listed once for each side
}

// dependencies are directories full of other people's files.
var dependencies = []string{"node_modules", "vendor", "target", "dist", "build", "venv", "__pycache__"}

func listWalk(ctx context.Context, dir string) (names []string, cut bool) {
	// Whatever cannot be read is left out: an unreadable directory is no reason
	// to review nothing.
	_ = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if ctx.Err() != nil || len(names) >= filesMax {
			cut = true
			return filepath.SkipAll
		}
		if err != nil {
			return nil
		}
		if entry.IsDir() && name != dir &&
			(strings.HasPrefix(entry.Name(), ".") || slices.Contains(dependencies, entry.Name())) {
			return filepath.SkipDir
		}
		if entry.Type().IsRegular() {
			if rel, err := filepath.Rel(dir, name); err == nil {
				names = append(names, filepath.ToSlash(rel))
			}
		}
		return nil
	})
	return names, cut
}

// stat keeps the regular files. Links are not followed: they may lead anywhere,
// and a named pipe would be waited on for ever.
func stat(ctx context.Context, dir string, names []string) (files []file, cut bool) {
	for _, name := range names {
		if ctx.Err() != nil || len(files) >= filesMax {
			return files, true
		}
		info, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		files = append(files, file{Path: name, Size: info.Size(), Language: languageOf(name)})
	}
	return files, false
}

// read fills in what only the contents tell, and returns them.
func (f *file) read(dir string) []byte {
	if f.Size == 0 { // or a file of the kernel's, which may keep its reader waiting
		return nil
	}
	if f.Size > fileBytesMax {
		f.Unread = true
		f.Binary = f.Language == ""
		return nil
	}
	open, err := os.Open(filepath.Join(dir, filepath.FromSlash(f.Path)))
	if err != nil {
		f.Unread = true
		return nil
	}
	defer open.Close()
	body, err := io.ReadAll(io.LimitReader(open, fileBytesMax)) // it may have grown since
	if err != nil {
		f.Unread = true
		return nil
	}
	if bytes.IndexByte(body[:min(len(body), headBytes)], 0) >= 0 {
		f.Binary, f.Language = true, ""
		return body
	}
	f.Lines = bytes.Count(body, []byte{'\n'})
	if len(body) > 0 && body[len(body)-1] != '\n' {
		f.Lines++
	}
	return body
}

// languages by extension: those a reader of the report would look for by name.
var languages = map[string]string{
	".go": "Go", ".py": "Python", ".js": "JavaScript", ".mjs": "JavaScript", ".cjs": "JavaScript", ".jsx": "JavaScript",
	".ts": "TypeScript", ".tsx": "TypeScript", ".rs": "Rust", ".c": "C", ".h": "C", ".cc": "C++", ".cpp": "C++", ".hpp": "C++",
	".java": "Java", ".kt": "Kotlin", ".swift": "Swift", ".rb": "Ruby", ".php": "PHP", ".cs": "C#", ".scala": "Scala",
	".sh": "Shell", ".bash": "Shell", ".zsh": "Shell", ".sql": "SQL", ".html": "HTML", ".css": "CSS", ".scss": "CSS",
	".md": "Markdown", ".rst": "reStructuredText", ".txt": "Text", ".json": "JSON", ".yaml": "YAML", ".yml": "YAML",
	".toml": "TOML", ".xml": "XML", ".proto": "Protocol Buffers", ".tf": "Terraform", ".lua": "Lua", ".ex": "Elixir",
	".exs": "Elixir", ".erl": "Erlang", ".hs": "Haskell", ".ml": "OCaml", ".zig": "Zig", ".dart": "Dart", ".r": "R",
	".vue": "Vue", ".svelte": "Svelte", ".txtar": "Text", ".csv": "CSV",
}

// languagesByName are files that need no extension.
var languagesByName = map[string]string{
	"Makefile": "Make", "Dockerfile": "Docker", "go.mod": "Go module", "go.sum": "Go module", "LICENSE": "Text", "README": "Text",
}

func languageOf(name string) string {
	base := path.Base(name)
	if language, ok := languagesByName[base]; ok {
		return language
	}
	return languages[strings.ToLower(path.Ext(base))]
}

// git runs git in dir and returns what it printed, also when ctx ended it
// first. What the reviewed repository configures is not run: it may be anybody's.
func git(ctx context.Context, dir string, args ...string) ([]byte, error) {
	args = append([]string{"-C", dir, "-c", "core.quotePath=false", "-c", "core.fsmonitor=false", "--no-pager"}, args...)
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Env = append(os.Environ(), "GIT_OPTIONAL_LOCKS=0", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C")
	cmd.WaitDelay = time.Second
	var stderr limited
	stdout := limited{most: gitOutputMax}
	stderr.most = 4 << 10
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	switch {
	case err == nil, ctx.Err() != nil && stdout.Len() > 0:
		return stdout.Bytes(), nil
	case errors.Is(err, exec.ErrNotFound):
		return nil, errors.New("git is not installed")
	}
	words, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(stderr.String()), "fatal: "), "\n")
	if words == "" {
		words = err.Error()
	}
	return nil, fmt.Errorf("git: %s", words)
}

// limited is a buffer that drops what does not fit.
type limited struct {
	bytes.Buffer
	most int
}

func (l *limited) Write(p []byte) (int, error) {
	if room := l.most - l.Len(); room < len(p) {
		l.Buffer.Write(p[:max(room, 0)])
		return len(p), nil // the writer is to end by itself, not of a broken pipe
	}
	return l.Buffer.Write(p)
}
