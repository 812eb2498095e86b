package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// newcomer are the pages in the order in which a newcomer meets them: agents in shell, in Python
// and in Go, a client in Go, a pipeline of three, a poller in Python, a delegation, a vote, a
// question, a refusal and a killed worker.
var newcomer = []string{"README.md", "docs/start.md", "docs/how-to/poll.md", "docs/how-to/hand-off.md", "docs/how-to/failures.md"}

// install matches the commands by which the page gets and builds the program.
var install = regexp.MustCompile("(?ms)^```sh\ngit clone (\\S+) && cd handoff\n(go install \\./cmd/handoff)\\b.*?^```$")

// TestNewcomer clones and builds the program as the page says, and types all pages of the
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
	found := install.FindStringSubmatch(readPage(t, "docs/start.md"))
	if found == nil {
		t.Fatal("docs/start.md does not say how to clone and install")
	}
	home := t.TempDir()
	shell := func(dir, command string) {
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOBIN="+filepath.Join(home, "handoff", "bin"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("$ %s\n%s%v", command, out, err)
		}
	}
	shell(home, "git clone -q '"+strings.TrimSpace(string(root))+"' handoff") // in the place of found[1]
	r := readerIn(t, filepath.Join(home, "handoff"))
	shell(r.dir, found[2])
	for _, page := range newcomer {
		t.Logf("%s", page)
		r.read(readPage(t, page))
		for _, worker := range r.workers {
			worker.Kill()
		}
		r.workers = nil
	}
}
