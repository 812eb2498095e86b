package tests

import (
	"bytes"
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

// untyped are the pages of docs/README.md without a command to type, and why.
var untyped = map[string]string{
	"reference/fields.md":          "names fields, and no command",
	"operations/containers.md":     "needs Docker: tests/proof/compose types it",
	"operations/proxy.md":          "needs a proxy with a certificate",
	"operations/scale.md":          "its commands take minutes",
	"operations/damage.md":         "harms a ledger: tests/proof/damage types it",
	"reference/protocol.md":        "is for programs: how-to/other-languages.md types a worker",
	"reference/operations.md":      "is a table, made by TestPage of api",
	"reference/outputs.md":         "is a table of what programs print",
	"how-to/javascript.md":         "TestWorkers of clients runs the same",
	"how-to/python.md":             "TestWorkers of clients runs the same",
	"governance.md":                "is an index of other pages",
	"concepts/glossary.md":         "is a list of terms",
	"reference/settings.md":        "is a table, made by TestSettings",
	"concepts/rules.md":            "is a list of rules",
	"../examples/README.md":        "is run by TestExampleFleet",
	"internals/map.md":             "is for a developer",
	"internals/adding-an-event.md": "is for a developer",
	"internals/reliability.md":     "is for a developer: its commands are proofs",
	"internals/performance.md":     "is for a developer: its commands take minutes",
}

// TestPagesAreTyped types what a reader of a page types: it writes the files of the page, runs
// every command of its console blocks in order, and compares what is printed with the page.
//
// A block in console has commands after "$ ", which go on after "> ", each with what it prints.
// "..." stands for any text, and tickets, instants and durations may differ. A command that ends
// with " &", and handoff dev, go on beside the rest. Ports are others than on the page.
func TestPagesAreTyped(t *testing.T) {
	for _, needed := range []string{"sh", "jq", "curl", "python3", "go"} {
		if _, err := exec.LookPath(needed); err != nil {
			t.Skipf("the pages need %s: %v", needed, err)
		}
	}
	pages := []string{"README.md"}
	for _, link := range mdLink.FindAllStringSubmatch(readPage(t, "docs/README.md"), -1) {
		if strings.HasSuffix(link[1], ".md") {
			pages = append(pages, "docs/"+link[1])
		}
	}
	for _, page := range pages {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			text := readPage(t, page)
			why, none := untyped[strings.TrimPrefix(page, "docs/")]
			none = none || strings.HasPrefix(page, "docs/design/") // reasons, and no commands
			switch has := strings.Contains(text, "```console\n"); {
			case has == none:
				t.Errorf("the page has commands: %v, and untyped says %q", has, why)
			case has:
				newReader(t).read(text)
			}
		})
	}
}

// reader does what a page says, in a directory of its own.
type reader struct {
	t     *testing.T
	dir   string
	env   map[string]string // beside ours
	typed int               // commands
	ports map[string]string // by those of the page

	engine  bool                 // handoff dev runs
	workers []*testworld.Process // beside it
}

func newReader(t *testing.T) *reader {
	r := readerIn(t, t.TempDir())
	docs, err := filepath.Abs("../docs")
	if err != nil {
		t.Fatal(err)
	}
	r.link(docs, "docs")
	r.link(testworld.Handoff(t), "bin/handoff")
	return r
}

// readerIn is a reader in a directory, with nothing but its folder bin before the programs of
// this machine.
func readerIn(t *testing.T, dir string) *reader {
	r := &reader{t: t, dir: dir, env: map[string]string{}, ports: map[string]string{}}
	r.env["PATH"] = filepath.Join(r.dir, "bin") + string(os.PathListSeparator) + os.Getenv("PATH")
	r.env["XDG_CONFIG_HOME"], r.env["XDG_DATA_HOME"], r.env["XDG_STATE_HOME"] = r.dir, r.dir, r.dir
	r.env["NO_COLOR"] = "1"
	return r
}

// link puts a file of the clone, or a program, where a reader has it.
func (r *reader) link(to, name string) {
	path := filepath.Join(r.dir, name)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.Symlink(to, path)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// programs links the programs of NATS that a page uses.
func (r *reader) programs(page string) {
	if strings.Contains(page, "nats-server -c") {
		r.link(testworld.NATSServer(r.t), "bin/nats-server")
	}
	if strings.Contains(page, "nk -gen") {
		r.link(testworld.NK(r.t), "bin/nk")
	}
}

// block matches a block of code, with its language.
var block = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$")

func (r *reader) read(page string) {
	r.programs(page)
	for _, found := range block.FindAllStringSubmatch(page, -1) {
		if found[1] == "console" {
			r.console(found[2])
		} else {
			r.file(found[2])
		}
	}
}

// fixed matches a port of a page, as the manuals of NATS and Prometheus have them.
var fixed = regexp.MustCompile(`\b[468]22\d\b|\b9090\b`)

// here puts ports of this test in the place of those of the page.
func (r *reader) here(text string) string {
	return fixed.ReplaceAllStringFunc(text, func(port string) string {
		if r.ports[port] == "" {
			r.ports[port] = fmt.Sprint(testworld.Ports(r.t, 1)[0])
		}
		return r.ports[port]
	})
}

// named matches the name that the first line of a file on a page has.
var named = regexp.MustCompile(`^(?:#|//) ((?:\w+/)?[\w-]+\.(?:sh|py|go|conf|txt))\b`)

// file writes the file that a block is, if it is one.
func (r *reader) file(text string) {
	name := named.FindStringSubmatch(text)
	if name == nil {
		return
	}
	if strings.HasSuffix(name[1], ".go") && !strings.Contains(text, "\npackage main\n") {
		text = fmt.Sprintf("package main\n\nimport (\n\t\"context\"\n\t\"log\"\n\n\t%q\n)\n\nfunc main() {\n%s}\n", strings.TrimSuffix(module, "/"), text)
	}
	path := filepath.Join(r.dir, name[1])
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(r.here(text)), 0o644)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// console types the commands of a block.
func (r *reader) console(text string) {
	for _, typed := range strings.Split("\n"+text, "\n$ ")[1:] {
		command, want, _ := strings.Cut(typed, "\n")
		for strings.HasPrefix(want, "> ") {
			more, rest, _ := strings.Cut(want[2:], "\n")
			command, want = command+"\n"+more, rest
		}
		r.typed++
		if file, is := strings.CutPrefix(command, "go run "); is && !strings.HasSuffix(file, " &") {
			command = r.built(file)
		}
		if command, beside := strings.CutSuffix(command, " &"); beside || strings.HasPrefix(command, "handoff dev") {
			r.start(command, want)
		} else if assigned := regexp.MustCompile(`(?s)^(?:export )?([A-Z_]+)=(?:\$\((.*)\)|(\S+))$`).FindStringSubmatch(command); assigned != nil {
			if r.env[assigned[1]] = r.here(assigned[3]); assigned[2] != "" {
				r.env[assigned[1]] = strings.TrimSpace(r.run(assigned[2], pattern(want), true))
			}
		} else if eval := regexp.MustCompile(`^eval "\$\((.*)\)"$`).FindStringSubmatch(command); eval != nil {
			for _, variable := range regexp.MustCompile(`(?m)^export (\w+)=(.*)$`).FindAllStringSubmatch(r.run(eval[1], pattern(want), true), -1) {
				r.env[variable[1]] = variable[2]
			}
		} else {
			r.run(command, pattern(want), false)
		}
	}
}

// changes matches a command that is typed once. Any other is typed again until the answer is
// what the page has: the test is faster than a reader.
var changes = regexp.MustCompile(`handoff (submit|answer|take|reroute|rollback|cancel|dismiss|dead redrive|ack|complete|fail|release|escalate|await|backup|restore|audit export)\b`)

// run types a command and returns what it prints. Of one that is assigned only standard error is
// on the page.
func (r *reader) run(command, want string, assigned bool) string {
	matches := regexp.MustCompile("(?s)^" + want + "$")
	for end := time.Now().Add(waitTimeout); ; testworld.Pause(r.t.Context(), 20*time.Millisecond) {
		cmd := exec.Command("sh", "-c", r.here(command))
		cmd.Dir, cmd.Env = r.dir, r.environ()
		var out, value bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if assigned {
			cmd.Stdout = &value
		}
		err := cmd.Run()
		if err == nil && matches.MatchString(masked(out.String())) {
			return value.String()
		}
		if changes.MatchString(command) || time.Now().After(end) {
			r.t.Fatalf("$ %s\n%s%v\nand the page has, as a pattern:\n%s", command, masked(out.String()), err, want)
		}
	}
}

// serves matches a worker, with its agent.
var serves = regexp.MustCompile(`^handoff work .*--agent (\S+)|^go run (\S+)`)

// start starts what goes on beside the rest, and waits until it printed what the page has, and
// until a worker is there.
func (r *reader) start(command, want string) {
	said := filepath.Join(r.dir, fmt.Sprintf("said-%d", r.typed))
	dev := strings.HasPrefix(command, "handoff dev")
	if dev && r.engine {
		return
	}
	if dev { // on a port of its own
		r.engine = true
		command += " --port 0"
	}
	serving := serves.FindStringSubmatch(command)
	if serving != nil && serving[2] != "" {
		command = r.built(serving[2])
	}
	beside := testworld.Start(r.t, command, r.environ(), "sh", "-c", fmt.Sprintf("cd '%s' && exec env %s >'%s'", r.dir, r.here(command), said))
	r.run("cat '"+said+"'", pattern(want)+".*", false)
	if !dev {
		r.workers = append(r.workers, beside)
	}
	switch {
	case dev:
		text, _ := os.ReadFile(said) // it was there just now
		r.env["NATS_URL"] = regexp.MustCompile(`nats://\S+`).FindString(string(text))
	case serving != nil && !strings.Contains(command, " --gateway "):
		r.run("handoff agents ls", `.*\n`+serving[1]+`\S* present [1-9].*`, false)
	}
}

// built compiles a program in Go and returns its path.
func (r *reader) built(file string) string {
	path := filepath.Join(r.dir, "program-"+strings.TrimSuffix(filepath.Base(file), ".go"))
	cmd := exec.Command("go", "build", "-o", path, filepath.Join(r.dir, file))
	if _, err := os.Stat(filepath.Join(r.dir, "go.mod")); err == nil {
		cmd.Dir = r.dir
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("%s: %v\n%s", file, err, out)
	}
	return path
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
	{regexp.MustCompile(`\b[0-9a-f]{16,64}\b`), "HASH"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d`), "DATE"},
	{regexp.MustCompile(`\d\d:\d\d:\d\d(\.\d+)?`), "TIME"},
	{regexp.MustCompile(`\d+(\.\d+)?(µs|ms|s)\b`), "LONG"},
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
