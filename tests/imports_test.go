package tests

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/agenthandoff/handoff/"

// importRule is one rule of who may import what, and the reason that a person who
// breaks it reads.
type importRule struct {
	who    string   // package path below the module; a trailing /... takes what is below it too
	not    []string // with what is below it; a trailing ! forbids the package alone
	except []string // of who
	why    string
}

var arrows = []importRule{
	{who: "protocol/...", not: []string{module + "broker", module + "worker", module + "internal/supervisor", module + "internal/cli", module + "cmd"},
		why: "imports point one way: cmd -> supervisor | worker -> api -> broker -> lifecycle -> protocol"},
	{who: "protocol", not: []string{module + "internal/lifecycle", module + "internal/schema", module + "internal/record"},
		why: "protocol is the wire and knows nothing of what is decided about it"},
	{who: "internal/lifecycle", not: []string{module + "broker", module + "worker", module + "api", module + "internal/jetstream", module + "internal/supervisor", module + "internal/index", module + "internal/schema", module + "internal/cli"},
		why: "the core decides on the wire's values alone"},
	{who: "internal/record", not: []string{module + "broker", module + "worker", module + "api", module + "internal/lifecycle"},
		why: "a record is the wire's values as bytes"},
	{who: "internal/schema", not: []string{module + "broker", module + "worker", module + "api", module + "internal"},
		why: "a schema describes the wire's values"},
	{who: "broker/...", not: []string{module + "worker", module + "internal/supervisor", module + "internal/cli", module + "cmd"},
		why: "the broker serves workers and supervisors and knows neither"},
	{who: "worker/...", not: []string{module + "internal/supervisor", module + "internal/cli", module + "cmd"},
		why: "a worker reports facts; what follows is the core's decision and the supervisor's append"},
	{who: "internal/supervisor/...", not: []string{module + "worker", module + "internal/cli", module + "cmd"},
		why: "a supervisor reconciles handoffs and never works on one"},
	{who: "...", not: []string{"github.com/nats-io/nats.go"}, except: []string{"internal/jetstream", "internal/backup", "internal/embedded", "internal/brokertest", "internal/bench/bare", "internal/gateway/nats", "internal/cli", "internal/testworld"},
		why: "internal/jetstream is the engine on NATS; gateway/nats serves clients outside of the engine's account, and the command line connects"},
	{who: "internal/gateway/nats/...", not: []string{module + "internal/supervisor", module + "internal/index", module + "internal/telemetry", module + "internal/bench", module + "internal/cli", module + "cmd", "github.com/nats-io/nats.go/jetstream"},
		why: "a gateway relays what agents say and runs the broker for them; it decides nothing, and never touches a stream by itself"},
	{who: "internal/gateway/http/...", not: []string{module + "worker", module + "internal/supervisor", module + "internal/index!", module + "internal/telemetry", module + "internal/bench", module + "internal/cli", module + "internal/gateway/nats", module + "cmd", "github.com/nats-io"},
		why: "a gateway authenticates, decodes, calls one operation of the api and encodes; it decides nothing"},
	{who: "internal/gateway/page/...", not: []string{module + "worker", module + "internal/supervisor", module + "internal/index!", module + "internal/telemetry", module + "internal/bench", module + "internal/cli", module + "internal/gateway/nats", module + "internal/gateway/http", module + "internal/jetstream", module + "cmd", "github.com/nats-io"},
		why: "a view reads by the api, and an act is one operation of it; the gateway knows the sessions"},
	{who: "...", not: []string{module + "internal/gateway"}, except: []string{"internal/gateway/nats", "internal/gateway/http", "internal/gateway/page", "internal/bench", "internal/cli"},
		why: "a worker acts by a session and does not know whose; the command line chooses, and a benchmark compares"},
	{who: "api/...", not: []string{module + "worker", module + "internal/supervisor", module + "internal/telemetry", module + "internal/bench", module + "internal/gateway", module + "internal/cli", module + "cmd", "github.com/nats-io"},
		why: "the operations have their rules in one place, over the broker; gateways call them, and not the other way round"},
	{who: "internal/explain/...", not: []string{module + "worker", module + "internal/supervisor", module + "internal/telemetry", module + "api", module + "internal/gateway", module + "internal/cli", module + "internal/index!", "github.com/nats-io"},
		why: "every gateway explains a handoff alike: an explanation is made of state and directory, and knows no command line"},
	{who: "internal/dossier/...", not: []string{module + "worker", module + "internal/supervisor", module + "internal/telemetry", module + "internal/gateway", module + "internal/cli", module + "internal/index!", module + "internal/jetstream", "github.com/nats-io"},
		why: "a view is made of a reader of the api, so that every way in shows the same"},
	{who: "internal/brief", not: []string{module + "broker", "context", "log", "log/slog", "os", "net", "sync", "time"},
		why: "a package reads the same for every reader: it is rendered from the wire alone"},
	{who: "internal/assist", not: []string{module + "broker", module + "internal/lifecycle", module + "internal", module + "worker"},
		why: "a question to a command or a model is asked by a command line, and moves no handoff"},
	{who: "...", not: []string{module + "internal/assist"}, except: []string{"internal/assist", "internal/cli"},
		why: "no operation waits for a model: what a model answered is in the package before it is submitted"},
	{who: "internal/doctor/...", not: []string{module + "worker", module + "internal/supervisor", module + "internal/telemetry", module + "api", module + "internal/gateway", module + "internal/cli", module + "internal/index!", "github.com/nats-io"},
		why: "a doctor reads and judges for every gateway: it knows no command line, and what mends is elsewhere"},
	{who: "...", not: []string{module + "api/apitest"},
		why: "the suite that every implementation of the operations passes is for tests alone"},
	{who: "...", not: []string{"github.com/nats-io/nats-server/v2"}, except: []string{"internal/embedded"},
		why: "internal/embedded is the only room with a server in it"},
	{who: "...", not: []string{"github.com/nats-io/jsm.go"}, except: []string{"internal/backup"},
		why: "snapshots of streams are made and put back in one room"},
	{who: "...", not: []string{"github.com/santhosh-tekuri/jsonschema/v6"}, except: []string{"internal/schema"},
		why: "JSON Schema is checked in one place"},
	{who: "...", not: []string{"go.opentelemetry.io"}, except: []string{"internal/telemetry"},
		why: "telemetry is the only room that knows OpenTelemetry; the others carry a trace as the words of W3C (protocol.TraceContext)"},
	{who: "...", not: []string{"github.com/spf13/cobra"}, except: []string{"internal/cli"},
		why: "flags belong to the command line"},
	{who: "internal/lifecycle", not: []string{"context", "log", "log/slog", "math/rand", "math/rand/v2", "os", "net", "sync"},
		why: "the core is pure: no clock, chance, I/O, goroutine, logger or context"},
	{who: "protocol", not: []string{"context", "log", "log/slog", "math/rand", "math/rand/v2", "os", "net"},
		why: "the wire does no I/O"},
	{who: "internal/telemetry/...", not: []string{module + "worker", module + "internal/supervisor", module + "internal/index", module + "internal/cli", module + "cmd"},
		why: "telemetry watches the broker; what the others have to show, cmd hands to it"},
	{who: "...", not: []string{module + "internal/telemetry"}, except: []string{"internal/cli", "internal/telemetry"},
		why: "no room depends on being watched: broker.Observer and the small hooks of the others are enough, and cmd wires them"},
	{who: "...", not: []string{"github.com/prometheus"}, except: []string{"internal/telemetry"},
		why: "figures are named and counted in one room"},
	{who: "internal/index/...", not: []string{module + "worker", module + "internal/supervisor", module + "internal/telemetry", module + "internal/cli", module + "cmd"},
		why: "the index reads the ledger through the broker and serves questions; it moves no handoff"},
	{who: "protocol/...", not: []string{module + "internal/index"}, why: "the index is disposable: nothing that moves a handoff may depend on it"},
	{who: "broker/...", not: []string{module + "internal/index"}, why: "the index is disposable: nothing that moves a handoff may depend on it"},
	{who: "worker/...", not: []string{module + "internal/index"}, why: "the index is disposable: nothing that moves a handoff may depend on it"},
	{who: "internal/supervisor/...", not: []string{module + "internal/index"}, why: "the index is disposable: nothing that moves a handoff may depend on it"},
	{who: "internal/index/ask", not: []string{module + "internal/index"}, why: "a program that asks questions links no index and no database"},
	{who: "...", not: []string{module + "internal/index!"}, except: []string{"internal/index", "internal/bench", "internal/cli"},
		why: "a question needs index/ask; only the command that runs an index, and the benchmark, need the index itself"},
	{who: "...", not: []string{"modernc.org/sqlite", "database/sql"}, except: []string{"internal/index"},
		why: "SQLite is the index's own affair"},
	{who: "...", not: []string{module + "internal/bench"}, except: []string{"internal/bench", "internal/cli"},
		why: "what is measured does not know who measures"},
	{who: "...", not: []string{module + "internal/bench/bare"}, except: []string{"internal/bench/bare", "internal/bench"},
		why: "the bare engine is what handoffs are compared with, and nothing to build on"},
	{who: "internal/bench/bare", not: []string{module + "internal/lifecycle"},
		why: "the bare engine knows no protocol"},
	{who: "...", not: []string{"github.com/HdrHistogram"}, except: []string{"internal/bench", "internal/bench/bare"},
		why: "histograms are for measurements"},
	{who: "...", not: []string{module + "internal/testworld"}, except: []string{"internal/testworld", "internal/testworld/testmcp"},
		why: "what runs fleets for tests is no part of the product"},
	{who: "...", not: []string{module + "internal/brokertest"}, except: []string{"internal/brokertest"},
		why: "the in-memory engine is for tests alone"},
}

// TestImports keeps the rooms apart. It reads what the packages import outside
// of their tests.
func TestImports(t *testing.T) {
	for path, imports := range packages(t) {
		for _, a := range arrows {
			if !covers(a.who, path) || slices.Contains(a.except, path) {
				continue
			}
			for _, imported := range imports {
				for _, not := range a.not {
					alone, exact := strings.CutSuffix(not, "!")
					if imported == alone || !exact && strings.HasPrefix(imported, not+"/") {
						t.Errorf("%s imports %s\n\t%s", path, imported, a.why)
					}
				}
			}
		}
	}
}

// TestImportsOfProofs compiles what -tags proof adds: a change of a room must not leave a
// proof behind that no longer builds.
func TestImportsOfProofs(t *testing.T) {
	cmd := exec.Command("go", "vet", "-tags", "proof", "./tests/proof/...")
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestNoClockInTheCore: the pure rooms get their time from their callers.
func TestNoClockInTheCore(t *testing.T) {
	out, err := exec.Command("git", "-C", "..", "grep", "-nE", `time\.(Now|Since|Until|After|Sleep)\(`, "--", "protocol", "internal/lifecycle", "internal/schedule", "internal/schema", "internal/record").Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return // nothing found
	}
	if err != nil {
		t.Skipf("git grep: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, "_test.go:") {
			t.Errorf("a clock in a pure room: %s\tbring time in as an argument or in the event", line)
		}
	}
}

func packages(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	found := map[string][]string{}
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		found[strings.TrimSuffix(strings.TrimPrefix(p.ImportPath+"/", module), "/")] = p.Imports
	}
	if len(found) < 5 {
		t.Fatalf("go list found %d packages", len(found))
	}
	return found
}

// covers matches a path against "a", "a/..." (a and what is below it) or "...".
func covers(pattern, path string) bool {
	if pattern == "..." {
		return true
	}
	if below, ok := strings.CutSuffix(pattern, "/..."); ok {
		return path == below || strings.HasPrefix(path, below+"/")
	}
	return path == pattern
}
