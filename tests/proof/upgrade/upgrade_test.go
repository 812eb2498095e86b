//go:build proof

// Package upgrade runs two minor versions of the protocol side by side: this one and
// the next, which is this one's sources with a patch.
package upgrade

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

func TestMain(m *testing.M) { testworld.Main(m) }

const (
	// startTimeout is how long a process may take to be ready, on a busy machine.
	startTimeout = time.Minute
	// closeTimeout is how long a handoff may take to close: it fails once or twice.
	closeTimeout = 2 * time.Minute
	// closedPerStep is how many handoffs are closed between one process and the next.
	closedPerStep = 3
)

// handler fails every first attempt, so that one version goes on with what the other began.
const handler = `cat >/dev/null; if [ "$HANDOFF_ATTEMPT" = 1 ]; then exit 1; fi; echo done`

// fleet has the processes that are upgraded one after the other.
type fleet struct {
	*testing.T
	ctx        context.Context
	url        string
	b          *broker.Broker
	currentBin string // the two programs
	newerBin   string
	members    []*fleetProcess

	mu      sync.Mutex
	tickets []string
}

type fleetProcess struct {
	name    string
	args    []string
	ready   string // its output when it is ready
	process *testworld.Process
}

// TestRollingUpgrade upgrades a fleet in use, process by process, and downgrades it again. No
// handoff is lost or done twice, and a field that the newer version put into a state
// stays there, whichever version writes.
func TestRollingUpgrade(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	c := &fleet{T: t, ctx: ctx, currentBin: testworld.Handoff(t), newerBin: newerHandoff(t)}
	node, err := embedded.Start(ctx, embedded.Config{Dir: t.TempDir(), Fsync: embedded.FsyncInterval,
		Prepare: jetstream.Topology{}.Prepare})
	c.must(err)
	t.Cleanup(func() { _ = node.Stop() })
	c.url = node.ClientURL()
	engine, err := jetstream.Dial(ctx, jetstream.DialConfig{URL: c.url, Name: "test"})
	c.must(err)
	t.Cleanup(func() { _ = engine.Close() })
	c.b, err = broker.New(engine, broker.Config{})
	c.must(err)
	index := t.TempDir() + "/index.db"
	worker := func(agent string) []string {
		return []string{"work", "--env", "all", "--agent", agent, "--concurrency", "4", "--lease", "5s", "--", "sh", "-c", handler}
	}
	for _, m := range []fleetProcess{
		{name: "supervisor.0", args: []string{"supervise"}, ready: "supervising"},
		{name: "supervisor.1", args: []string{"supervise"}, ready: "supervising"},
		{name: "index", args: []string{"index", "--file", index}, ready: "index"},
		{name: "first.0", args: worker("first"), ready: "worker ready"},
		{name: "first.1", args: worker("first"), ready: "worker ready"},
		{name: "second.0", args: worker("second"), ready: "worker ready"},
		{name: "second.1", args: worker("second"), ready: "worker ready"},
	} {
		c.members = append(c.members, &m)
		c.start(&m, c.currentBin)
	}
	submitting, stop := context.WithCancel(ctx)
	defer stop()
	var sources sync.WaitGroup
	for i, bin := range []string{c.currentBin, c.newerBin} {
		sources.Go(func() { c.submit(submitting, bin, []string{"first", "second"}[i]) })
	}
	for _, bin := range []string{c.newerBin, c.currentBin} {
		for _, m := range c.members {
			c.awaitProgress()
			m.process.Signal(syscall.SIGTERM)
			m.process.Wait()
			c.start(m, bin)
		}
	}
	c.awaitProgress()
	stop()
	sources.Wait()
	carried, praised := 0, ""
	for _, ticket := range c.tickets {
		c.awaitClosed(ticket)
		n, any := c.checkHistory(ticket)
		carried += n
		if any {
			praised = ticket
		}
	}
	t.Logf("%d handoffs closed once each; %d appends of this version kept the newer version's field", len(c.tickets), carried)
	if carried == 0 || praised == "" {
		t.Error("the versions did not meet in a handoff")
	}
	// Each version reads what both have written.
	for _, bin := range []string{c.currentBin, c.newerBin} {
		if out := c.run(bin, "history", praised); !strings.Contains(out, "praised") {
			t.Errorf("the history does not show the event:\n%s", out)
		}
		c.run(bin, "why", praised)
		c.run(bin, "show", praised)
		c.run(bin, "audit", "list", "--ticket", praised)
		if out := c.run(bin, "audit", "verify"); !strings.Contains(out, "all is well") {
			t.Errorf("%s", out)
		}
		c.run(bin, "list", "--target", "first", "--limit", "3")
	}
}

func (c *fleet) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func (c *fleet) env() []string { return []string{"NATS_URL=" + c.url} }

func (c *fleet) start(m *fleetProcess, bin string) {
	c.Helper()
	m.process = testworld.Start(c, m.name, c.env(), bin, m.args...)
	ctx, cancel := context.WithTimeout(c.ctx, startTimeout)
	defer cancel()
	m.process.AwaitOutput(ctx, m.ready)
}

// run runs a command of one of the versions, which must succeed.
func (c *fleet) run(bin string, args ...string) string {
	c.Helper()
	cmd := exec.CommandContext(c.ctx, bin, args...)
	cmd.Env = append(cmd.Environ(), c.env()...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		c.Errorf("handoff %s: %v\n%s", strings.Join(args, " "), err, errs.String())
	}
	return strings.TrimSpace(out.String())
}

// submit submits a handoff every 200 ms until ctx ends.
func (c *fleet) submit(ctx context.Context, bin, agent string) {
	for tick := time.NewTicker(200 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		ticket := c.run(bin, "submit", "--from", "lead", "--to", agent, "--reason", "r", "--task", "this")
		c.mu.Lock()
		c.tickets = append(c.tickets, ticket)
		c.mu.Unlock()
	}
}

// awaitProgress waits until a few handoffs have closed that were submitted after this.
func (c *fleet) awaitProgress() {
	c.Helper()
	c.mu.Lock()
	from := len(c.tickets)
	c.mu.Unlock()
	for n := 0; n < closedPerStep; {
		c.mu.Lock()
		ticket := ""
		if from+n < len(c.tickets) {
			ticket = c.tickets[from+n]
		}
		c.mu.Unlock()
		if ticket != "" {
			c.awaitClosed(ticket)
			n++
			continue
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-c.ctx.Done():
			c.Fatal(c.ctx.Err())
		}
	}
}

func (c *fleet) awaitClosed(ticket string) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, closeTimeout)
	defer cancel()
	state, err := brokertest.Wait(ctx, c.b, ticket, brokertest.Closed)
	if err != nil {
		c.Fatalf("%s: %v", ticket, err)
	}
	if state.Outcome != protocol.OutcomeSuccess {
		c.Errorf("%s ended with %s", ticket, state.Outcome)
	}
}

// checkHistory reads a handoff's appends: one completion, and the field of the newer version stays
// in the state. It counts the acceptances that only kept the field, which the newer version never
// does, and reports whether there was a field to keep.
func (c *fleet) checkHistory(ticket string) (carried int, any bool) {
	c.Helper()
	ends, praises := 0, 0
	for seq := uint64(0); ; {
		entry, err := c.b.Next(c.ctx, ticket, seq)
		if errors.Is(err, broker.ErrNotFound) {
			break
		}
		c.must(err)
		seq = entry.Seq
		var record struct {
			Events []struct{ Type string }
			State  struct{ Praises int }
		}
		c.must(json.Unmarshal(entry.Body, &record))
		accepted, praised := false, 0
		for _, e := range record.Events {
			switch e.Type {
			case "accepted":
				accepted = true
			case "praised":
				praised++
			case "completed":
				ends++
			}
		}
		praises += praised
		if record.State.Praises != praises {
			c.Fatalf("entry %d of %s has %d praises, and there were %d: %s", seq, ticket, record.State.Praises, praises, entry.Body)
		}
		if accepted && praised == 0 && praises > 0 {
			carried++
		}
	}
	if ends != 1 {
		c.Errorf("%s was completed %d times", ticket, ends)
	}
	return carried, praises > 0
}
