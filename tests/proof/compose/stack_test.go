//go:build proof

package compose

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/testworld"
)

// stack is the compose file brought up under a name of its own. Everything of it goes
// with the test.
type stack struct {
	*testing.T
	ctx      context.Context
	name     string
	files    []string
	env      []string
	urls     []string // of NATS, from this machine
	monitors []string
	http     string // its URL, from this machine

	ourServers bool // built here, and no official image
}

// newStack makes the images, with an overlay of go build's or none, and brings nothing
// up yet. more are files that change the compose file.
func newStack(t *testing.T, ctx context.Context, overlay string, more ...string) *stack {
	t.Helper()
	needsDocker(t)
	compose, err := composeCommand()
	if err != nil {
		t.Skipf("needs docker compose: %v", err)
	}
	version, err := output(ctx, nil, compose[0], append(slices.Clone(compose[1:]), "version", "--short")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("docker compose %s", version)
	s := &stack{T: t, ctx: ctx, name: fmt.Sprintf("handoff-test-%d-%x", os.Getpid(), time.Now().UnixMilli()&0xffff), files: append([]string{composeFile}, more...)}
	ports, err := embedded.FreePorts(7)
	if err != nil {
		t.Fatal(err)
	}
	s.http = fmt.Sprintf("http://127.0.0.1:%d", ports[6])
	s.env = []string{"HANDOFF_TAG=" + s.name, fmt.Sprintf("HTTP_PORT=%d", ports[6])}
	for i := range 3 {
		s.env = append(s.env, fmt.Sprintf("NATS_%d_PORT=%d", i+1, ports[i]), fmt.Sprintf("NATS_%d_MONITOR_PORT=%d", i+1, ports[3+i]))
		s.urls = append(s.urls, fmt.Sprintf("nats://127.0.0.1:%d", ports[i]))
		s.monitors = append(s.monitors, fmt.Sprintf("http://127.0.0.1:%d", ports[3+i]))
	}
	s.ourServers = makeImages(t, s.name, overlay)
	t.Cleanup(s.down)
	return s
}

// try runs docker compose on this stack, within limit.
func (s *stack) try(ctx context.Context, limit time.Duration, args ...string) (string, error) {
	compose, err := composeCommand()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	all := append(slices.Clone(compose[1:]), "--project-name", s.name, "--progress", "plain")
	for _, f := range s.files {
		all = append(all, "--file", f)
	}
	return output(ctx, s.env, compose[0], append(all, args...)...)
}

// up brings the stack up and waits until all of it is well.
func (s *stack) up(args ...string) {
	s.Helper()
	began := time.Now()
	if _, err := s.try(s.ctx, 4*time.Minute, append([]string{"up", "--wait", "--wait-timeout", "180"}, args...)...); err != nil {
		s.Fatal(err)
	}
	s.Logf("up --wait %s: %v", strings.Join(args, " "), time.Since(began).Round(100*time.Millisecond))
}

// handoff runs a command of ours as a user would.
func (s *stack) handoff(args ...string) string {
	s.Helper()
	out, err := s.try(s.ctx, 2*time.Minute, append([]string{"run", "--rm", "--no-TTY", "handoff"}, args...)...)
	if err != nil {
		s.Fatal(err)
	}
	return out
}

// docker runs docker, with a limit that nothing here comes near.
func (s *stack) docker(args ...string) string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	out, err := output(ctx, nil, "docker", args...)
	if err != nil {
		s.Fatal(err)
	}
	return out
}

// containers are the names of those of some services, running or not.
func (s *stack) containers(services ...string) []string {
	s.Helper()
	var all []string
	for _, service := range services {
		all = append(all, strings.Fields(s.docker("ps", "--all", "--format", "{{.Names}}",
			"--filter", "label=com.docker.compose.project="+s.name, "--filter", "label=com.docker.compose.service="+service))...)
	}
	slices.Sort(all)
	return all
}

// leader is the container of the server that leads the ledger.
func (s *stack) leader() string {
	s.Helper()
	for s.ctx.Err() == nil {
		if name := testworld.Leader(s.ctx, strings.Join(s.urls, ","), jetstream.LedgerStream); name != "" {
			return s.containers(name)[0]
		}
	}
	s.Fatal("the ledger has no leader")
	return ""
}

// broker connects from this machine, by the ports that the compose file shows.
func (s *stack) broker(name string) *broker.Broker {
	s.Helper()
	engine, err := jetstream.Dial(s.ctx, jetstream.DialConfig{URL: strings.Join(s.urls, ","), Name: name})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = engine.Close() })
	b := brokertest.Over(s, engine)
	return b
}

// indexed asks an index of the stack how many are closed.
func indexed(b *broker.Broker) func(context.Context) (int64, error) {
	return func(ctx context.Context) (int64, error) {
		open := false
		a, err := ask.Client{Asker: b}.Count(ctx, ask.CountQuery{Filter: ask.Filter{Open: &open}, Question: ask.Question{WaitMS: 10_000}})
		return a.Count, err
	}
}

// sources submits to an agent until the returned function is called, which returns
// when all has been answered.
func (s *stack) sources(n int, agent string, acks *testworld.Acks) (stop func()) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan error, n)
	for i := range n {
		b := s.broker(fmt.Sprint("source ", i))
		go func() { ended <- testworld.Submit(ctx, b, fmt.Sprint(s.name, " source ", i), agent, acks.Add) }() // joined by stop
	}
	return func() {
		cancel()
		for range n {
			if err := <-ended; err != nil {
				s.Error(err)
			}
		}
	}
}

func (s *stack) pause(d time.Duration) { testworld.Pause(s.ctx, d) }

// down takes away everything that carries the name of the stack, and sees that it has.
func (s *stack) down() {
	ctx := context.Background()
	if s.Failed() {
		if logs, err := s.try(ctx, time.Minute, "logs", "--tail", "25", "--no-color"); err == nil {
			s.Logf("the last of each container:\n%s", last(logs, 20_000))
		}
		if states, err := s.try(ctx, time.Minute, "ps", "--all"); err == nil {
			s.Log(states)
		}
	}
	if _, err := s.try(ctx, 3*time.Minute, "--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "5"); err != nil {
		s.Error(err)
	}
	for _, kind := range []string{"container ls --all", "network ls", "volume ls"} {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		left, err := output(ctx, nil, "docker", append(strings.Fields(kind), "--quiet", "--filter", "label=com.docker.compose.project="+s.name)...)
		cancel()
		if err != nil || left != "" {
			s.Errorf("docker %s: left behind: %q, %v", kind, left, err)
		}
	}
}
