package clients_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/testworld"
)

func TestMain(m *testing.M) { testworld.Main(m) }

// languages are the clients: the program that runs one, and the ending of its files.
var languages = []struct{ program, ending string }{{"python3", "py"}, {"node", "mjs"}}

// world is an engine, and a gateway of its own that can be killed alone.
type world struct {
	t         *testing.T
	dir, nats string
	url       string // of the gateway
	gateway   *testworld.Process
	env       []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir()}
	handoff, ports := testworld.Handoff(t), testworld.Ports(t, 2)
	w.nats = fmt.Sprintf("nats://127.0.0.1:%d", ports[0])
	engine := testworld.Start(t, "engine", nil, handoff, "dev", "--data", w.dir, "--port", fmt.Sprint(ports[0]), "--no-http", "--fsync", "interval")
	engine.AwaitOutput(t.Context(), "ready")
	tokens := filepath.Join(w.dir, "callers.json")
	token, err := exec.Command(handoff, "token", "new", "--tokens", tokens, "--name", "test", "--role", "admin").Output()
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", ports[1])
	w.url = "http://" + addr
	w.gateway = testworld.Start(t, "gateway", []string{"NATS_URL=" + w.nats}, handoff, "serve", "--tokens", tokens, "--http", addr)
	w.gateway.AwaitOutput(t.Context(), "ready")
	root, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	modules := filepath.Join(w.dir, "node_modules")
	if err := os.Mkdir(modules, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(root, "js"), filepath.Join(modules, "agenthandoff")); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("testdata/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(filepath.Join(w.dir, filepath.Base(file)), body, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	w.env = []string{"PYTHONPATH=" + filepath.Join(root, "python"), "PYTHONDONTWRITEBYTECODE=1", "HANDOFF_URL=" + w.url,
		"HANDOFF_TOKEN=" + strings.TrimSpace(string(token)), "NATS_URL=" + w.nats, "XDG_DATA_HOME=" + w.dir}
	return w
}

// each runs a test with each client whose program is there.
func each(t *testing.T, test func(t *testing.T, w *world, program, ending string)) {
	for _, language := range languages {
		t.Run(language.ending, func(t *testing.T) {
			t.Parallel()
			program, err := exec.LookPath(language.program)
			if err != nil {
				t.Skipf("needs %s: %v", language.program, err)
			}
			test(t, newWorld(t), program, language.ending)
		})
	}
}

// run runs the program itself and returns its output.
func (w *world) run(args ...string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, testworld.Handoff(w.t), args...)
	cmd.Env = append(os.Environ(), w.env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		w.t.Logf("handoff %s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.String())
		if args[0] == "submit" {
			w.t.FailNow()
		}
	}
	return strings.TrimSpace(string(out))
}

func (w *world) submit(agent, task string) string {
	return w.run("submit", "--to", agent, "--reason", "a test", "--task", task, "--policy", "backoff_base_ms=100")
}

func (w *world) awaitPhase(ticket, phase string) {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		status := w.run("status", ticket)
		if strings.Contains(status, phase) {
			return
		}
		if time.Now().After(end) {
			w.t.Fatalf("no %s:\n%s", phase, status)
		}
	}
}

func (w *world) awaitAgent(agent string) {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); !strings.Contains(w.run("agents", "ls"), agent); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("no agent %s", agent)
		}
	}
}

// TestWorkers: each way to end a handoff, over HTTP and in a process that stays.
func TestWorkers(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world, program, ending string) {
		w.run("fleet", "set", `limits_by=[{"key":"test","max_concurrency":4}]`)
		worker := testworld.StartIn(t, w.dir, "worker", w.env, program, "worker."+ending, "over")
		var without []string // a process that stays needs no token
		for _, entry := range w.env {
			if !strings.HasPrefix(entry, "HANDOFF_") {
				without = append(without, entry)
			}
		}
		stays := testworld.StartIn(t, w.dir, "stays", without, testworld.Handoff(t), "work", "--agent", "stays", "--env", "PYTHONPATH",
			"--stay", "--", program, "worker."+ending, "stays")
		for _, agent := range []string{"over", "stays"} {
			w.awaitAgent(agent)
			for task, paused := range map[string]bool{"429": true, "429 of another": false} {
				ticket := w.submit(agent, task)
				w.run("wait", ticket)
				if got := w.run("history", ticket, "-o", "json"); !strings.Contains(got, `"code": "throttled"`) || strings.Contains(got, `"limit_key": "test"`) != paused || strings.Contains(got, `"limit_key": "another"`) {
					t.Errorf("%s %s: %s", agent, task, got)
				}
			}
			_ = os.Remove(filepath.Join(w.dir, "later"))
			for task, want := range map[string]string{"plain": `"attempt": 1`, "once": `"attempt": 2`, "later": `"echo": "later"`} {
				ticket := w.submit(agent, task)
				w.run("wait", ticket)
				if got := w.run("result", ticket); !strings.Contains(got, want) || !strings.Contains(got, `"brief": "You are "`) || agent == "stays" && !strings.Contains(got, `"token": null`) {
					t.Errorf("%s %s: %s\n%s", agent, task, got, w.run("history", ticket))
				}
			}
			for task, answer := range map[string][]string{"ask": {"--set", "branch=main"}, "permit": {"--permit"}} {
				ticket := w.submit(agent, task)
				w.awaitPhase(ticket, "conditional")
				w.run(append([]string{"answer", ticket}, answer...)...)
				w.run("wait", ticket)
				if got := w.run("result", ticket); !strings.Contains(got, `"answers": 1`) {
					t.Errorf("%s %s: %s", agent, task, got)
				}
			}
			for task, want := range map[string]string{"reject": "another", "escalate": "a person decides", "permanent": "broken", "next": "another"} {
				ticket := w.submit(agent, task)
				w.awaitHistory(ticket, want)
			}
			long := w.submit(agent, "long")
			w.awaitHistory(long, "reading")
			w.run("cancel", long)
			w.awaitPhase(long, "cancelled")
		}
		died := w.submit("stays", "die")
		w.run("wait", died)
		if got := w.run("result", died); !strings.Contains(got, `"attempt": 2`) {
			t.Errorf("after a death: %s\n%s", got, stays.Output())
		}
		drained := w.submit("over", "drain")
		worker.AwaitOutput(t.Context(), "begun drain")
		worker.Signal(syscall.SIGTERM)
		select {
		case <-worker.Ended():
		case <-time.After(time.Minute):
			t.Fatalf("it does not drain:\n%s", worker.Output())
		}
		if got := w.run("result", drained); worker.ExitCode() != 0 || !strings.Contains(got, `"echo": "drain"`) || !strings.Contains(worker.Output(), "drained") {
			t.Errorf("drained: %s, exit code %d\n%s", got, worker.ExitCode(), worker.Output())
		}
	})
}

func (w *world) awaitHistory(ticket, word string) {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); !strings.Contains(w.run("history", ticket), word); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("no %q:\n%s", word, w.run("history", ticket))
		}
	}
}

// TestLater: a handoff with a start is offered then, and no earlier.
func TestLater(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world, program, ending string) {
		testworld.StartIn(t, w.dir, "worker", w.env, program, "worker."+ending, "over")
		w.awaitAgent("over")
		ctx, cancel := context.WithTimeout(t.Context(), sourceMax)
		defer cancel()
		source := exec.CommandContext(ctx, program, "later."+ending, "over")
		source.Dir, source.Env = w.dir, append(os.Environ(), w.env...)
		if out, err := source.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "cancelled" {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// TestAgain: a schedule, and a signal that is sent twice and begins one handoff.
func TestAgain(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world, program, ending string) {
		testworld.StartIn(t, w.dir, "worker", w.env, program, "worker."+ending, "over")
		w.awaitAgent("over")
		template := filepath.Join(w.dir, "template.json")
		if err := os.WriteFile(template, []byte(`{"target": {"agent": "over"}, "reason": "an order", "task": {"description": {"$": "/text"}}}`), 0o600); err != nil {
			t.Fatal(err)
		}
		w.run("signal", "on", "order", "-f", template)
		ctx, cancel := context.WithTimeout(t.Context(), sourceMax)
		defer cancel()
		source := exec.CommandContext(ctx, program, "again."+ending, "over")
		source.Dir, source.Env = w.dir, append(os.Environ(), w.env...)
		if out, err := source.CombinedOutput(); err != nil || !strings.EqualFold(strings.TrimSpace(string(out)), "true") {
			t.Errorf("%v\n%s", err, out)
		}
		for end := time.Now().Add(time.Minute); !strings.Contains(w.run("signal", "list"), "0 signals waiting; 1 of an unknown name"); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("signals wait:\n%s", w.run("signal", "list"))
			}
		}
		for source, want := range map[string]string{"schedule:nightly": "1", "signal:order": "1"} {
			if got := w.run("list", "--source", source, "--count"); got != want {
				t.Errorf("%s handed off %s times, want %s", source, got, want)
			}
		}
	})
}

// TestLostLease: a worker that was frozen beyond its lease has its handler stopped.
func TestLostLease(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world, program, ending string) {
		worker := testworld.StartIn(t, w.dir, "worker", append(w.env, "LEASE=5"), program, "worker."+ending, "over")
		w.awaitAgent("over")
		ticket := w.submit("over", "long")
		worker.AwaitOutput(t.Context(), "begun long")
		worker.Freeze()
		w.awaitHistory(ticket, "lease_lost")
		worker.Thaw()
		defer func() {
			if t.Failed() {
				t.Log(w.run("history", ticket))
			}
		}()
		worker.AwaitOutput(t.Context(), "cancelled lease_lost")
	})
}

// boundaries kills a gateway in front of requests and behind them. Of those that pass, the kind and side that was
// killed least is next, and some requests lie between two kills, so that work goes on.
type boundaries struct {
	mu     sync.Mutex
	since  int // requests since the last kill
	gap    int // requests between two kills
	passed int
	killed map[string]int // by "front of POST …" or "behind POST …"
}

// next counts a request, and returns the side on which the gateway is to be killed, or "".
func (b *boundaries) next(r *http.Request) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.since++
	b.passed++
	path := strings.Split(r.URL.Path, "/")
	if len(path) > 3 && path[2] != "lease" && path[2] != "ops" {
		path[3] = "…"
	}
	kind := r.Method + " " + strings.Join(path, "/")
	front, behind := "front of "+kind, "behind "+kind
	side, least := "front", front
	if b.killed[behind] < b.killed[front] {
		side, least = "behind", behind
	}
	b.killed[front] += 0
	b.killed[behind] += 0
	for _, n := range b.killed {
		if n < b.killed[least] && b.since < 4*b.gap { // the rarer kind is awaited a while
			return ""
		}
	}
	if b.since < b.gap {
		return ""
	}
	b.since = 0
	b.killed[least]++
	return side
}

// TestKilledGateway kills the gateway in front of each kind of request and behind it, again and again, while a worker
// with four slots and a source are at work. The ledger has each handoff once, with one result.
func TestKilledGateway(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world, program, ending string) {
		target, err := url.Parse(w.url)
		if err != nil {
			t.Fatal(err)
		}
		var restarting sync.Mutex
		restart := func() {
			restarting.Lock()
			defer restarting.Unlock()
			w.gateway.Kill()
			w.gateway.Restart()
			for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				if answer, err := http.Get(w.url + "/healthz"); err == nil {
					_ = answer.Body.Close()
					return
				}
			}
		}
		proxy := httputil.NewSingleHostReverseProxy(target)
		proxy.FlushInterval, proxy.ErrorLog = -1, log.New(io.Discard, "", 0)
		proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) } // the client's connection ends, too
		kills := &boundaries{gap: gap, killed: map[string]int{}}
		front := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			switch side := kills.next(r); {
			case side == "":
				proxy.ServeHTTP(rw, r)
			case side == "front": // the request never arrives
				restart()
				panic(http.ErrAbortHandler)
			case r.Header.Get("Accept") == "text/event-stream": // cut while it is read
				time.AfterFunc(50*time.Millisecond, restart)
				proxy.ServeHTTP(rw, r)
			default: // the answer never arrives
				func() {
					defer func() { _ = recover() }()
					proxy.ServeHTTP(httptest.NewRecorder(), r)
				}()
				restart()
				panic(http.ErrAbortHandler)
			}
		}))
		front.Config.ErrorLog = nil
		defer front.Close()
		defer front.CloseClientConnections()
		env := append(w.env, "HANDOFF_URL="+front.URL)
		worker := testworld.StartIn(t, w.dir, "worker", env, program, "worker."+ending, "over")
		w.awaitAgent("over")
		ctx, cancel := context.WithTimeout(t.Context(), sourceMax)
		defer cancel()
		source := exec.CommandContext(ctx, program, "source."+ending, "over", fmt.Sprint(handoffs))
		source.Dir, source.Env = w.dir, append(os.Environ(), env...)
		var stderr bytes.Buffer
		source.Stderr = &stderr
		out, err := source.Output()
		worker.Kill()
		if err != nil {
			t.Fatalf("source: %v\n%s\nits worker:\n%s", err, stderr.String(), worker.Output())
		}
		tickets := map[string]bool{}
		for line := range strings.Lines(string(out)) {
			var end struct {
				Ticket string
				Body   struct{ Echo string }
			}
			if err := json.Unmarshal([]byte(line), &end); err != nil || !strings.HasPrefix(end.Body.Echo, "task ") {
				t.Errorf("%s: %v", line, err)
			}
			tickets[end.Ticket] = true
		}
		var list struct {
			Handoffs []struct{ Ticket, Outcome string }
		}
		if err := json.Unmarshal([]byte(w.run("list", "--target", "over", "--limit", "1000", "-o", "json")), &list); err != nil {
			t.Fatal(err)
		}
		attempts := 0
		for _, h := range list.Handoffs {
			history := w.run("history", h.Ticket, "-o", "json")
			attempts += strings.Count(history, `"type": "accepted"`)
			if n := strings.Count(history, `"type": "completed"`); n != 1 || h.Outcome != "success" || !tickets[h.Ticket] {
				t.Errorf("%s: %s, completed %d times", h.Ticket, h.Outcome, n)
			}
		}
		if len(list.Handoffs) != handoffs || len(tickets) != handoffs {
			t.Errorf("%d handoffs in the ledger, %d at their source; want %d", len(list.Handoffs), len(tickets), handoffs)
		}
		total := 0
		for _, n := range kills.killed {
			total += n
		}
		if total < 2 {
			t.Errorf("the gateway was killed %d times", total)
		}
		if audit := w.run("audit", "verify"); !strings.Contains(audit, "all is well") {
			t.Errorf("audit verify: %s", audit)
		}
		t.Logf("%d handoffs, %d attempts, %d requests, %d times killed: %v", handoffs, attempts, kills.passed, total, kills.killed)
	})
}

// TestTypes: the clients are typed, strictly.
func TestTypes(t *testing.T) {
	t.Parallel()
	t.Run("py", func(t *testing.T) {
		check(t, "python", "mypy", "--strict", "--cache-dir", t.TempDir(), "handoff.py", "../testdata/again.py", "../testdata/later.py")
	})
	t.Run("ts", func(t *testing.T) {
		w := t.TempDir()
		js, err := filepath.Abs("js")
		if err != nil {
			t.Fatal(err)
		}
		typed, err := os.ReadFile("testdata/typed.ts")
		for _, err := range []error{err, os.Mkdir(filepath.Join(w, "node_modules"), 0o700), os.Symlink(js, filepath.Join(w, "node_modules/agenthandoff")),
			os.WriteFile(filepath.Join(w, "package.json"), []byte(`{"type":"module"}`), 0o600), os.WriteFile(filepath.Join(w, "typed.ts"), typed, 0o600)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		check(t, w, "tsc", "--strict", "--noEmit", "--target", "es2022", "--module", "node16", "--moduleResolution", "node16", "--lib", "es2022,dom", "typed.ts")
	})
}

func check(t *testing.T, dir, program string, args ...string) {
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("needs %s: %v", program, err)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", program, err, out)
	}
}

// TestLength: a client is short enough to be read, and to be copied into a project.
func TestLength(t *testing.T) {
	for _, file := range []string{"python/handoff.py", "js/handoff.mjs"} {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := 0
		for line := range strings.Lines(string(body)) {
			if strings.TrimSpace(line) != "" {
				lines++
			}
		}
		if lines > 490 {
			t.Errorf("%s has %d lines", file, lines)
		}
	}
}
