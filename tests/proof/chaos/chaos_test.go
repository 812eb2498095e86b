//go:build proof

// Package chaos injects faults into a fleet of real processes that relays handoffs: three servers,
// two supervisors, twenty workers of four agents, two sources. Afterwards every acknowledged handoff
// must close, once.
//
//	go test -tags proof ./tests/proof/chaos                    # the short form: each fault once
//	go test -tags proof ./tests/proof/chaos -rounds 4 -v       # the long one
//	go test -tags proof ./tests/proof/chaos -partitions 4 -v   # on a divided ledger
//	go test -tags proof ./tests/proof/chaos -run ClockJumps -clocks -v
package chaos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/index"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

var (
	rounds     = flag.Int("rounds", 1, "how often there is each fault")
	seed       = flag.Uint64("seed", 1, "which process each befalls")
	partitions = flag.Int("partitions", 1, "into how many partitions the ledger is divided")
)

const (
	workersEach = 5
	// faultPause is the time from the end of a fault to the next one.
	faultPause = 3 * time.Second
)

// fault is one kind of fault. It returns when the fault is over.
type fault struct {
	name string
	do   func(*chaos)
}

var faults = []fault{
	{"a worker killed", func(c *chaos) { c.killAndRestart(c.randomProcess(c.workers), 2*time.Second) }},
	{"five workers killed", func(c *chaos) {
		for range 5 {
			c.killAndRestart(c.randomProcess(c.workers), 0)
		}
	}},
	{"a supervisor killed", func(c *chaos) { c.killAndRestart(c.randomProcess(c.supervisors), 6*time.Second) }},
	{"both supervisors killed", func(c *chaos) { c.killAndRestart(c.supervisors[0], 0); c.killAndRestart(c.supervisors[1], 0) }},
	{"a source killed", func(c *chaos) { c.killAndRestart(c.randomProcess(c.sources), time.Second) }},
	{"a node killed that does not lead", func(c *chaos) { c.killAndRestart(c.node(false).Process, 4*time.Second) }},
	{"the ledger's leader killed", func(c *chaos) { c.killAndRestart(c.node(true).Process, 4*time.Second) }},
	{"a worker frozen for two leases", func(c *chaos) { c.freeze(c.randomProcess(c.workers), 2*lease) }},
	{"a supervisor frozen", func(c *chaos) { c.freeze(c.randomProcess(c.supervisors), 10*time.Second) }},
	{"the ledger's leader frozen", func(c *chaos) { c.freeze(c.node(true).Process, 8*time.Second) }},
	{"two nodes cut from each other", func(c *chaos) {
		c.cluster.Cut(0, 1)
		c.pause(8 * time.Second)
		c.cluster.Mend(0, 1)
	}},
	{"the ledger's leader cut from the others", func(c *chaos) {
		leader := slices.Index(c.cluster.Nodes, c.node(true))
		for other := range c.cluster.Nodes {
			if other != leader {
				c.cluster.Cut(leader, other)
			}
		}
		c.pause(8 * time.Second)
		for other := range c.cluster.Nodes {
			if other != leader {
				c.cluster.Mend(leader, other)
			}
		}
	}},
	{"half the workers cut from the cluster", func(c *chaos) {
		for _, n := range c.cluster.Nodes {
			n.CutClients()
		}
		c.pause(2 * lease)
		for _, n := range c.cluster.Nodes {
			n.MendClients()
		}
	}},
	{fullDisk, func(c *chaos) {
		n := c.cluster.Nodes[2]
		if n.Disk == nil {
			return
		}
		n.Disk.Fill()
		c.pause(8 * time.Second)
		n.Kill() // a server that cannot write disables JetStream for good: an operator restarts it
		n.Disk.Free()
		n.Restart()
	}},
	{"the offers deleted", func(c *chaos) { c.deleteStream(c.oneOf(jetstream.WorkStreams(*partitions))) }},
	{"the wake-ups deleted", func(c *chaos) { c.deleteStream(c.oneOf(jetstream.TimerStreams(*partitions))) }},
	{"the presence of all workers deleted", func(c *chaos) { c.deleteStream("KV_" + jetstream.HolderBucket) }},
	{"all nodes killed at once", func(c *chaos) {
		for _, n := range c.cluster.Nodes {
			n.Signal(syscall.SIGKILL)
		}
		for _, n := range c.cluster.Nodes {
			n.Wait()
			n.Restart()
		}
	}},
}

const fullDisk = "a node's disk full"

// chaos is a fleet under faults.
type chaos struct {
	*testing.T
	ctx    context.Context
	chance *rand.Rand

	cluster                       *testworld.Cluster
	supervisors, workers, sources []*testworld.Process
	acks                          *testworld.Acks
	done                          []testworld.Fault
}

func TestChaos(t *testing.T) {
	if testworld.Race {
		t.Skip("a fleet of processes with the race detector in them outlasts its own timeouts: run it without -race")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(*rounds+2)*5*time.Minute)
	defer cancel()
	c := &chaos{T: t, ctx: ctx, chance: rand.New(rand.NewPCG(*seed, 9)), cluster: testworld.StartDivided(t, 3, int64(200+150**rounds)<<20, *partitions), acks: &testworld.Acks{}}
	if c.cluster.Nodes[2].Disk == nil {
		t.Logf("skipped: %s: no file system can be mounted here", fullDisk)
	}
	b := c.broker()
	c.start(b)
	indexed := c.index(b)
	c.pause(faultPause)
	for range *rounds {
		for _, i := range c.chance.Perm(len(faults)) {
			began := time.Now()
			faults[i].do(c)
			c.done = append(c.done, testworld.Fault{Name: faults[i].name, From: began, To: time.Now()})
			t.Logf("%v: %s", time.Since(began).Round(time.Millisecond), faults[i].name)
			c.awaitRecovered()
		}
	}
	for _, s := range c.sources {
		s.Signal(syscall.SIGTERM)
		s.Wait()
	}
	(&testworld.Judge{Broker: b, Acks: c.acks, Faults: c.done, Between: faultPause, Indexed: indexed}).Judge(ctx, t)
}

func (c *chaos) pause(d time.Duration) { testworld.Pause(c.ctx, d) }

// awaitRecovered waits until the cluster is healthy again, and a moment more.
func (c *chaos) awaitRecovered() {
	c.Helper()
	healing, cancel := context.WithTimeout(c.ctx, 5*time.Minute)
	defer cancel()
	if err := c.cluster.Recover(healing); err != nil {
		c.Fatalf("the cluster does not recover: %v", err)
	}
	c.pause(faultPause)
}

func (c *chaos) randomProcess(of []*testworld.Process) *testworld.Process {
	return of[c.chance.IntN(len(of))]
}

// oneOf returns the stream of any partition.
func (c *chaos) oneOf(streams []string) string { return streams[c.chance.IntN(len(streams))] }

// node returns a node that leads a stream of the ledger, or one that does not.
func (c *chaos) node(leads bool) *testworld.Node {
	c.Helper()
	leader, stream := -1, c.oneOf(jetstream.LedgerStreams(*partitions))
	for try := 0; leader < 0 && try < 50; try++ {
		if leader = c.cluster.Leader(c.ctx, stream); leader < 0 {
			c.pause(200 * time.Millisecond)
		}
	}
	if leader < 0 {
		c.Fatal("the ledger has no leader")
	}
	if leads {
		return c.cluster.Nodes[leader]
	}
	return c.cluster.Nodes[(leader+1+c.chance.IntN(2))%3]
}

// killAndRestart kills a process and starts it again after a while.
func (c *chaos) killAndRestart(p *testworld.Process, away time.Duration) {
	p.Kill()
	c.pause(away)
	p.Restart()
}

// freeze stops a process for a while.
func (c *chaos) freeze(p *testworld.Process, d time.Duration) {
	p.Freeze()
	c.pause(d)
	p.Thaw()
}

// deleteStream deletes a stream, and returns when a supervisor has made it again.
func (c *chaos) deleteStream(name string) {
	c.Helper()
	nc, err := nats.Connect(c.cluster.URL())
	if err != nil {
		c.Fatal(err)
	}
	defer nc.Close()
	js, err := natsjs.New(nc)
	if err != nil {
		c.Fatal(err)
	}
	deleted := false
	for c.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(c.ctx, 5*time.Second)
		if !deleted {
			err = js.DeleteStream(ctx, name)
			deleted = err == nil || errors.Is(err, natsjs.ErrStreamNotFound)
		}
		if deleted {
			_, err = js.Stream(ctx, name)
		}
		cancel()
		if deleted && err == nil {
			return
		}
		c.pause(200 * time.Millisecond)
	}
	c.Fatalf("stream %s is not there again: %v", name, err)
}

func (c *chaos) broker() *broker.Broker {
	c.Helper()
	engine, err := jetstream.Dial(c.ctx, jetstream.DialConfig{URL: c.cluster.URL(), Name: "judge"})
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { _ = engine.Close() })
	b := brokertest.Over(c, engine)
	return b
}

// start starts all processes but the servers.
func (c *chaos) start(b *broker.Broker) {
	c.Helper()
	for _, agent := range relay {
		if err := b.PutProfile(c.ctx, protocol.Profile{ID: agent}); err != nil {
			c.Fatal(err)
		}
	}
	behind := []string{}
	for _, n := range c.cluster.Nodes {
		behind = append(behind, n.ProxyURL)
	}
	role := func(role, url, name string) *testworld.Process {
		return testworld.Start(c, name, []string{roleEnv + "=" + role + " " + url + " " + name}, os.Args[0])
	}
	for i := range 2 {
		c.supervisors = append(c.supervisors, testworld.Start(c, fmt.Sprint("supervisor ", i), nil, testworld.Handoff(c), "supervise", "--nats", c.cluster.URL()))
	}
	for _, agent := range relay {
		for i := range workersEach {
			url := c.cluster.URL()
			if i%2 == 1 {
				url = strings.Join(behind, ",")
			}
			c.workers = append(c.workers, role("worker", url, fmt.Sprint(agent, ".", i)))
		}
	}
	for i := range 2 {
		source := role("source", c.cluster.URL(), fmt.Sprint("source", i))
		source.Tee(c.acks)
		c.sources = append(c.sources, source)
	}
}

// index runs an index meanwhile. It returns a function that counts its closed handoffs.
func (c *chaos) index(b *broker.Broker) func(context.Context) (int64, error) {
	c.Helper()
	ix, err := index.Open(filepath.Join(c.TempDir(), "index.db"), nil)
	if err != nil {
		c.Fatal(err)
	}
	ctx, cancel := context.WithCancel(c.ctx)
	var group errgroup.Group
	group.Go(func() error {
		err := ix.Run(ctx, b)
		if ctx.Err() != nil {
			err = nil
		}
		return err
	})
	c.Cleanup(func() {
		cancel()
		if err := errors.Join(group.Wait(), ix.Close()); err != nil {
			c.Error(err)
		}
	})
	return func(ctx context.Context) (int64, error) {
		open := false
		a, err := ix.Count(ctx, ask.CountQuery{Filter: ask.Filter{Open: &open}})
		return a.Count, err
	}
}
