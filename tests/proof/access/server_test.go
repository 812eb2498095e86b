//go:build proof

// Package access proves what docs/operations/accounts.conf promises: on a real server
// that has loaded it, every role can do its business with the real commands, and what
// it may not do it cannot.
//
//	go test -tags proof ./tests/proof/access -v    # prints the outcome of each attack by each role
package access

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/agenthandoff/handoff/internal/testworld"
)

// testTimeout bounds everything that is waited for, on a machine that does much else.
const testTimeout = 2 * time.Minute

func TestMain(m *testing.M) { testworld.Main(m) }

// roles are the users that accounts.conf has, as its variables name them.
var roles = []string{"sys", "operator", "supervisor", "index", "gateway", "builder", "reader", "trusted-submitter", "reviewer", "tester"}

// prefixes are the inboxes of those that have their own.
var prefixes = map[string]string{"builder": "_INBOX_builder"}

// server is a server with accounts.conf, and the keys of all who may come in.
type server struct {
	*testworld.Node
	nodes    []*testworld.Node // of its cluster
	t        *testing.T
	dir      string
	bin      string
	seedFile map[string]string // the files, by role
	env      map[string]string // of the server
}

// startServer starts a server with the accounts exactly as they are in docs/operations.
func startServer(t *testing.T) *server {
	t.Helper()
	return startServers(t, 1, 1)
}

// startServers starts so many, which keep as many replicas, of a ledger of so many partitions.
func startServers(t *testing.T, servers, partitions int) *server {
	t.Helper()
	if testworld.Race {
		t.Skip("the processes under test have no race detector in them: run it without -race")
	}
	h := &server{t: t, dir: t.TempDir(), bin: testworld.Handoff(t), seedFile: map[string]string{}, env: map[string]string{}}
	h.write("accounts.conf", accountsOf(t, partitions))
	var env []string
	for _, role := range roles {
		pair, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		seed, _ := pair.Seed()
		public, _ := pair.PublicKey()
		h.seedFile[role] = h.write(role+".nk", seed)
		h.env[variable(role)] = public
		env = append(env, variable(role)+"="+public)
	}
	if servers == 1 {
		h.nodes = []*testworld.Node{testworld.StartServer(t, h.dir, "include accounts.conf\n", env...)}
	} else {
		h.nodes = testworld.StartServers(t, servers, h.dir, "include accounts.conf\n", env...)
	}
	h.Node = h.nodes[0]
	h.must("operator", "topology", "ensure", "--fsync", "interval", "--replicas", fmt.Sprint(servers), "--partitions", fmt.Sprint(partitions))
	return h
}

// accountsOf returns accounts.conf for a ledger of so many partitions.
func accountsOf(t *testing.T, partitions int) []byte {
	t.Helper()
	operations := filepath.Join("..", "..", "..", "docs", "operations")
	accounts := filepath.Join(operations, "accounts.conf")
	if partitions == 1 {
		body, err := os.ReadFile(accounts)
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	awk, err := exec.LookPath("awk")
	if err != nil {
		t.Skip("awk is not installed: it makes accounts.conf for several partitions")
	}
	body, err := exec.Command(awk, "-v", fmt.Sprint("n=", partitions), "-f", filepath.Join(operations, "partitions.awk"), accounts).Output()
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func (h *server) write(name string, body []byte) string {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	if err := os.WriteFile(path, body, 0o600); err != nil {
		h.t.Fatal(err)
	}
	return path
}

// envOf is the environment in which a command is run by a role.
func (h *server) envOf(role string) []string {
	return []string{"NATS_URL=" + h.URL, "NATS_NKEY=" + h.seedFile[role], "NATS_INBOX_PREFIX=" + prefixes[role], "NATS_CONTEXT=", "NATS_CREDS=", "XDG_CONFIG_HOME=" + h.dir}
}

// commandResult is a command that has ended.
type commandResult struct {
	code        int
	out, errout string
}

// run runs a command as a role, to its end.
func (h *server) run(role string, args ...string) commandResult {
	h.t.Helper()
	return h.runAs(h.envOf(role), args...)
}

// runAs runs a command with that added to our environment, to its end.
func (h *server) runAs(env []string, args ...string) commandResult {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), testTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, h.bin, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, errout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errout
	_ = cmd.Run()
	return commandResult{cmd.ProcessState.ExitCode(), strings.TrimSpace(out.String()), strings.TrimSpace(errout.String())}
}

// must is run, and has to succeed. It returns what was printed.
func (h *server) must(role string, args ...string) string {
	h.t.Helper()
	got := h.run(role, args...)
	if got.code != 0 {
		h.t.Fatalf("handoff %s, as %s, ended with %d: %s", strings.Join(args, " "), role, got.code, got.errout)
	}
	return got.out
}

// start starts a process of ours as a role.
func (h *server) start(role string, args ...string) *testworld.Process {
	h.t.Helper()
	return h.startWith(role, h.envOf(role), args...)
}

func (h *server) startWith(name string, env []string, args ...string) *testworld.Process {
	h.t.Helper()
	return testworld.Start(h.t, name, env, h.bin, args...)
}

// awaitOutput waits until a process has said something.
func (h *server) awaitOutput(p *testworld.Process, what string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), testTimeout)
	defer cancel()
	p.AwaitOutput(ctx, what)
}

// dial connects as a role, with nothing of Handoff's.
func (h *server) dial(role string, options ...nats.Option) *nats.Conn {
	h.t.Helper()
	return h.dialAt(h.Node, role, options...)
}

// dialAt is dial at one server of a cluster.
func (h *server) dialAt(node *testworld.Node, role string, options ...nats.Option) *nats.Conn {
	h.t.Helper()
	seed, err := nats.NkeyOptionFromSeed(h.seedFile[role])
	if err != nil {
		h.t.Fatal(err)
	}
	options = append(options, seed, nats.Name("bare "+role), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if prefix := prefixes[role]; prefix != "" {
		options = append(options, nats.CustomInboxPrefix(prefix))
	}
	nc, err := nats.Connect(node.URL, options...)
	if err != nil {
		h.t.Fatalf("%s: %v", role, err)
	}
	h.t.Cleanup(nc.Close)
	return nc
}

// program writes an executable shell script.
func (h *server) program(name, script string) string {
	h.t.Helper()
	path := h.write(name, []byte("#!/bin/sh\n"+script))
	if err := os.Chmod(path, 0o700); err != nil { //nolint:gosec // it is to be run
		h.t.Fatal(err)
	}
	return path
}

// field reads one of a command's JSON output.
func field[T any](t *testing.T, document, name string) (value T) {
	t.Helper()
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(document), &fields); err != nil {
		t.Fatalf("%v in %s", err, document)
	}
	if err := json.Unmarshal(fields[name], &value); err != nil {
		t.Fatalf("field %s of %s: %v", name, document, err)
	}
	return value
}

// denials are what the server says it did not let anybody do. Those that are expected
// begin with one of the words.
func (h *server) denials(expected ...string) (found []string) {
	for _, node := range h.nodes {
		for line := range strings.Lines(node.Output()) {
			_, what, denied := strings.Cut(line, "Violation")
			if denied && !slices.ContainsFunc(expected, func(word string) bool { return strings.Contains(what, word) }) {
				found = append(found, strings.TrimSpace(line))
			}
		}
	}
	return found
}
