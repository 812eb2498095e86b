package tests

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

// TestCLI tells stories of the command line. Each script in tests/script has an
// engine of its own (handoff dev), and every command runs within the test's process. In the
// scripts of tests/script/process, which kill, interrupt or trace, and in shell scripts,
// every command is the real binary in a process of its own.
//
// Beside what testscript knows, scripts have:
//
//	handoff ARGS…        run it; it must exit with 0
//	dev [FLAGS]          start handoff dev on $WORK/data; sets NATS_URL, and FIGURES with --metrics
//	undev                stop it with Ctrl-C; it must exit with 0
//	work [FLAGS] -- CMD  start handoff work, and wait until it serves; sets FIGURES likewise
//	unwork               stop all of those with Ctrl-C; they must exit with 0
//	drain                press Ctrl-C once at the worker started last, and go on
//	gateway [FLAGS]         start handoff gateway, and wait until it answers; sets FIGURES likewise
//	ungateway               stop the gateway started last with Ctrl-C; it must exit with 0
//	crash work|gateway|dev  kill the worker started last, the gateway started first, or dev,
//	                     with SIGKILL
//	interrupt AGENT N ARGS…
//	                     run handoff ARGS, press Ctrl-C once AGENT has a
//	                     holder; it must exit with N and leave no holder
//	code N CMD…          run CMD, which must exit with N
//	input FILE           is the standard input of the next command
//	let NAME CMD…        run CMD and keep its stdout in a variable
//	eventually RE CMD…   run CMD until its stdout matches
//	exists-soon FILE     wait until there is such a file, with something in it or not
//	passed INSTANT       wait until it is over
//	json PATH [VALUE]    the last stdout, as JSON, has VALUE (or anything) at a.b.0
//	get NAME PATH        keep what is there in a variable
//	golden NAME CMD…     run CMD; its exit code, stdout and stderr are as in golden/NAME.txt
//	ledger [unchanged]   remember how long the ledger is, or compare with that; what a
//	                     supervisor settles in its own time does not count
//	large FILE N         write a package of N bytes
//	forge NAME LEASE [FIELD VALUE]…
//	                     keep a lease of the same offer with another holder, and with
//	                     these fields of its token changed; next is the next number
//	mkcontext NAME URL   make a context of the nats command line
//	httpget CODE URL RE… get it until the answer has that code and matches each RE
//	plain-server         start a NATS server without Handoff's streams
//	weaken STREAM        have it keep what it has for a day
//	alerts [NAME…]       the alert rules of docs/operations, evaluated over the figures
//	                     as they are now, held for two hours: these fire, and no others
//
// At the end of a script every queued offer belongs to an open handoff, and handoff doctor finds
// no problem if none is open.
func TestCLI(t *testing.T) {
	runScripts(t, "script", false)
	runScripts(t, "script/process", true)
}

func runScripts(t *testing.T, dir string, processes bool) {
	bin := filepath.Dir(testworld.Handoff(t))
	testscript.Run(t, testscript.Params{
		Dir: dir,
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", bin+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, "config"))
			env.Setenv("XDG_DATA_HOME", filepath.Join(env.WorkDir, "share"))
			env.Setenv("XDG_STATE_HOME", filepath.Join(env.WorkDir, "state"))
			env.Values[stateKey{}] = &scriptState{t: env.T(), processes: processes, golden: map[string]bool{}, standIns: map[string]string{}}
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"handoff": cmdHandoff, "dev": cmdDev, "undev": cmdUndev, "work": cmdWork, "unwork": cmdUnwork, "gateway": cmdGateway, "ungateway": cmdUngateway, "crash": cmdCrash, "drain": cmdDrain, "interrupt": cmdInterrupt, "code": cmdCode, "eventually": cmdEventually, "let": cmdLet, "each": cmdEach, "passed": cmdPassed, "exists-soon": cmdExistsSoon,
			"json": cmdJSON, "get": cmdGet, "ledger": cmdLedger, "large": cmdLarge,
			"forge": cmdForge, "mkcontext": cmdContext, "httpget": cmdHTTPGet,
			"plain-server": cmdPlainServer, "weaken": cmdWeaken, "alerts": cmdAlerts, "figures": cmdFigures,
			"golden": cmdGolden, "input": cmdInput, "model": cmdModel,
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

// storiesAtOnce is how many parallel tests run at a time without -parallel: a script mostly waits
// for clocks, so two processors run several.
const storiesAtOnce = 10

// TestMain has more tests run side by side than there are processors.
func TestMain(m *testing.M) {
	flag.Parse()
	if at := flag.Lookup("test.parallel"); at.Value.String() == at.DefValue {
		if err := at.Value.Set(strconv.Itoa(storiesAtOnce)); err != nil {
			panic(err)
		}
	}
	time.Local = time.UTC // as every story expects, and golden files have it
	testworld.Main(m)
}

func cmdDev(ts *testscript.TestScript, neg bool, args []string) {
	// An fsync for each write would only slow the tests down.
	args = append([]string{"dev", "--data", ts.MkAbs("data"), "--port", "0", "--fsync", "interval"}, args...)
	p, url := start(ts, args, false, func(line string) string {
		if url, figures := strings.CutPrefix(line, "metrics "); figures {
			setFigures(ts, url)
		}
		url, ready := strings.CutPrefix(line, "ready ")
		if !ready {
			return ""
		}
		return url
	})
	of(ts).dev = p
	ts.Defer(func() {
		if of(ts).dev == p {
			checkEnd(ts, url)
		}
	})
	ts.Setenv("NATS_URL", url)
	ts.Setenv("PORT", url[strings.LastIndex(url, ":")+1:])
}

func cmdUndev(ts *testscript.TestScript, neg bool, args []string) {
	if err := of(ts).dev.stop(os.Interrupt); err != nil {
		ts.Fatalf("handoff dev, interrupted: %v", err)
	}
}

func cmdWork(ts *testscript.TestScript, neg bool, args []string) {
	p, _ := start(ts, append([]string{"work"}, args...), true, func(line string) string {
		if _, url, figures := strings.Cut(line, `"showing figures" url=`); figures {
			setFigures(ts, url)
		}
		if strings.Contains(line, "worker ready") {
			return line
		}
		return ""
	})
	of(ts).work = append(of(ts).work, p)
	ts.Defer(p.awaitExit)
}

// awaitExit lets an idle worker end by itself before it is killed, so that its last
// acknowledgements reach the queue.
func (p *process) awaitExit() {
	p.signal(os.Interrupt)
	select {
	case <-p.done:
	case <-time.After(exitTimeout):
	}
}

// exitTimeout is how long that may take. A worker whose program does not end takes longer.
const exitTimeout = 3 * time.Second

func cmdUnwork(ts *testscript.TestScript, neg bool, args []string) {
	for _, p := range of(ts).work {
		if err := p.stop(os.Interrupt); err != nil {
			ts.Fatalf("handoff work, interrupted: %v", err)
		}
	}
}

func cmdGateway(ts *testscript.TestScript, neg bool, args []string) {
	p, _ := start(ts, append([]string{"gateway"}, args...), false, func(line string) string {
		if url, figures := strings.CutPrefix(line, "metrics "); figures {
			setFigures(ts, url)
		}
		subjects, ready := strings.CutPrefix(line, "ready ")
		if !ready {
			return ""
		}
		return subjects
	})
	of(ts).gateways = append(of(ts).gateways, p)
}

func cmdUngateway(ts *testscript.TestScript, neg bool, args []string) {
	last := len(of(ts).gateways) - 1
	p := of(ts).gateways[last]
	of(ts).gateways = of(ts).gateways[:last]
	if err := p.stop(os.Interrupt); err != nil {
		ts.Fatalf("handoff gateway, interrupted: %v", err)
	}
}

// cmdDrain presses Ctrl-C at a worker without waiting for its end.
func cmdDrain(ts *testscript.TestScript, neg bool, args []string) {
	all := of(ts).work
	all[len(all)-1].signal(os.Interrupt)
}

// cmdCrash kills a process with SIGKILL.
func cmdCrash(ts *testscript.TestScript, neg bool, args []string) {
	p := of(ts).dev
	switch args[0] {
	case "work":
		last := len(of(ts).work) - 1
		p, of(ts).work = of(ts).work[last], of(ts).work[:last]
	case "gateway":
		p, of(ts).gateways = of(ts).gateways[0], of(ts).gateways[1:]
	}
	var exit *exec.ExitError
	if err := p.stop(os.Kill); !errors.As(err, &exit) {
		ts.Fatalf("killed, it ended with %v", err)
	}
}

func cmdInterrupt(ts *testscript.TestScript, neg bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	engine := dialScript(ctx, ts)
	defer func() { _ = engine.Close() }()
	p := spawn(ts, args[2:], nil, nil, nil)
	present := func() bool {
		directory, err := engine.Directory(ctx)
		ts.Check(err)
		for _, h := range directory.Holders {
			if h.Agent == args[0] && !h.IsPoll() {
				return true
			}
		}
		return false
	}
	eventually(ctx, ts, "a holder of "+args[0], present)
	var exit *exec.ExitError
	if err := p.stop(os.Interrupt); !errors.As(err, &exit) || fmt.Sprint(exit.ExitCode()) != args[1] {
		ts.Fatalf("interrupted, it ended with %v, want exit code %s", err, args[1])
	}
	eventually(ctx, ts, "that "+args[0]+" has no holder", func() bool { return !present() })
}

// eventually polls until so returns true.
func eventually(ctx context.Context, ts *testscript.TestScript, what string, so func() bool) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-ctx.Done():
			ts.Fatalf("waited in vain for %s", what)
		case <-tick.C:
		}
	}
}

func dialScript(ctx context.Context, ts *testscript.TestScript) *jetstream.Engine {
	engine, err := jetstream.Dial(ctx, jetstream.DialConfig{URL: ts.Getenv("NATS_URL"), Name: "handoff tests"})
	ts.Check(err)
	return engine
}

// cmdExistsSoon waits for a file that another program writes.
func cmdExistsSoon(ts *testscript.TestScript, neg bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	eventually(ctx, ts, "the file "+args[0], func() bool {
		_, err := os.Stat(ts.MkAbs(args[0]))
		return err == nil
	})
}

// cmdPassed waits for an instant while no process runs.
func cmdPassed(ts *testscript.TestScript, neg bool, args []string) {
	at, err := time.Parse(time.RFC3339Nano, args[0])
	ts.Check(err)
	if time.Until(at) > waitTimeout {
		ts.Fatalf("%s is too far away", args[0])
	}
	<-time.After(time.Until(at))
}

// at finds a.b.0 in the last stdout, or in stderr where that is empty: errors
// are JSON too.
func at(ts *testscript.TestScript, path string) (string, bool) {
	text := ts.ReadFile("stdout")
	if strings.TrimSpace(text) == "" {
		text = ts.ReadFile("stderr")
	}
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		ts.Fatalf("not one JSON value: %v\n%s", err, text)
	}
	for _, name := range strings.Split(path, ".") {
		switch in := value.(type) {
		case map[string]any:
			next, ok := in[name]
			if !ok {
				return "", false
			}
			value = next
		case []any:
			var i int
			if _, err := fmt.Sscan(name, &i); err != nil || i >= len(in) {
				return "", false
			}
			value = in[i]
		default:
			return "", false
		}
	}
	if s, ok := value.(string); ok {
		return s, true
	}
	raw, err := json.Marshal(value)
	ts.Check(err)
	return string(raw), true
}

func cmdJSON(ts *testscript.TestScript, neg bool, args []string) {
	got, ok := at(ts, args[0])
	same := ok && (len(args) == 1 || got == args[1])
	if same == neg {
		ts.Fatalf("%s is %q (there: %v); want %q, negated: %v\n%s", args[0], got, ok, args[1:], neg, ts.ReadFile("stdout"))
	}
}

func cmdGet(ts *testscript.TestScript, neg bool, args []string) {
	got, ok := at(ts, args[1])
	if !ok {
		ts.Fatalf("there is no %s in\n%s", args[1], ts.ReadFile("stdout"))
	}
	ts.Setenv(args[0], got)
}

func cmdLedger(ts *testscript.TestScript, neg bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	engine := dialScript(ctx, ts)
	defer func() { _ = engine.Close() }()
	count := 0
	ts.Check(engine.Entries(ctx, broker.From(1), func(e broker.Entry) error {
		r, err := broker.RecordOf(e)
		if err != nil || !slices.ContainsFunc(r.Events, isSettlement) {
			count++
		}
		return nil
	}))
	if len(args) == 0 {
		of(ts).ledger = count
		return
	}
	if count != of(ts).ledger {
		ts.Fatalf("the ledger has %d entries and had %d: something was written", count, of(ts).ledger)
	}
}

// isSettlement reports whether a supervisor appends the event some time after the close.
func isSettlement(e protocol.Event) bool {
	switch e.EventType() {
	case protocol.EventChildrenClosed, protocol.EventReturnSent, protocol.EventReturned:
		return true
	}
	return false
}

func cmdLarge(ts *testscript.TestScript, neg bool, args []string) {
	var n int
	_, err := fmt.Sscan(args[1], &n)
	ts.Check(err)
	head, tail := `{"source":"human","target":{"agent":"reviewer"},"reason":"r","task":{"description":"`, `"}}`
	text := head + strings.Repeat("x", max(0, n-len(head)-len(tail))) + tail
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}

func cmdForge(ts *testscript.TestScript, neg bool, args []string) {
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(args[1], "lease_"))
	ts.Check(err)
	var token map[string]any
	ts.Check(json.Unmarshal(raw, &token))
	token["h"] = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
	for i := 2; i+1 < len(args); i += 2 {
		if args[i+1] == "next" {
			token[args[i]] = token[args[i]].(float64) + 1
			continue
		}
		token[args[i]] = args[i+1]
	}
	raw, err = json.Marshal(token)
	ts.Check(err)
	ts.Setenv(args[0], "lease_"+base64.RawURLEncoding.EncodeToString(raw))
}

func cmdContext(ts *testscript.TestScript, neg bool, args []string) {
	dir := filepath.Join(ts.Getenv("XDG_CONFIG_HOME"), "nats", "context")
	ts.Check(os.MkdirAll(dir, 0o700))
	ts.Check(os.WriteFile(filepath.Join(dir, args[0]+".json"), fmt.Appendf(nil, `{"url":%q}`, args[1]), 0o600))
}

// setFigures keeps where a process shows figures, and the port of it.
func setFigures(ts *testscript.TestScript, url string) {
	url = strings.TrimSuffix(url, "/metrics")
	ts.Setenv("FIGURES", url)
	ts.Setenv("FIGURES_PORT", url[strings.LastIndex(url, ":"):])
}

func cmdHTTPGet(ts *testscript.TestScript, neg bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	eventually(ctx, ts, strings.Join(args, " "), func() bool {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, args[1], nil)
		ts.Check(err)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		defer func() { _ = res.Body.Close() }()
		body, err := io.ReadAll(res.Body)
		if err != nil || fmt.Sprint(res.StatusCode) != args[0] {
			return false
		}
		for _, want := range args[2:] {
			if !regexp.MustCompile("(?m)" + want).Match(body) {
				return false
			}
		}
		_, err = ts.Stdout().Write(body)
		ts.Check(err)
		return true
	})
}
