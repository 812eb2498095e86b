//go:build proof

package hostile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// site is a Handoff of real processes, and a way in for agents.
type site struct {
	*testing.T
	ctx       context.Context
	processes []*testworld.Process
	pids      map[string]int
	enter     func(agent string) access
	shell     func(args ...string) // runs a command; nil: agents have no way in for commands
	leave     []func()             // ends the agents
}

// access is one agent's.
type access struct {
	submit func(ctx context.Context, pkg protocol.Package) (ticket string, _ error)
	wait   func(ctx context.Context, ticket string) (protocol.State, error) // until it is closed
	worker func(cfg worker.Config, h worker.Handler) (*worker.Worker, error)
	raw    func(verb, body string) error // asks a gateway for something, with anything; nil: there is no gateway
}

// The agents of the tests. Those that are outside in accounts.conf mean harm.
const (
	villain, accomplice = "reviewer", "tester"
	client, server      = "client", "server" // of the probe
	absent              = "builder"
)

func newSite(t *testing.T) *site {
	t.Helper()
	if testworld.Race {
		t.Skip("the processes under test have no race detector in them: run it without -race")
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	t.Cleanup(cancel)
	return &site{T: t, ctx: ctx, pids: map[string]int{}}
}

// start starts a process that is to be there, the same, at the end.
func (s *site) start(name string, env []string, args ...string) *testworld.Process {
	s.Helper()
	p := testworld.Start(s, name, append(env, "NATS_CONTEXT=", "XDG_CONFIG_HOME="+s.TempDir()), testworld.Handoff(s), args...)
	s.processes = append(s.processes, p)
	s.pids[name] = p.PID()
	return p
}

// devSite is "handoff dev", where agents connect to the engine.
func devSite(t *testing.T) *site {
	s := newSite(t)
	dev := s.start("dev", nil, "dev", "--port", "0", "--data", filepath.Join(t.TempDir(), "data"), "--fsync", "interval")
	url := ready(s.ctx, t, dev)
	s.enter = func(agent string) access { return s.engine(url, agent) }
	s.shell = func(args ...string) {
		s.run([]string{"NATS_URL=" + url, "NATS_NKEY=", "NATS_CREDS=", "NATS_INBOX_PREFIX="}, args...)
	}
	return s
}

// engine enters by the engine itself.
func (s *site) engine(url, agent string) access {
	s.Helper()
	engine, err := jetstream.Dial(s.ctx, jetstream.DialConfig{URL: url, Name: agent})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = engine.Close() })
	b := brokertest.Over(s, engine)
	if err := b.PutProfile(s.ctx, protocol.Profile{ID: agent}); err != nil {
		s.Fatal(err)
	}
	return access{
		submit: func(ctx context.Context, pkg protocol.Package) (string, error) {
			pkg.Source = agent
			in, err := b.Prepare(ctx, pkg)
			if err != nil {
				return "", err
			}
			head, err := b.Submit(ctx, in)
			return head.Ticket, err
		},
		wait: func(ctx context.Context, ticket string) (protocol.State, error) {
			return brokertest.Wait(ctx, b, ticket, brokertest.Closed)
		},
		worker: func(cfg worker.Config, h worker.Handler) (*worker.Worker, error) {
			return worker.New(api.Direct(b, agent), cfg, h)
		},
	}
}

// gatewaySite is a server with accounts.conf, and a supervisor, an index and a gateway on it,
// each a process of its own. Agents are outside, and enter by the gateway.
func gatewaySite(t *testing.T) *site {
	s := newSite(t)
	dir := t.TempDir()
	body, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "operations", "accounts.conf"))
	if err != nil {
		t.Fatal(err)
	}
	accounts := strings.TrimSuffix(strings.TrimSpace(string(body)), "}")
	for _, agent := range []string{client, server} { // as security.md says
		accounts += fmt.Sprintf(`AGENT_%[1]s: {
  users: [ { nkey: $HANDOFF_%[2]s_NKEY, permissions: {
    publish: { allow: [ "handoff.v1.%[1]s.>" ] }, subscribe: { allow: [ "_INBOX.>", "_INBOX_%[1]s.>" ] } } } ]
  imports: [ { service: { account: HANDOFF, subject: "handoff.v1.%[1]s.>" } } ]
}
`, agent, strings.ToUpper(agent))
	}
	if err := os.WriteFile(filepath.Join(dir, "accounts.conf"), []byte(accounts+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	keys := map[string]nkeys.KeyPair{}
	var env []string
	for _, role := range []string{"sys", "operator", "supervisor", "index", "gateway", "builder", "reader", "trusted-submitter", villain, accomplice, client, server} {
		pair, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		public, _ := pair.PublicKey()
		keys[role] = pair
		env = append(env, "HANDOFF_"+strings.ToUpper(strings.ReplaceAll(role, "-", "_"))+"_NKEY="+public)
	}
	node := testworld.StartServer(t, dir, "include accounts.conf\n", env...)
	s.processes = append(s.processes, node.Process)
	s.pids[node.Name] = node.PID()
	as := func(role string) []string {
		seed, _ := keys[role].Seed()
		path := filepath.Join(dir, role+".nk")
		if err := os.WriteFile(path, seed, 0o600); err != nil {
			t.Fatal(err)
		}
		return []string{"NATS_URL=" + node.URL, "NATS_NKEY=" + path, "NATS_CREDS=", "NATS_INBOX_PREFIX="}
	}
	s.run(as("operator"), "topology", "ensure", "--fsync", "interval", "--replicas", "1")
	s.run(as("operator"), "agents", "put", absent)
	s.start("supervisor", as("supervisor"), "supervise")
	s.start("index", as("index"), "index", "--file", filepath.Join(dir, "index.db"))
	s.start("gateway", as("gateway"), "gateway").AwaitOutput(s.ctx, "ready")
	s.enter = func(agent string) access {
		seed, _ := keys[agent].Seed()
		path := filepath.Join(dir, agent+".nk")
		if err := os.WriteFile(path, seed, 0o600); err != nil {
			t.Fatal(err)
		}
		return s.gateway(node.URL, agent, path)
	}
	return s
}

// gateway enters by a gateway.
func (s *site) gateway(url, agent, seed string) access {
	s.Helper()
	key, err := nats.NkeyOptionFromSeed(seed)
	if err != nil {
		s.Fatal(err)
	}
	nc, err := nats.Connect(url, key, nats.CustomInboxPrefix(natsgateway.InboxPrefix(agent)), nats.MaxReconnects(-1))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(nc.Close)
	c, err := natsgateway.NewClient(nc, natsgateway.ClientConfig{Agent: agent, Timeout: watchdogTimeout})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(c.Close)
	if _, err := c.Register(s.ctx, api.Registration{Profile: protocol.Profile{ID: agent}}); err != nil {
		s.Fatal(err)
	}
	return access{
		submit: func(ctx context.Context, pkg protocol.Package) (string, error) {
			if pkg.Key == "" {
				pkg.Key = nats.NewInbox()
			}
			state, err := again(ctx, func() (protocol.State, error) { return c.Submit(ctx, pkg) })
			return state.Ticket, err
		},
		wait: func(ctx context.Context, ticket string) (protocol.State, error) {
			return again(ctx, func() (protocol.State, error) { return c.Wait(ctx, ticket, "closed") })
		},
		worker: func(cfg worker.Config, h worker.Handler) (*worker.Worker, error) { return worker.New(c, cfg, h) },
		raw: func(verb, body string) error {
			msg := &nats.Msg{Subject: natsgateway.Subject(agent, verb), Header: nats.Header{"Handoff-Request": {"1"}}, Data: []byte(body)}
			_, err := nc.RequestMsg(msg, watchdogTimeout)
			return err
		},
	}
}

// again asks until there is an answer, as a gateway says that has not reached the engine in time.
func again(ctx context.Context, ask func() (protocol.State, error)) (protocol.State, error) {
	for {
		state, err := ask()
		if !errors.Is(err, broker.ErrUnreachable) || ctx.Err() != nil {
			return state, err
		}
		testworld.Pause(ctx, time.Second)
	}
}

// run runs a command to its end, which is to be a good one.
func (s *site) run(env []string, args ...string) {
	s.Helper()
	p := testworld.Start(s, args[0], append(env, "NATS_CONTEXT=", "XDG_CONFIG_HOME="+s.TempDir()), testworld.Handoff(s), args...)
	if p.Wait(); strings.Contains(p.Output(), "error") {
		s.Fatalf("handoff %s: %s", strings.Join(args, " "), p.Output())
	}
}
