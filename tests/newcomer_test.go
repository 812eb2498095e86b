package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// newcomer are the pages in the order in which a newcomer meets them: agents in shell, in Python
// and in Go, a client in Go, a pipeline of three, a poller in Python, a delegation, a vote, a
// question, a refusal and a killed worker.
var newcomer = []string{"README.md", "docs/start.md", "docs/how-to/poll.md", "docs/how-to/hand-off.md", "docs/how-to/failures.md"}

// setUp is how README.md and docs/start.md clone, try, test and install, in this order.
var setUp = []string{
	"git clone https://github.com/agenthandoff/handoff && cd handoff",
	"go run -v ./cmd/handoff demo",
	"go test ./...",
	"go install ./cmd/handoff",
	`export PATH="$PATH:$(go env GOPATH)/bin"`,
}

// TestNewcomer clones, builds and sets up as README.md has it, and types all pages of the
// newcomer in the clone, beside one engine. At the end of a page its workers are stopped, as a
// reader stops them.
func TestNewcomer(t *testing.T) {
	t.Parallel()
	for _, needed := range []string{"sh", "jq", "python3", "go", "git"} {
		if _, err := exec.LookPath(needed); err != nil {
			t.Skipf("the pages need %s: %v", needed, err)
		}
	}
	root, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		t.Skipf("this is no clone: %v", err)
	}
	for _, page := range []string{"README.md", "docs/start.md"} {
		if typed := shellLines(readPage(t, page)); !slices.Equal(typed[:min(len(typed), len(setUp))], setUp) {
			t.Fatalf("%s sets up by\n%s\nand not by\n%s", page, strings.Join(typed, "\n"), strings.Join(setUp, "\n"))
		}
	}
	home := t.TempDir()
	shell := func(dir, command string) {
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir, cmd.Stdin = dir, strings.NewReader("y\n") // the fleet asks for an approval
		bin := filepath.Join(home, "handoff", "bin")
		cmd.Env = append(os.Environ(), "GOBIN="+bin, "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("$ %s\n%s%v", command, out, err)
		}
	}
	clone := filepath.Join(home, "handoff")
	for _, line := range shellLines(readPage(t, "README.md")) {
		switch {
		case strings.HasPrefix(line, "git clone "): // from here, in the place of its address
			shell(home, "git clone -q '"+strings.TrimSpace(string(root))+"' handoff")
		case line == "go test ./...", strings.HasPrefix(line, "export "): // this is one of its tests
		default:
			shell(clone, line)
		}
	}
	r := readerIn(t, clone)
	for _, page := range newcomer {
		t.Logf("%s", page)
		r.read(readPage(t, page))
		for _, worker := range r.workers {
			worker.Kill()
		}
		r.workers = nil
	}
}

// shellLines returns the commands of the sh blocks of a page that are no files, without comments.
func shellLines(page string) (lines []string) {
	for _, found := range block.FindAllStringSubmatch(page, -1) {
		if found[1] != "sh" || named.MatchString(found[2]) {
			continue
		}
		for line := range strings.Lines(found[2]) {
			command, _, _ := strings.Cut(line, " # ")
			lines = append(lines, strings.TrimSpace(command))
		}
	}
	return lines
}
