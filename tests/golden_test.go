package tests

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/agenthandoff/handoff/internal/cli"
)

var writeGolden = flag.Bool("write-golden", false, "write tests/golden anew, where a command's output or help is meant to change")

const goldenDir = "golden"

// cmdGolden runs a command and compares its exit code, stdout and stderr with the file
// golden/NAME.txt. What differs from run to run is replaced first; see stable.
func cmdGolden(ts *testscript.TestScript, neg bool, args []string) {
	printed := run(ts, args[1:])
	printed.show(ts)
	got := fmt.Sprintf("exit code %d\n-- stdout\n%s-- stderr\n%s", printed.code, printed.stdout, printed.stderr)
	of(ts).golden[args[0]] = true
	got = stable(ts, got)
	file := filepath.Join(goldenHome, args[0]+".txt")
	if problem := compareGolden(file, got); problem != "" {
		ts.Fatalf("%s", problem)
	}
}

// goldenHome is absolute: scripts run in directories of their own.
var goldenHome = func() string {
	dir, err := filepath.Abs(goldenDir)
	if err != nil {
		panic(err)
	}
	return dir
}()

func compareGolden(file, got string) string {
	if *writeGolden {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err.Error()
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			return err.Error()
		}
		return ""
	}
	want, err := os.ReadFile(file)
	if err != nil {
		return fmt.Sprintf("%v; write it with go test ./tests -run 'TestHelp|TestCLI/golden' -write-golden", err)
	}
	if string(want) != got {
		return fmt.Sprintf("%s has changed:\n%s", filepath.Base(file), firstDifference(string(want), got))
	}
	return ""
}

func firstDifference(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			line := func(of []string) string {
				if i < len(of) {
					return of[i]
				}
				return "(ends)"
			}
			return fmt.Sprintf("line %d\n want %s\n  got %s\nthe whole of it:\n%s", i+1, line(a), line(b), got)
		}
	}
	return ""
}

// unstable is what differs from run to run, and what stands for it. An identifier has
// the same stand-in wherever it comes up in a story.
var unstable = []struct {
	what *regexp.Regexp
	name string
	each bool // numbered
}{
	{regexp.MustCompile(`lease_[A-Za-z0-9_-]{20,}`), "LEASE", true},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "ID", true},
	{regexp.MustCompile(`\b(sha256:)?[0-9a-f]{64}\b`), "DIGEST", false},
	{regexp.MustCompile(`\b00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]\b`), "TRACEPARENT", false},
	{regexp.MustCompile(`\b[0-9a-f]{32}\b`), "TRACE", true},
	{regexp.MustCompile(`"[0-9a-f]{16}"`), `"SPAN"`, false},
	{regexp.MustCompile(`\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME", false},
	{regexp.MustCompile(`\b20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?`), "TIME", false},
	// The evening before midnight has instants of tomorrow.
	{regexp.MustCompile(`\bOn \d+ [A-Z][a-z]+ at \d\d:\d\d\b`), "At CLOCK", false},
	{regexp.MustCompile(`\bon \d+ [A-Z][a-z]+ at \d\d:\d\d\b`), "at CLOCK", false},
	{regexp.MustCompile(`\bby \d+ [A-Z][a-z]+ at \d\d:\d\d\b`), "by CLOCK", false},
	{regexp.MustCompile(`\b\d\d:\d\d(:\d\d)?\b`), "CLOCK", false},
	{regexp.MustCompile(`begins at CLOCK, in [^."]+`), "begins at CLOCK, in DURATION", false}, // which is spread
	{regexp.MustCompile(`\b(\d+ s|\d+(\.\d+)?(m|µ)?s|less than a second)\b`), "DURATION", false},
	{regexp.MustCompile(`\b[0-9.]+ [KM]iB on the disk`), "SIZE on the disk", false},
	{regexp.MustCompile(`nats://[0-9.:]+`), "URL", false},
	{regexp.MustCompile(`\n *"deciding": ?\d+,`), "", false}, // absent where it took less than a millisecond
	{regexp.MustCompile(`("(?:seq|[a-z]+_seq|offer|fence|revision|messages|bytes|[a-z]+_bytes|took_ms|lag_ms|oldest_ms|duration_ms|(?:queue|work|whole)_ms|` +
		`p50|p95|p99|mean|queue|acknowledge|work|answers|backoff|whole)\\?": ?)[0-9.e+]+`), "${1}N", false},
}

// stable replaces what differs from run to run.
func stable(ts *testscript.TestScript, text string) string {
	known := of(ts).standIns
	text = strings.ReplaceAll(text, ts.Getenv("WORK"), "$WORK")
	for _, u := range unstable {
		if strings.Contains(u.name, "$") {
			text = u.what.ReplaceAllString(text, u.name)
			continue
		}
		text = u.what.ReplaceAllStringFunc(text, func(found string) string {
			if !u.each {
				return u.name
			}
			if known[found] == "" {
				known[found] = fmt.Sprintf("%s-%d", u.name, len(known)+1)
			}
			return known[found]
		})
	}
	return text
}

// TestHelp: the help of each command is as it is in golden/help.
func TestHelp(t *testing.T) {
	seen := map[string]bool{}
	var visit func(path []string)
	visit = func(path []string) {
		name := strings.Join(append([]string{"handoff"}, path...), "-")
		if seen[name] {
			return
		}
		seen[name] = true
		help, err := handoffOutput(append(path[:len(path):len(path)], "--help"))
		if err != nil {
			t.Errorf("%s --help: %v", name, err)
			return
		}
		if len(path) > 0 { // said once, by handoff --help
			help, _, _ = strings.Cut(help, "\nGlobal flags (")
		}
		checkHelpColumns(t, name, help)
		if problem := compareGolden(filepath.Join(goldenHome, "help", name+".txt"), strings.TrimRight(help, "\n")+"\n"); problem != "" {
			t.Error(problem)
		}
		for _, sub := range append(subcommands(t, path), topics(help)...) {
			visit(append(path[:len(path):len(path)], sub))
		}
	}
	visit(nil)
	files, err := filepath.Glob(filepath.Join(goldenHome, "help", "*.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !seen[strings.TrimSuffix(filepath.Base(file), ".txt")] {
			t.Errorf("%s is of no command any more; remove it", file)
		}
	}
}

// topics are the pages of help that the help of a command lists.
func topics(help string) (names []string) {
	_, list, _ := strings.Cut(help, " TOPIC\n")
	list, _, _ = strings.Cut(list, "\n\n")
	for line := range strings.Lines(list) {
		names = append(names, strings.Fields(line)[0])
	}
	return names
}

// checkHelpColumns: help fits 80 columns, but for commands, which are to be copied.
func checkHelpColumns(t *testing.T, name, help string) {
	t.Helper()
	list, examples, more := strings.Cut(help, "\nExamples:\n")
	if more {
		_, examples, _ = strings.Cut(examples, "\n\n")
	}
	for line := range strings.Lines(list + examples) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 && !strings.HasPrefix(line, "  handoff ") {
			t.Errorf("%s --help: %d columns: %s", name, n, line)
		}
	}
}

// subcommands asks the program's own completion, which lists only commands that are shown.
func subcommands(t *testing.T, path []string) []string {
	t.Helper()
	if len(path) > 0 && (path[0] == "help" || path[0] == "completion") { // cobra's own
		return nil
	}
	out, err := handoffOutput(append(append([]string{"__complete"}, path...), ""))
	if err != nil {
		t.Fatalf("completion of %q: %v", path, err)
	}
	help, err := handoffOutput(append(path[:len(path):len(path)], "--help"))
	if err != nil {
		t.Fatal(err)
	}
	help = strings.Join(strings.Fields(help), " ") + " "
	var names []string
	for line := range strings.Lines(out) {
		name, what, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if what != "" && strings.Contains(help, " "+name+" "+what+" ") { // not a value of an argument
			names = append(names, name)
		}
	}
	return names
}

func handoffOutput(args []string) (string, error) {
	var stdout, stderr bytes.Buffer
	if code := cli.Run(context.Background(), args, strings.NewReader(""), &stdout, &stderr, func(string) string { return "" }); code != 0 {
		return "", fmt.Errorf("exit code %d: %s", code, stderr.String())
	}
	return stdout.String(), nil
}
