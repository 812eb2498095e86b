package tests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/testworld"
)

// TestPagesAreTyped types what a reader of a page types: it writes the files of the page, runs
// every command of its console blocks in order, and compares what is printed with the page.
//
// A block in console has commands after "$ ", each with what it prints. "..." stands for any
// text, and tickets, instants and durations may differ. A command that ends with " &", and
// handoff dev, go on beside the rest.
func TestPagesAreTyped(t *testing.T) {
	for _, page := range []string{"README.md", "docs/start.md", "docs/how-to/poll.md"} {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			for _, needed := range []string{"sh", "jq", "python3", "go"} {
				if _, err := exec.LookPath(needed); err != nil {
					t.Skipf("a worker of the page needs %s: %v", needed, err)
				}
			}
			r := &reader{t: t, dir: t.TempDir(), env: map[string]string{}}
			r.env["PATH"] = filepath.Dir(testworld.Handoff(t)) + string(os.PathListSeparator) + os.Getenv("PATH")
			r.env["XDG_CONFIG_HOME"] = r.dir
			r.env["NO_COLOR"] = "1"
			r.read(readPage(t, page))
			if r.typed == 0 {
				t.Error("the page has no command")
			}
		})
	}
}

// reader does what a page says, in a directory of its own.
type reader struct {
	t       *testing.T
	dir     string
	env     map[string]string // beside ours
	typed   int               // commands
	workers int               // started
}

// block matches a block of code, with its language.
var block = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$")

func (r *reader) read(page string) {
	for _, found := range block.FindAllStringSubmatch(page, -1) {
		if found[1] == "console" {
			r.console(found[2])
		} else {
			r.file(found[2])
		}
	}
}

// named matches the name that the first line of a file on a page has.
var named = regexp.MustCompile(`^(?:#|//) (\w+\.(?:sh|py|go))\b`)

// file writes the file that a block is, if it is one.
func (r *reader) file(text string) {
	name := named.FindStringSubmatch(text)
	if name == nil {
		return
	}
	if strings.HasSuffix(name[1], ".go") && !strings.Contains(text, "\npackage main\n") {
		text = fmt.Sprintf("package main\n\nimport (\n\t\"context\"\n\t\"log\"\n\t\"os\"\n\n\t%q\n)\n\nfunc main() {\n%s}\n", module+"api/handoff", text)
	}
	if err := os.WriteFile(filepath.Join(r.dir, name[1]), []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// console types the commands of a block.
func (r *reader) console(text string) {
	for _, typed := range strings.Split("\n"+text, "\n$ ")[1:] {
		command, want, _ := strings.Cut(typed, "\n")
		r.typed++
		command, beside := strings.CutSuffix(command, " &")
		switch assigned := regexp.MustCompile(`^([A-Z]+)=\$\((.*)\)$`).FindStringSubmatch(command); {
		case beside || command == "handoff dev":
			r.start(command, want)
		case assigned != nil:
			r.env[assigned[1]] = strings.TrimSpace(r.run(assigned[2], ".*"))
		default:
			r.run(command, pattern(want))
		}
	}
}

// run types a command. One that asks is typed again until the answer is what the page has:
// the test is faster than a reader.
func (r *reader) run(command, want string) string {
	matches := regexp.MustCompile("(?s)^" + want + "$")
	for end := time.Now().Add(patience); ; {
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir, cmd.Env = r.dir, r.environ()
		out, err := cmd.CombinedOutput()
		if err == nil && matches.MatchString(masked(string(out))) {
			return string(out)
		}
		if asks := !strings.Contains(command, "submit"); !asks || time.Now().After(end) {
			r.t.Fatalf("$ %s\n%s%v\nand the page has, as a pattern:\n%s", command, masked(string(out)), err, want)
		}
	}
}

// start starts what goes on beside the rest, and waits until it printed what the page has, and
// until a worker is there.
func (r *reader) start(command, want string) {
	said := filepath.Join(r.dir, fmt.Sprintf("said-%d", r.typed))
	dev := command == "handoff dev"
	if dev { // on a port of its own, and without an fsync for each write
		command += " --port 0 --fsync interval --data " + filepath.Join(r.dir, "data")
	}
	if file, ok := strings.CutPrefix(command, "go run "); ok {
		command = filepath.Join(r.dir, "program")
		build := exec.Command("go", "build", "-o", command, filepath.Join(r.dir, file))
		if out, err := build.CombinedOutput(); err != nil {
			r.t.Fatalf("%s: %v\n%s", file, err, out)
		}
	}
	testworld.Start(r.t, command, r.environ(), "sh", "-c", fmt.Sprintf("cd '%s' && exec %s >'%s'", r.dir, command, said))
	r.run("cat '"+said+"'", pattern(want)+".*")
	if dev {
		text, _ := os.ReadFile(said) // it was there just now
		r.env["NATS_URL"] = regexp.MustCompile(`nats://\S+`).FindString(string(text))
		return
	}
	r.workers++
	r.run("handoff agents ls", fmt.Sprintf(`(.*\n\S+ present [1-9]){%d}.*`, r.workers))
}

func (r *reader) environ() []string {
	env := os.Environ()
	for name, value := range r.env {
		env = append(env, name+"="+value)
	}
	return env
}

// masks are what differs from run to run, and what stands for it.
var masks = []struct {
	differs *regexp.Regexp
	mask    string
}{
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "TICKET"},
	{regexp.MustCompile(`\b[0-9a-f]{8}\b`), "TICKET"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d`), "DATE"},
	{regexp.MustCompile(`\d\d:\d\d:\d\d(\.\d+)?`), "TIME"},
	{regexp.MustCompile(`\d+(\.\d+)?(ms|s)\b`), "LONG"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "HERE"},
	{regexp.MustCompile(` +`), " "},
	{regexp.MustCompile(`(?m) $`), ""},
}

func masked(text string) string {
	for _, m := range masks {
		text = m.differs.ReplaceAllString(text, m.mask)
	}
	return strings.TrimSpace(text)
}

// pattern makes a regular expression of what a page says that a command prints.
func pattern(printed string) string {
	return strings.ReplaceAll(regexp.QuoteMeta(masked(printed)), `\.\.\.`, ".*")
}
