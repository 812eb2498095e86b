//go:build proof

package process

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/testworld"
)

// demoTimeout is a little more than the timeout of the demo itself.
const demoTimeout = 75 * time.Second

// demoSums is the line that handoff demo --json ends with.
type demoSums struct {
	Submitted, Closed, Succeeded, Escalated, Retried, Rerouted, Lost, Duplicated int
}

// TestDemo reviews a small repository that has something of everything the
// agents look for, and names that a terminal would act on.
func TestDemo(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), demoTimeout)
	defer cancel()
	repository, home := makeRepository(t, ctx), t.TempDir()
	report := filepath.Join(home, "review.md")
	demo := demoCommand(t, ctx, home, "--json", "--keep", "--dir", repository, "--report", report)
	var stdout, stderr bytes.Buffer
	demo.Stdout, demo.Stderr = &stdout, &stderr
	if err := demo.Run(); err != nil {
		t.Fatalf("demo: %v\n%s%s", err, &stdout, &stderr)
	}
	sums := parseSums(t, stdout.String())
	if sums.Lost != 0 || sums.Duplicated != 0 || sums.Submitted != 6 || sums.Closed != sums.Submitted || sums.Succeeded != sums.Submitted ||
		sums.Escalated < 1 || sums.Retried < 1 || sums.Rerouted < 1 {
		t.Errorf("sums are %+v\n%s", sums, &stderr)
	}
	for _, want := range []string{"instead of 30s", "SIGKILL", "rejected: reviewer", "rerouted: reviewer -> inspector", "needs context (long_file_lines)",
		"answered: long_file_lines", "acknowledge timeout", "maintainer -> human", "my glasses are not here yet", "May the findings be written down?", "approved: "} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("the show does not say %q", want)
		}
	}
	if strings.ContainsAny(stderr.String(), "\x1b\x07") {
		t.Errorf("control characters of the directory reached the terminal: %q", stderr.String())
	}
	checkReport(t, report)
	noneLeft(t, ctx, home)
	checkKept(t, ctx, stderr.String())
}

// checkReport looks for what the agents must have found, and for what happened
// on the way.
func checkReport(t *testing.T, path string) {
	t.Helper()
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"2 commits by 2 authors", "Ann: 1 commit", "second thoughts", // the historian's
		"go: 605 lines",                                       // the surveyor's
		"`main.go:3` FIXME mend this", "`long.go`, 601 lines", // the inspector's
		"Decided by human",                                                                             // the person's
		"The demo killed process", "acknowledge timeout", "rejected: reviewer", "0 lost, 0 done twice", // the ledger's
	} {
		if !strings.Contains(string(body), want) {
			t.Errorf("the report does not say %q", want)
		}
	}
	if bytes.ContainsAny(body, "\x1b\x07") {
		t.Error("the report has control characters")
	}
	if t.Failed() {
		t.Logf("%s", body)
	}
}

// checkKept runs the commands that the demo prints: it opens the ledger again and reads a history.
func checkKept(t *testing.T, ctx context.Context, said string) {
	t.Helper()
	kept := regexp.MustCompile(`handoff dev --data (\S+)\n\s+handoff history (\S+)`).FindStringSubmatch(said)
	if kept == nil {
		t.Fatalf("the demo does not say how to look at what it kept:\n%s", said)
	}
	dev := exec.CommandContext(ctx, testworld.Handoff(t), "dev", "--data", kept[1], "--port", "0")
	stdout, err := dev.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := dev.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = dev.Process.Signal(os.Interrupt)
		if err := dev.Wait(); err != nil {
			t.Errorf("dev: %v", err)
		}
	}()
	ready, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Errorf("dev does not get ready: %v", err)
		return
	}
	url := strings.TrimSpace(strings.TrimPrefix(ready, "ready "))
	history, err := exec.CommandContext(ctx, testworld.Handoff(t), "history", kept[2], "--nats", url).CombinedOutput()
	if err != nil || !strings.Contains(string(history), "retry_scheduled") || !strings.Contains(string(history), "completed") {
		t.Errorf("history: %v\n%s", err, history)
	}
}

// TestDemoPage plays the demo with a page: its link signs in, a person approves there before the demo does, and
// the page stays until Ctrl-C.
func TestDemoPage(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	home := t.TempDir()
	report := filepath.Join(home, "report.md")
	demo := demoCommand(t, ctx, home, "--dir", home, "--report", report, "--page", "--pace", "2s")
	stdout, err := demo.StdoutPipe()
	if err == nil {
		err = demo.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	jar, _ := cookiejar.New(nil)
	browser, site := &http.Client{Jar: jar}, ""
	post := func(path string, form url.Values) {
		r, _ := http.NewRequestWithContext(ctx, http.MethodPost, site+path, strings.NewReader(form.Encode()))
		r.Header = http.Header{"Content-Type": {"application/x-www-form-urlencoded"}, "Origin": {site}}
		answer, err := browser.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if body, _ := io.ReadAll(answer.Body); answer.StatusCode >= 400 {
			t.Errorf("%s: %s\n%s", path, answer.Status, body)
		}
	}
	asked := regexp.MustCompile(`([0-9a-f-]{8}) .* gated: before reporter`)
	var all []string
	for out := bufio.NewScanner(stdout); out.Scan(); {
		line := out.Text()
		all = append(all, line)
		if _, link, found := strings.Cut(line, "decide there: "); found {
			address, secret, _ := strings.Cut(link, "/ui/in?link=")
			site = address
			post("/ui/in", url.Values{"token": {secret}})
		}
		if m := asked.FindStringSubmatch(line); m != nil {
			ticket := ""
			for ; ticket == "" && ctx.Err() == nil; testworld.Pause(ctx, 50*time.Millisecond) { // the index has it a moment later
				answer, err := browser.Get(site + "/ui/inbox")
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(answer.Body)
				_ = answer.Body.Close()
				ticket = regexp.MustCompile(m[1] + `-[0-9a-f-]{27}`).FindString(string(body))
			}
			post("/ui/act", url.Values{"op": {"approve"}, "ticket": {ticket}, "agent": {"reporter"}, "reason": {"by a person"}})
		}
		if strings.Contains(line, "stays until Ctrl-C") {
			_ = demo.Process.Signal(os.Interrupt)
		}
	}
	_ = demo.Wait()
	printed := strings.Join(all, "\n")
	if code := demo.ProcessState.ExitCode(); code != 0 || !strings.Contains(printed, "0 lost, 0 done twice") || !strings.Contains(printed, "by a person") {
		t.Errorf("exit code %d:\n%s", code, printed)
	}
	if _, err := os.Stat(report); err != nil {
		t.Error(err)
	}
}

// TestDemoEnds ends the demo in the middle, with SIGINT and with SIGKILL: all of its processes
// must end.
func TestDemoEnds(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	for _, with := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		t.Run(with.String(), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), demoTimeout)
			defer cancel()
			home := t.TempDir()
			demo := demoCommand(t, ctx, home, "--dir", home)
			stdout, err := demo.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := demo.Start(); err != nil {
				t.Fatal(err)
			}
			out := bufio.NewScanner(stdout)
			for out.Scan() && !strings.Contains(out.Text(), "accepted: surveyor, attempt 1") {
			}
			if len(ofDemo(t, home)) < 2 {
				t.Error("no agent is a process of its own")
			}
			if err := demo.Process.Signal(with); err != nil {
				t.Fatal(err)
			}
			for out.Scan() { // to its end: Wait closes the pipe
			}
			_ = demo.Wait()
			if code := demo.ProcessState.ExitCode(); with == syscall.SIGINT && code != 130 {
				t.Errorf("after Ctrl-C the exit code is %d", code)
			}
			noneLeft(t, ctx, home)
			if left, err := os.ReadDir(home); with == syscall.SIGINT && (err != nil || len(left) > 0) {
				t.Errorf("after Ctrl-C %v is left (%v)", left, err)
			}
		})
	}
}

// demoCommand is handoff demo with a directory for temporary files of its own,
// by which its processes are known.
func demoCommand(t *testing.T, ctx context.Context, home string, args ...string) *exec.Cmd {
	t.Helper()
	demo := exec.CommandContext(ctx, testworld.Handoff(t), append([]string{"demo"}, args...)...)
	// The demo must not use an engine of the environment.
	demo.Env = append(os.Environ(), "TMPDIR="+home, "NATS_URL=nats://127.0.0.1:1", "NATS_CONTEXT=nobody")
	return demo
}

func parseSums(t *testing.T, stdout string) (sums demoSums) {
	t.Helper()
	if strings.Count(stdout, "\n") != 1 {
		t.Errorf("stdout is more than one line: %q", stdout)
	}
	decoder := json.NewDecoder(strings.NewReader(stdout))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&sums); err != nil {
		t.Fatalf("stdout is %q: %v", stdout, err)
	}
	return sums
}

// ofDemo lists the processes that have the directory in their environment.
func ofDemo(t *testing.T, home string) (pids []string) {
	t.Helper()
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range environments {
		environment, err := os.ReadFile(path)
		if err == nil && bytes.Contains(environment, []byte("TMPDIR="+home+"\x00")) {
			pids = append(pids, filepath.Base(filepath.Dir(path)))
		}
	}
	return pids
}

// noneLeft waits until no process of a demo is there any more.
func noneLeft(t *testing.T, ctx context.Context, home string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		return
	}
	every := time.NewTicker(50 * time.Millisecond)
	defer every.Stop()
	for {
		left := ofDemo(t, home)
		if len(left) == 0 {
			return
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			t.Fatalf("processes %v outlive the demo", left)
		}
	}
}

// makeRepository makes a small repository with two commits of two people.
func makeRepository(t *testing.T, ctx context.Context) string {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	dir := t.TempDir()
	git := func(who string, args ...string) {
		cmd := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull, "GIT_AUTHOR_NAME="+who,
			"GIT_AUTHOR_EMAIL=x@example.org", "GIT_COMMITTER_NAME="+who, "GIT_COMMITTER_EMAIL=x@example.org")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	write := func(name, body string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	git("", "init", "-q")
	write("main.go", "package main\n\n// FIXME mend this\x1b]0;gotcha\x07\nfunc main() {}\n")
	write("README.md", "# A small thing\n\nTODO in prose is none.\n")
	git("Ann", "add", ".")
	git("Ann", "commit", "-q", "-m", "begin")
	write("long.go", "package main\n\nfunc tangle() {\n"+strings.Repeat("\tmain()\n", 81)+"}\n"+strings.Repeat("// line\n", 516))
	write("evil\x1b[31m.sh", "echo\n")
	git("Bob", "add", ".")
	git("Bob", "commit", "-q", "-m", "second thoughts \x1b[31m")
	return dir
}
