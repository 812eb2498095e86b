//go:build proof

package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// executedMost is how many files of the module a command may execute beyond those of handoff version.
// A figure only shrinks.
var executedMost = map[string]int{"submit": 68, "claim": 58, "complete": 80, "status": 60}

// trunkLine is a file of the trunk of a submission, as docs/internals/map.md lists it.
var trunkLine = regexp.MustCompile("(?m)^[0-9]+\\. `([^`]+\\.go)`:")

// TestFilesExecuted counts the files that a plain submit, claim, complete and status execute, with a
// program built for coverage. Its log lists them. The trunk of the map has at most twenty, each executed
// by submit.
func TestFilesExecuted(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "handoff")
	build := exec.Command("go", "build", "-cover", "-coverpkg=github.com/agenthandoff/handoff/...", "-o", program, "github.com/agenthandoff/handoff/cmd/handoff")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	e := startDev(t, t.Context())
	home := t.TempDir()
	run := func(args ...string) (files []string, out string) {
		t.Helper()
		cover := t.TempDir()
		env := append(os.Environ(), "NATS_URL="+e.url, "NATS_CONTEXT=", "HANDOFF_AGENT=", "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home, "GOCOVERDIR="+cover)
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env, cmd.Stderr = env, os.Stderr
		printed, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return executed(t, cover), strings.TrimSpace(string(printed))
	}
	started, _ := run("version")
	run("agents", "put", "reviewer")
	check := func(name string, files []string) {
		t.Helper()
		files = slices.DeleteFunc(slices.Clone(files), func(file string) bool { return slices.Contains(started, file) })
		t.Logf("%s executes %d files: %s", name, len(files), strings.Join(files, " "))
		if len(files) > executedMost[name] {
			t.Errorf("%s executes %d files, and at most %d may be", name, len(files), executedMost[name])
		}
	}
	files, ticket := run("submit", "--to", "reviewer", "--reason", "r", "--task", "t")
	check("submit", files)
	page, err := os.ReadFile("../../../docs/internals/map.md")
	if err != nil {
		t.Fatal(err)
	}
	trunk := trunkLine.FindAllSubmatch(page, -1)
	if len(trunk) == 0 || len(trunk) > 20 {
		t.Errorf("the map lists %d files of a submission, and may list 20", len(trunk))
	}
	for _, line := range trunk {
		if !slices.Contains(files, string(line[1])) {
			t.Errorf("a submission does not execute %s", line[1])
		}
	}
	files, _ = run("status", ticket)
	check("status", files)
	files, claimed := run("claim", "--agent", "reviewer", "--accept")
	check("claim", files)
	lease := strings.TrimPrefix(strings.SplitN(claimed, "\n", 2)[0], "LEASE ")
	files, _ = run("complete", strings.TrimSpace(lease), "--text", "ok")
	check("complete", files)
}

// executed lists the files with a statement that ran, below the module's path.
func executed(t *testing.T, cover string) (files []string) {
	t.Helper()
	profile := filepath.Join(t.TempDir(), "profile")
	if out, err := exec.Command("go", "tool", "covdata", "textfmt", "-i="+cover, "-o="+profile).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(profile)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		file, _, _ := strings.Cut(line, ":")
		below, ours := strings.CutPrefix(file, "github.com/agenthandoff/handoff/")
		if ours && !strings.HasSuffix(strings.TrimSpace(line), " 0") && !seen[below] {
			seen[below] = true
			files = append(files, below)
		}
	}
	slices.Sort(files)
	return files
}
